"""A run folder or a config of somebody else: opening it writes nowhere but into the run and the user's cache."""

import os
import shutil
import signal
import stat
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import tomli_w

import filtergroups as fg
from filtergroups.checking import check_data
from filtergroups.config_file import load_config, make_config
from filtergroups.data.errors import DataError
from filtergroups.data.phantom import write_phantom
from filtergroups.run import Run, RunError
from filtergroups.training import resume, train
from filtergroups.writing import append, write_atomically
from tests.data.pictures import face_folder, picture_table, table_tree


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A small data set with a run that was trained on it."""
    folder = tmp_path_factory.mktemp("home")
    picture_table(folder)
    train(make_config(table_tree(folder, folder / "labels.csv", epochs=2)), folder / "run")
    return folder


@pytest.fixture
def foreign(home, tmp_path):
    """The run as somebody sent it: another folder, the data beside it, a home to be spared."""
    for name in ("images", "labels.csv", "labels.split.csv", "run"):
        (shutil.copytree if (home / name).is_dir() else shutil.copy)(home / name, tmp_path / name)
    changed(tmp_path / "run", table=tmp_path / "labels.csv", root=tmp_path / "images", cache=None)
    (tmp_path / "victim").mkdir()
    return tmp_path / "run"


def changed(run, **data):
    """The run with other settings of its data."""
    file = run / "config.toml"
    tree = tomllib.loads(file.read_text())
    tree["data"] |= {key: str(value) for key, value in data.items() if value is not None}
    tree["data"] = {key: value for key, value in tree["data"].items() if key not in data or data[key] is not None}
    file.write_text(tomli_w.dumps(tree))
    return run


def everything(folder):
    return {str(path.relative_to(folder)): path.lstat().st_mtime_ns for path in sorted(folder.rglob("*"))}


def refusal(command, *arguments):
    """What a command says instead of doing it; None: it does it."""
    try:
        command(*arguments)
    except (DataError, RunError, OSError) as error:
        return str(error)
    return None


COMMANDS = {
    "evaluate": lambda run, out: fg.evaluate(run, split="validation"),
    "calibrate": lambda run, out: fg.calibrate(run),
    "predict": lambda run, out: fg.predict(run, [run.parent / "images"], out / "out.csv"),
    "export": lambda run, out: fg.export(run, to="safetensors", out=out / "model.safetensors", measure=False),
    "report": lambda run, out: fg.report(run, out / "report.html"),
    "figures": lambda run, out: fg.figures(run, out / "figures", format="svg"),
    "resume": lambda run, out: resume(run),
    "data check": lambda run, out: check_data(load_config(run / "config.toml")),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_strangers_config_never_says_where_something_is_written(foreign, command, tmp_path):
    """Neither a split at a place of its choice (a shell's profile, say) nor a cache folder."""
    victim = tmp_path / "victim"
    changed(foreign, split_file=victim / ".profile", cache=victim / "cache")
    (foreign / "statistics-best.safetensors").unlink()  # evaluate and predict would make it from the training part
    before = everything(victim)
    said = refusal(COMMANDS[command], foreign, tmp_path)
    assert said is None or ("split" in said and "\n" not in said)
    assert everything(victim) == before


def test_only_train_writes_the_split_and_the_cache_that_a_config_names(home, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "users"))
    tree = table_tree(home, home / "labels.csv", epochs=1)
    tree["data"] |= {"split_file": str(tmp_path / "s.csv"), "cache": str(tmp_path / "cache")}
    config = make_config(tree)
    assert check_data(config).problems == []
    assert not (tmp_path / "cache").exists()
    run = train(config, tmp_path / "run").path
    assert (tmp_path / "s.csv").is_file()
    shutil.rmtree(tmp_path / "cache")
    fg.evaluate(run, split="validation")  # by the user's own training the folder is known now
    assert any((tmp_path / "cache").iterdir())


def test_no_link_in_a_run_is_followed_out_of_it(foreign, tmp_path):
    victim = tmp_path / "victim"
    (victim / "profile").write_text("mine\n")
    (victim / "step_00000999.npz").write_text("mine")
    before = everything(victim)
    for name in ("log.txt", "metrics.jsonl", "results.json", ".lock", "calibration.json", "best-level.safetensors"):
        (foreign / name).unlink(missing_ok=True)
        (foreign / name).symlink_to(victim / "profile")
    shutil.rmtree(foreign / "assignments")
    (foreign / "assignments").symlink_to(victim)
    (foreign / "statistics-best.safetensors").unlink()
    for name, command in COMMANDS.items():
        out = tmp_path / "out" / name.replace(" ", "-")
        out.mkdir(parents=True)
        assert "\n" not in (refusal(command, foreign, out) or "")
    assert everything(victim) == before
    assert (victim / "profile").read_text() == "mine\n"


