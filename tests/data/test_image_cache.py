"""The cache of decoded images: never stale, never half-written, and no end of the process when somebody spoils it."""

import os
import pickle
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from filtergroups.config_file import dump_config, make_config
from filtergroups.data import image_cache
from filtergroups.data.contents import SETTLED
from filtergroups.data.examples import DataError
from filtergroups.data.image_cache import decoded
from filtergroups.data.rows import RowsChanged
from tests.data.pictures import picture, picture_table, table_tree

CLI = [sys.executable, "-m", "filtergroups.cli"]


@pytest.fixture
def pictures(tmp_path):
    """Five bitmaps, which keep their size whatever is in them."""
    paths = [tmp_path / "images" / f"{n}.bmp" for n in range(5)]
    for n, path in enumerate(paths):
        picture(path, 0.1 + 0.1 * n, False, n)
    return paths


def kept(paths, tmp_path):
    pixels, bad = decoded(paths, 8, 3, tmp_path / "cache")
    return np.asarray(pixels), bad


def pixel_files(tmp_path):
    return sorted((tmp_path / "cache").glob("*.npy"))


def opened(monkeypatch):
    """The files that are looked into from now on."""
    names = []
    monkeypatch.setattr(
        image_cache, "read_content", lambda path, read=image_cache.read_content: names.append(path.name) or read(path)
    )
    return names


def let_settle(paths):
    """As if the files had been written long ago."""
    past = max(path.stat().st_ctime_ns for path in paths) + SETTLED
    while time.time_ns() <= past:
        time.sleep(0.05)


def swapped(path, other):
    """Other pixels in place, with the size and the time of the file that was there."""
    state = path.stat()
    path.write_bytes(other.read_bytes())
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (state.st_size, state.st_mtime_ns)


@pytest.mark.parametrize("settled", [False, True])
def test_other_pixels_of_the_same_size_and_time_are_noticed(pictures, tmp_path, settled):
    if settled:
        let_settle(pictures)
    before, _ = kept(pictures, tmp_path)
    swapped(pictures[1], pictures[4])
    after, _ = kept(pictures, tmp_path)
    assert np.array_equal(after[1], before[4])
    assert np.array_equal(after[[0, 2, 3, 4]], before[[0, 2, 3, 4]])


def test_a_file_that_changes_within_the_tick_of_a_coarse_clock_is_noticed(pictures, tmp_path, monkeypatch):
    """The same size, times and inode: only its age says that it cannot be trusted."""
    real, frozen = os.stat, {path: os.stat(path) for path in pictures}
    monkeypatch.setattr(os, "stat", lambda path, **how: frozen.get(path) or real(path, **how))
    before, _ = kept(pictures, tmp_path)
    pictures[1].write_bytes(pictures[4].read_bytes())
    after, _ = kept(pictures, tmp_path)
    assert np.array_equal(after[1], before[4])


def test_files_that_did_not_change_are_not_opened_and_one_that_did_is_decoded_alone(pictures, tmp_path, monkeypatch):
    let_settle(pictures)
    kept(pictures, tmp_path)
    names = opened(monkeypatch)
    kept(pictures, tmp_path)
    assert names == []
    picture(pictures[2], 0.9, True, 7)
    kept(pictures, tmp_path)
    assert set(names) == {"2.bmp"}
    assert len(pixel_files(tmp_path)) == 1


def test_a_file_that_could_not_be_read_once_is_tried_again(pictures, tmp_path):
    good = pictures[3].read_bytes()
    pictures[3].unlink()
    _, bad = kept(pictures, tmp_path)
    assert list(bad) == [3]
    os.mkfifo(pictures[3])
    assert "pipe" in kept(pictures, tmp_path)[1][3]
    pictures[3].unlink()
    pictures[3].write_bytes(good[:-60])
    assert "broken" in kept(pictures, tmp_path)[1][3]
    pictures[3].write_bytes(good)
    pixels, bad = kept(pictures, tmp_path)
    assert not bad
    assert pixels[3].any()


def test_images_that_stay_broken_do_not_have_the_others_written_again(pictures, tmp_path):
    pictures[3].write_bytes(b"no image")
    kept(pictures, tmp_path)
    (first,) = pixel_files(tmp_path)
    assert kept(pictures, tmp_path)[1].keys() == {3}
    assert pixel_files(tmp_path) == [first]


