"""What is read of others is bounded and checked, and what is shown or written of their names does nothing."""

import csv
import io
import json
import os
import threading
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image

from filtergroups.checkpoint import load_checkpoint
from filtergroups.config import ConfigError
from filtergroups.config_file import load_config, make_config
from filtergroups.data.bombs import Room, webp_pixels
from filtergroups.data.decoding import decode
from filtergroups.data.errors import DataError
from filtergroups.data.splits import read_split, write_split
from filtergroups.data.table import read_table
from filtergroups.guess import guess_config
from filtergroups.listing import as_csv
from filtergroups.naming import as_name, check_name, shown
from filtergroups.reading import checked, parse_json, parse_toml, read_arrays, read_bytes
from filtergroups.reporting.collect import read_log, record_of_run
from filtergroups.run import Run, RunError
from filtergroups.tables import aligned
from tests.data.pictures import picture, table_tree

HOSTILE = ["\x1b]0;owned\x07", "a\rb", "\u202egnp.exe", "x\u2066y", "\x9b31m", "line\u2028end", "\ud800", "a\x00b"]


def special_files(folder):
    """Whatever is not a plain file, and would hold or fill a reader."""
    os.mkfifo(folder / "pipe")
    (folder / "endless").symlink_to("/dev/zero")
    (folder / "folder").mkdir()
    (folder / "loop").symlink_to(folder / "loop")
    with (folder / "large").open("wb") as file:
        file.truncate(10**12)
    return ["pipe", "endless", "folder", "loop", "large"]


def test_nothing_but_a_plain_file_of_bounded_size_is_read(tmp_path):
    for name in special_files(tmp_path):
        with pytest.raises((ValueError, OSError)):
            read_bytes(tmp_path / name)
        for read, kind in ((load_config, ConfigError), (read_table, DataError), (read_split, DataError)):
            with pytest.raises(kind, match="expected") as caught:
                read(tmp_path / name)
            assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 50_000, '{"a":' * 50_000, "[" * 50_000 + "]" * 50_000, "[0," * 2_000_000, "1" * 10_000, '{"a": ', "nul",
        "",
        '"' + "\\" * 9, "[" + "[]," * 1_100_000 + "1]",
    ],
    ids=range(10),
)  # fmt: skip
def test_json_is_refused_before_it_costs_anything(text):
    for read in (parse_json, lambda text: checked(list[int], text)):
        with pytest.raises(ValueError, match=r"\S"):
            read(text)


@pytest.mark.parametrize(
    "text",
    [
        ".".join("a" * 50_000) + " = 1", "x = " + "[" * 50_000, "x = " + "{a=" * 50_000, "[" + ".".join("b" * 40) + "]",
        "x = " + "1" * 10_000, "x" * 2_000_000, "x = '",
    ],
    ids=range(7),
)  # fmt: skip
def test_toml_is_refused_before_it_costs_anything(text, tmp_path):
    with pytest.raises(ValueError, match=r"\S"):
        parse_toml(text)
    (tmp_path / "config.toml").write_text(text)
    with pytest.raises(ConfigError, match="expected") as caught:
        load_config(tmp_path / "config.toml")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


def test_configs_that_extend_each_other_end(tmp_path):
    for n in range(40):
        (tmp_path / f"{n}.toml").write_text(f'extends = "{n + 1}.toml"')
    with pytest.raises(ConfigError, match="at most 16 files"):
        load_config(tmp_path / "0.toml")


def test_a_table_of_too_many_cells_is_refused(tmp_path):
    table = tmp_path / "table.csv"
    for text in ("a," * 20_000 + "\n1", "a,b\n" + "1,2\n" * 6_000_000, f'a,b\n1,"{"x" * 300_000}"'):
        table.write_text(text)
        with pytest.raises(DataError, match="expected a CSV") as caught:
            read_table(table)
        assert "\n" not in str(caught.value)


def test_arrays_are_as_large_as_their_files_say(tmp_path):
    file = tmp_path / "step_00000000.npz"
    np.savez_compressed(file, a=np.zeros((4, 3), np.float16))
    assert read_arrays(file)["a"].shape == (4, 3)
    content = io.BytesIO()
    np.lib.format.write_array_header_1_0(content, {"descr": "<f4", "fortran_order": False, "shape": (2**32, 2)})
    import zipfile

    with zipfile.ZipFile(file, "w") as packed:
        packed.writestr("a.npy", content.getvalue())
    with pytest.raises(ValueError, match="an array of 34,359,738,368 bytes in an entry"):
        read_arrays(file)


TRAINED = {
    "step": 1, "kind": "train", "epoch": 0, "losses": {"a": 1.0}, "weights": 0.1, "entropy": 0.1, "temperature": 1,
    "learning_rate": 0.001, "shared": {"0": 0.6},
}  # fmt: skip