def test_the_last_checkpoint_is_never_written_through_a_link(foreign, tmp_path):
    target = tmp_path / "victim" / "nothing-yet"
    (foreign / "best.safetensors").unlink()
    (foreign / "best.safetensors").symlink_to(target)
    resume(foreign)
    assert not target.exists()


def test_a_file_with_a_second_name_outside_is_not_added_to(tmp_path):
    outside = tmp_path / "outside"
    outside.write_text("mine\n")
    run = tmp_path / "run"
    run.mkdir()
    os.link(outside, run / "log.txt")
    Run(run).log("hello")
    assert outside.read_text() == "mine\n"
    assert (run / "log.txt").read_text().startswith("mine\n")


def test_a_pipe_in_the_place_of_a_file_does_not_hold_a_command(tmp_path):
    os.mkfifo(tmp_path / "log.txt")
    with pytest.raises(OSError, match=r"log\.txt|No such device"):
        append(tmp_path / "log.txt", "hello\n", below=tmp_path)


def test_what_cannot_be_written_is_said_of_the_file_that_was_meant(tmp_path):
    (tmp_path / "out").mkdir()
    with pytest.raises(IsADirectoryError) as caught:
        write_atomically(tmp_path / "out", b"1")
    assert caught.value.filename == str(tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_written_files_have_the_rights_of_the_users_umask(tmp_path):
    before = os.umask(0o027)
    try:
        write_atomically(tmp_path / "one", b"1")
        append(tmp_path / "two", "2", below=tmp_path)
    finally:
        os.umask(before)
    for name in ("one", "two"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o640


PHANTOM = """
import sys, time
from pathlib import Path
from filtergroups.data.phantom import write_phantom
def hold(done, of):
    print("ready", flush=True)
    time.sleep(60)
write_phantom(Path(sys.argv[1]), 3, shape=(8, 8, 4), spacing=(50, 50, 50), progress=hold)
"""


def test_a_half_written_phantom_of_a_killed_process_is_removed_by_the_next_one(tmp_path):
    def started():
        command = [sys.executable, "-c", PHANTOM, str(tmp_path / "p[h]")]
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert process.stdout.readline() == b"ready\n"
        return process

    killed, alive = started(), started()
    try:
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        assert len(list(tmp_path.iterdir())) == 2
        write_phantom(tmp_path / "p[h]", 3, shape=(8, 8, 4), spacing=(50, 50, 50))
        assert len(list(tmp_path.iterdir())) == 2  # the phantom, and the half of the one that still writes
    finally:
        for process in (killed, alive):
            process.kill()
            process.communicate()


WRITER = """
import sys, time
from pathlib import Path
from filtergroups.writing import written_aside
with written_aside(Path(sys.argv[1]) / "file") as file:
    file.write(b"half")
    file.flush()
    print("ready", flush=True)
    time.sleep(60)
"""


def test_what_a_killed_process_left_half_written_is_removed_by_the_next_one(tmp_path):
    def leftovers():
        return sorted(path.name for path in tmp_path.glob(".file.*"))

    def started():
        process = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE)
        assert process.stdout.readline() == b"ready\n"
        return process

    (tmp_path / ".others.12345678.filtergroups-not").write_text("somebody else's")
    (tmp_path / ".link.12345678.filtergroups").symlink_to(tmp_path / "victim")
    killed, alive = started(), started()
    try:
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        assert len(leftovers()) == 2
        code = "from filtergroups.writing import write_atomically as w; from pathlib import Path; import sys; "
        subprocess.run([sys.executable, "-c", code + "w(Path(sys.argv[1]) / 'other', b'1')", str(tmp_path)], check=True)
        assert len(leftovers()) == 1  # of the one that still writes
    finally:
        for process in (killed, alive):
            process.kill()
            process.communicate()
    assert (tmp_path / ".others.12345678.filtergroups-not").exists()
    assert (tmp_path / ".link.12345678.filtergroups").is_symlink()
    assert Path(tmp_path / "other").read_bytes() == b"1"


def test_nothing_that_a_link_in_a_run_leads_to_is_read(foreign, tmp_path):
    """Neither weights, nor norm statistics, nor saved probabilities of somebody else's run."""
    for name in ("best.safetensors", "assignments/step_00000010.npz"):
        assert (foreign / name).is_file()
        kept = tmp_path / "victim" / Path(name).name
        shutil.move(foreign / name, kept)
        (foreign / name).symlink_to(kept)
    assert "leads out" in refusal(COMMANDS["predict"], foreign, tmp_path)
    (foreign / "best.safetensors").unlink()
    shutil.copy(tmp_path / "victim" / "best.safetensors", foreign)
    assert "leads out" in refusal(COMMANDS["report"], foreign, tmp_path)
    statistics = foreign / "statistics-best.safetensors"
    shutil.move(statistics, tmp_path / "victim")
    statistics.symlink_to(tmp_path / "victim" / statistics.name)
    assert refusal(COMMANDS["predict"], foreign, tmp_path) is None
    assert not statistics.is_symlink()  # they were made again


def test_links_that_lead_to_themselves_end_in_one_line(foreign, tmp_path):
    for name in ("log.txt", ".lock", ".results.lock", "results.json", "assignments", "tensorboard"):
        path = foreign / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        path.symlink_to(path.name)
    for name, command in COMMANDS.items():
        out = tmp_path / "out" / name.replace(" ", "-")
        out.mkdir(parents=True)
        assert "\n" not in (refusal(command, foreign, out) or "")


def test_paths_that_can_be_none_are_named(home, tmp_path):
    """A NUL byte, a link to itself, a user who is not there: in a table and in a config."""
    images = tmp_path / "images"
    shutil.copytree(home / "images", images)
    (images / "loop.png").symlink_to("loop.png")
    text = (home / "labels.csv").read_text()
    (tmp_path / "labels.csv").write_text(text + "loop.png,1,plain,x\na\0b.png,1,plain,x\n")
    tree = table_tree(tmp_path, tmp_path / "labels.csv", epochs=1)
    problems = "".join(check_data(make_config(tree)).problems)
    assert "loop.png: expected an image" in problems
    assert "found 'a\\x00b.png'" in problems
    for path, said in (("~nobody-of-this-name/x.csv", "~nobody"), ("a\0b.csv", "NUL")):
        tree["data"]["table"] = path
        (tmp_path / "config.toml").write_text(tomli_w.dumps(tree))
        try:
            found = "".join(check_data(load_config(tmp_path / "config.toml")).problems)
        except ValueError as error:
            found = str(error)
        assert said in found


@pytest.mark.parametrize("kind", ["pipe", "endless", "deep"])
def test_a_strangers_phantom_is_read_as_any_file(tmp_path, kind):
    settings = tmp_path / "phantom.json"
    if kind == "pipe":
        os.mkfifo(settings)
    elif kind == "endless":
        settings.symlink_to("/dev/zero")
    else:
        settings.write_text("[" * 100_000)
    tree = {"data": {"kind": "phantom", "root": str(tmp_path)}, "network": {"name": "highresnet"}}
    with pytest.raises(DataError, match="expected no folder, an empty one or the phantom"):
        write_phantom(tmp_path)
    assert "found other files" in "".join(check_data(make_config(tree)).problems)


def test_a_pipe_among_faces_is_no_twin(tmp_path):
    face_folder(tmp_path / "faces", 24)
    for number in range(6):  # of which some are in the training part
        os.mkfifo(tmp_path / "faces" / f"30_1_0_2017011700000000{number}.jpg")
    tree = {
        "data": {"kind": "faces", "root": str(tmp_path / "faces"), "size": 16, "selection": 0.2},
        "network": {"name": "vgg11", "width": 0.1},
    }
    assert "a pipe, socket or device" in "".join(check_data(make_config(tree)).problems)


@pytest.mark.parametrize("command", ["evaluate", "predict", "report"])
def test_images_are_not_decoded_larger_than_the_network_was_trained_on(foreign, command, tmp_path):
    """Sixty small pictures at 8192 × 8192 would be 12 GB of cache."""
    file = foreign / "config.toml"
    file.write_text(file.read_text().replace("size = 16\n", "size = 8192\n"))
    said = refusal(COMMANDS[command], foreign, tmp_path)
    if said is None:  # a report shows what needs no network, and says what it lacks
        said = (tmp_path / "report.html").read_text()
    assert "expected data.size = 16" in said