@pytest.mark.parametrize("damage", ["pixels", "cut", "empty", "longer", "header", "gone", "index", "foreign index"])
def test_a_cache_that_was_written_over_is_made_anew(pictures, tmp_path, damage):
    before, _ = kept(pictures, tmp_path)
    (file,) = pixel_files(tmp_path)
    content = bytearray(file.read_bytes())
    (index,) = (tmp_path / "cache").glob("*.sources")
    if damage == "pixels":
        content[len(content) // 2] ^= 1
    elif damage == "header":
        content[20] ^= 1
    whole = {"cut": content[:-100], "empty": b"", "longer": content + b"x"}.get(damage, content)
    file.write_bytes(whole)
    if damage == "gone":
        file.unlink()
    elif damage == "index":
        index.write_bytes(index.read_bytes().replace(b'"', b"'", 1))
    elif damage == "foreign index":
        index.write_text("{}")
    after, bad = kept(pictures, tmp_path)
    assert np.array_equal(after, before)
    assert not bad


@pytest.mark.parametrize("damage", ["one pixel", "cut"])
def test_what_is_spoilt_while_it_is_open_is_never_given_out(pictures, tmp_path, damage):
    pixels, _ = decoded(pictures, 8, 3, tmp_path / "cache")
    (file,) = pixel_files(tmp_path)
    before = np.asarray(pixels)
    with file.open("r+b") as handle:
        if damage == "cut":
            handle.truncate(pixels.first + pixels.row_bytes + 10)
        else:
            handle.seek(pixels.first + pixels.row_bytes + 10)
            handle.write(bytes([255 - before[1].reshape(-1)[10]]))
    assert np.array_equal(pixels[[0]], before[[0]])
    with pytest.raises(RowsChanged, match="cut short or written over") as caught:
        pixels[[0, 1]]
    assert "\n" not in str(caught.value)


def test_what_is_deleted_while_it_is_open_can_still_be_read(pictures, tmp_path):
    pixels, _ = decoded(pictures, 8, 3, tmp_path / "cache")
    before = np.asarray(pixels)
    shutil.rmtree(tmp_path / "cache")
    assert np.array_equal(np.asarray(pixels), before)


def test_kept_images_travel_to_other_processes_as_their_path(pictures, tmp_path):
    pixels, _ = decoded(pictures, 8, 3, tmp_path / "cache")
    sent = pickle.dumps(pixels)
    assert len(sent) < 1000
    assert np.array_equal(np.asarray(pickle.loads(sent)), np.asarray(pixels))


def test_what_a_killed_process_left_is_swept(pictures, tmp_path):
    kept(pictures, tmp_path)
    (file,) = pixel_files(tmp_path)
    key = file.name.split("-")[0]
    left = tmp_path / "cache" / f"{key}-00000000.npy"
    left.write_bytes(b"half")
    picture(pictures[0], 0.8, True, 1)
    kept(pictures, tmp_path)
    assert not left.exists()


def test_a_full_disk_is_one_line_before_the_work(pictures, tmp_path, monkeypatch):
    names = opened(monkeypatch)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500, limits[1]))
    try:
        with pytest.raises(DataError, match=r"expected room for \d+ MB of decoded images.*data\.cache") as caught:
            kept(pictures, tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "\n" not in str(caught.value)
    assert names == []
    assert not [path for path in (tmp_path / "cache").iterdir() if path.suffix != ".lock"]
    assert not kept(pictures, tmp_path)[1]


def mounted(path, size):
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)]
    return (
        shutil.which("mount") is not None and subprocess.run(command, capture_output=True, check=False).returncode == 0
    )


@pytest.fixture
def small_disk(tmp_path):
    """A file system of its own with 1 MB; making one is for root."""
    path = tmp_path / "disk"
    if not mounted(path, "1m"):
        pytest.skip("file systems cannot be mounted here")
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


def written(tmp_path, count=60, **changes):
    """A config of a table of pictures, as a file."""
    tree = table_tree(tmp_path, picture_table(tmp_path, count), **changes.pop("training", {}))
    tree["data"] |= changes
    path = tmp_path / "c.toml"
    path.write_text(dump_config(make_config(tree)))
    return path


def test_a_cache_on_a_full_disk_ends_a_training_in_one_line(tmp_path, small_disk):
    config = written(tmp_path, cache=str(small_disk / "cache"), size=96)
    done = subprocess.run(
        [*CLI, "train", str(config), "--run", str(tmp_path / "run")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.strip().splitlines()[-1].startswith(f"error: {small_disk / 'cache'}: expected room for 2 MB")
    assert "No space left" in done.stderr
    assert "Traceback" not in done.stderr


def in_training(config, run):
    """A training that has made its first steps."""
    process = subprocess.Popen([*CLI, "train", str(config), "--run", str(run)], stderr=subprocess.PIPE, text=True)
    until = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < until:
        if (run / "last.safetensors").exists():
            return process
        time.sleep(0.02)
    raise AssertionError(process.communicate()[1])


def assert_trains(process, run):
    """It makes some steps, and then stops when it is asked to."""
    done = (run / "metrics.jsonl").stat().st_size
    until = time.monotonic() + 120
    while process.poll() is None and (run / "metrics.jsonl").stat().st_size < done + 2000:
        assert time.monotonic() < until
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    assert "stopped at step" in process.communicate(timeout=60)[1]


@pytest.mark.parametrize("spoil", ["cut", "written over"])
def test_a_cache_file_spoilt_under_a_training_ends_it_in_one_line(tmp_path, spoil):
    config = written(tmp_path, training={"epochs": 5000})
    run = tmp_path / "run"
    process = in_training(config, run)
    (file,) = pixel_files(tmp_path)
    if spoil == "cut":
        os.truncate(file, 1000)
    else:
        size = file.stat().st_size
        with file.open("r+b") as handle:
            handle.write(bytes(size))
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 2, errors
    assert errors.strip().splitlines()[-1].startswith(f"error: {file}: expected what was kept there")
    assert "Traceback" not in errors
    assert_trains(subprocess.Popen([*CLI, "resume", str(run)], stderr=subprocess.PIPE, text=True), run)


def test_a_cache_that_is_deleted_under_a_training_does_not_stop_it(tmp_path):
    config = written(tmp_path, training={"epochs": 5000})
    run = tmp_path / "run"
    process = in_training(config, run)
    shutil.rmtree(tmp_path / "cache")
    assert_trains(process, run)


def test_a_label_map_with_other_values_is_noticed(tmp_path):
    path = tmp_path / "map.png"
    for values in ([[0, 1], [1, 0]], [[1, 0], [0, 1]]):
        Image.fromarray(np.array(values, np.uint8)).save(path)
        maps, _ = decoded([Path(path)], 2, 1, tmp_path / "cache", kind="labels")
        assert np.array_equal(np.asarray(maps)[0], values)