def test_a_bad_line_of_the_metrics_is_left_out_and_said_once(tmp_path):
    bad = ["{", "[]", "null", '{"step": "1", "kind": "train"}', '{"step": 1, "kind": "train"}', "[" * 9999, "\x1b[2J"]
    good = json.dumps(TRAINED), json.dumps({**TRAINED, "step": 9, "new": {"of": "a later version"}})
    (tmp_path / "metrics.jsonl").write_text("\n".join([good[0], *bad, good[1]]) + "\n")
    entries, problem = Run(tmp_path).metrics_and_problem()
    assert [entry["step"] for entry in entries] == [1, 9]
    assert entries[1]["new"] == {"of": "a later version"}
    assert problem.startswith("metrics.jsonl: 7 lines cannot be read and are left out; line 2: ")
    (tmp_path / "assignments").mkdir()
    (tmp_path / "assignments" / "step_of-somebody.npz").write_text("not ours")
    assert Run(tmp_path).forget_after(5) == problem
    assert (tmp_path / "metrics.jsonl").read_text() == good[0] + "\n"
    assert (tmp_path / "assignments" / "step_of-somebody.npz").exists()


@pytest.mark.parametrize(
    ("split", "tasks"),
    [
        ("test; rm -rf ~", {}),
        ("test", {"a": {"mae": "1"}}),
        ("test", {"a": {"psnr": {"bone": {"mean": 1.0}}}}),
        (1, {}),
    ],
)
def test_results_that_are_none_are_refused_before_they_are_shown(tmp_path, split, tasks):
    result = {"split": split, "samples": 0, "checkpoint": "best", "data": None, "examples": 3, "plain": {}}
    (tmp_path / "results.json").write_text(json.dumps([{**result, "tasks": tasks}]))
    with pytest.raises(RunError, match=r"results\.json: expected what `evaluate` writes, found at '0\.") as caught:
        Run(tmp_path).results()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", HOSTILE)
def test_no_name_makes_a_terminal_do_something(text):
    for line in (shown(text), *aligned([("a", text), (text, "b")])):
        assert all(character.isprintable() for character in line), ascii(line)
    assert shown("Grün, 年齢, café, 5 µm ± τ") == "Grün, 年齢, café, 5 µm ± τ"


@pytest.mark.parametrize("name", ["../../x", "a/b", "a\\b", "..", "", " ", "a:b", "nul", "a" * 200, *HOSTILE])
def test_a_tasks_name_can_be_a_files_name(name, tmp_path):
    with pytest.raises(ValueError, match="a name"):
        check_name(name)
    tree = table_tree(tmp_path, tmp_path / "t.csv")
    tree["tasks"][0]["name"] = name
    with pytest.raises((ConfigError, ValueError), match="name") as caught:
        make_config(tree)
    assert "\n" not in str(caught.value)
    assert check_name(as_name(name))
    assert check_name("Age (years)") == "Age (years)"


FORMULAS = ["=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\t=1", "\r=1", "\uff1d1", "x;=1+1", "x\n=1", "a,=1"]


def test_no_cell_that_is_written_is_a_formula_and_numbers_stay_numbers(tmp_path):
    rows = [{"file": f"./{text}", text: text, "value": value} for text in FORMULAS for value in ("-1.5", "+2", "1e-7")]
    written = as_csv(rows)
    for delimiter in ",;\t":
        for row in csv.reader(io.StringIO(written, newline=""), delimiter=delimiter):
            if delimiter == ",":
                assert not [cell for cell in row if cell[:1] in set("=@\t\r\uff1d")]
                assert not [cell for cell in row if cell[:1] in {"+", "-"} and not cell[1:2].isdigit()]
    assert {row["value"] for row in csv.DictReader(io.StringIO(written, newline=""))} == {"-1.5", "+2", "1e-7"}
    for line in written.splitlines():
        if ";" in line:
            assert not [part for part in line.split(";") if part.startswith(("=", "+", "@"))] or '"' in line


def test_a_split_keeps_names_that_look_like_formulas(tmp_path):
    parts = dict.fromkeys(("=1+1.png", "-a.png", "./x.png", "a;b.png", "plain.png"), "train")
    write_split(tmp_path / "split.csv", parts)
    assert read_split(tmp_path / "split.csv") == parts
    assert not [line for line in (tmp_path / "split.csv").read_text().splitlines() if line[:1] in "=+-@"]


def test_init_writes_toml_whatever_the_columns_are_called(tmp_path):
    rows = []
    odd = ["\x1b[31mred", "tab\there", 'quote"s', "back\\slash", "bidi\u202e", "a/b", "nul", "=1+1"]
    for n in range(40):
        picture(tmp_path / "images" / f"{n}.png", 0.5, n % 2 == 0, n)
        rows.append([f"{n}.png", *((f"\x1b{n % 2}", f"{n}.5")[k % 2] for k in range(len(odd)))])
    with (tmp_path / "t.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["image", *odd], *rows])
    text = guess_config(tmp_path / "t.csv", tmp_path / "images")
    assert all(character.isprintable() or character == "\n" for character in text)
    tree = tomllib.loads(text)
    assert [task["column"] for task in tree["tasks"]] == odd
    (tmp_path / "my.toml").write_text(text)
    assert len(load_config(tmp_path / "my.toml").tasks) == len(odd)


def test_assignments_that_do_not_belong_together_are_refused(tmp_path):
    (tmp_path / "config.toml").write_text('[data]\nkind = "faces"\nroot = "faces"\n[network]\nname = "vgg11"\n')
    (tmp_path / "assignments").mkdir()
    for content in ({"a": np.zeros((4, 3))}, {"a": np.full((4, 3), 7.0)}, {"a": np.zeros(4)}, {"a": np.array(["x"])}):
        np.savez(tmp_path / "assignments" / "step_00000000.npz", a=np.full((4, 3), 1 / 3))
        np.savez(tmp_path / "assignments" / "step_00000001.npz", **{**content, "b": np.zeros((2, 2))})
        with pytest.raises(RunError, match="step_0000000") as caught:
            record_of_run(tmp_path)
        assert "\n" not in str(caught.value)


def test_a_webp_is_known_by_its_header_before_it_is_opened():
    for size in ((33, 40), (1, 1), (300, 7)):
        for options in ({}, {"lossless": True}, {"exif": Image.Exif().tobytes()}):
            content = io.BytesIO()
            Image.new("RGB", size).save(content, "WEBP", **options)
            assert webp_pixels(content.getvalue()) == size[0] * size[1]
    large = b"RIFF" + bytes(4) + b"WEBPVP8X" + bytes(8) + b"\xff" * 6
    with pytest.raises(DataError, match="expected an image of 1 to"):
        decode(large + bytes(20), 16, 3)


def test_threads_share_the_room_for_pixels():
    room, lock, inside, most = Room(100), threading.Lock(), [0], [0]

    def one(pixels):
        with room.taken(pixels):
            with lock:
                inside[0] += min(pixels, 100)
                most[0] = max(most[0], inside[0])
            time.sleep(0.002)
            with lock:
                inside[0] -= min(pixels, 100)

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(one, [30, 60, 100, 500, 1, 0] * 10))
    assert 60 <= most[0] <= 100
    assert room.left == 100


@pytest.mark.parametrize("text", ['"' + '\\"' * 400_000, "'" * 400_001 + "\\" * 9, '"\\' * 300_000])
def test_looking_for_depth_takes_time_in_proportion(text):
    began = time.perf_counter()
    for read in (parse_json, parse_toml):
        with pytest.raises(ValueError, match=r"\S"):
            read("x = " + "[" * 33 + "\n" + text)
    assert time.perf_counter() - began < 5


def test_a_checkpoint_that_is_mostly_holes_is_refused_before_it_is_read(tmp_path):
    size = 16 * 10**9
    tensor = {"dtype": "F32", "shape": [size // 4], "data_offsets": [0, size]}
    header = json.dumps({"__metadata__": {"format": "filtergroups checkpoint 1"}, "network/x": tensor}).encode()
    with (tmp_path / "best.safetensors").open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + size)
    with pytest.raises(RunError, match="of them on the disk"):
        load_checkpoint(tmp_path / "best.safetensors")


@pytest.mark.parametrize(
    "text", ["network.name = 'X'", "network.hidden = 0xY", "seed = 0xY", "network.X = 1", "data = 'X'"]
)
def test_what_is_said_of_a_config_is_short_however_long_its_values_are(text, tmp_path):
    (tmp_path / "config.toml").write_text(text.replace("X", "x" * 500_000).replace("Y", "F" * 9000))
    with pytest.raises(ConfigError, match=r"config\.toml: ") as caught:
        load_config(tmp_path / "config.toml")
    assert len(str(caught.value)) < 1000
    assert "sys.set_int" not in str(caught.value)


def test_files_of_millions_of_bad_lines_are_left_within_seconds(tmp_path):
    (tmp_path / "metrics.jsonl").write_text(json.dumps(TRAINED) + "\n" + "{}\n" * 3_000_000)
    (tmp_path / "log.txt").write_text("\n" * 10_000_000 + "2026-01-01 10:00:00  hello\n")
    began = time.perf_counter()
    entries, problem = Run(tmp_path).metrics_and_problem()
    assert [entry["step"] for entry in entries] == [1]
    assert "lines cannot be read, and all that follow, and are left out; line 2" in problem
    assert [text for _, text in read_log(Run(tmp_path))] == ["hello"]
    assert time.perf_counter() - began < 15
