"""Files of strangers by the thousand, damaged and hostile: each is accepted or refused in one line, at a bounded cost.

    python tests/fuzz.py [--scale 1.0] [--seed 0] [--folder DIR] [--only KIND]

Every kind is read in a process of its own with a limit of memory; a file that takes too long or kills its process is
named and kept. Stopped and started again with the same folder it goes on. `make fuzz` runs it in full.
"""

import argparse
import contextlib
import gzip
import io
import json
import multiprocessing
import os
import resource
import shutil
import struct
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tests.data.fuzzing import damaged_files

COUNTS = {
    "image": 10_000, "volume": 1_000, "onnx": 1_000, "checkpoint": 1_000, "json": 1_000, "csv": 1_000, "toml": 1_000,
}  # fmt: skip
MOST_MEMORY = 2_000  # MB that a file may take
MOST_SECONDS = 60.0  # that a file may take
SPECIAL = ("pipe", "device", "folder", "loop", "endless", "hole", "nothing", "gone")


@dataclass
class Tally:
    """What became of the files of a kind."""

    tried: int = 0
    accepted: int = 0
    refused: int = 0
    tracebacks: list[str] = field(default_factory=list)
    hangs: list[str] = field(default_factory=list)
    memory: float = 0.0  # MB above what the process had before
    seconds: float = 0.0


# --- hostile files --------------------------------------------------------------------------------------------------


def mutated(seeds: list[bytes], count: int, seed: int) -> Iterator[bytes]:
    """Flipped bits, numbers at their limits, cuts, repeats, splices and nestings of valid files."""
    rng = np.random.default_rng(seed)
    tokens = [
        b"{",
        b"[",
        b'"',
        b"\\",
        b"1e999",
        b"-1",
        b"NaN",
        b"null",
        b"\x00",
        b"\xff",
        b"\n",
        b",",
        b"9" * 5000,
        b"=1+1",
    ]
    for n in range(count):
        content = bytearray(seeds[n % len(seeds)])
        if n < len(seeds):  # first as they are
            yield bytes(content)
            continue
        for _ in range(int(rng.integers(1, 3))):
            at = (
                int(rng.integers(len(content) + 1))
                if rng.random() < 0.6
                else int(rng.integers(min(96, len(content) + 1)))
            )
            end = min(len(content), at + int(rng.integers(1, 64)))
            kind = int(rng.integers(9))
            if kind == 0 and content:
                for place in rng.integers(len(content), size=int(rng.integers(1, 8))):
                    content[place] ^= 1 << int(rng.integers(8))
            elif kind == 1:
                number = int(rng.choice([0, 1, 0x7F, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF]))
                content[at : at + 4] = struct.pack("<L", number)
            elif kind == 2:
                content[at : at + 8] = struct.pack("<q", int(rng.choice([2**40, 2**62, -1, 2**31])))
            elif kind == 3 and n % 3 == 0:
                del content[max(at, 1) :]
            elif kind == 4:
                content[at:at] = content[at:end] * int(rng.integers(1, 200))
            elif kind == 5 and n % 3 == 0:
                other = seeds[int(rng.integers(len(seeds)))]
                content[at:] = other[int(rng.integers(len(other))) :]
            elif kind == 6:
                content[at:end] = rng.bytes(end - at)
            elif kind == 7:
                content[at:at] = tokens[int(rng.integers(len(tokens)))] * (50_000 if rng.random() < 0.05 else 1)
            else:
                del content[at:end]
        yield bytes(content)


def volume_seeds() -> list[bytes]:
    import nibabel

    rng = np.random.default_rng(0)
    seeds = []
    for kind in (np.int16, np.float32, np.uint8, np.float64):
        image = nibabel.Nifti1Image((rng.random((9, 8, 7)) * 100).astype(kind), np.diag([1.0, 1.2, 2.0, 1.0]))
        seeds += [image.to_bytes(), gzip.compress(image.to_bytes(), mtime=0)]
    for shape in ((700, 700, 600), (20_000, 20_000, 100), (32_767,) * 3):  # headers that claim what is not there
        header = nibabel.Nifti1Header()
        header.set_data_dtype(np.float32)
        header["dim"][:4] = [3, *shape]
        header["magic"], header["vox_offset"] = b"n+1", 352
        seeds.append(gzip.compress(header.binaryblock + bytes(4) + bytes(30_000_000), 9, mtime=0))
    return seeds


def mutated_volumes(count: int, seed: int) -> Iterator[bytes]:
    """Half of the packed ones are damaged inside of their packing."""
    rng = np.random.default_rng(seed)
    for content in mutated(volume_seeds(), count, seed):
        plain = not content.startswith(b"\x1f\x8b")
        yield gzip.compress(content, 1, mtime=0) if plain and rng.random() < 0.5 else content


def onnx_seeds(folder: Path) -> list[bytes]:
    """A network as it is shipped, and others with hostile graphs."""
    import onnx
    import torch
    from onnx import TensorProto, helper

    import filtergroups as fg
    from filtergroups.compaction.build import compact
    from filtergroups.compaction.files import save_compact
    from tests.test_strange_models import ABOUT

    torch.manual_seed(0)
    network = fg.vgg11([fg.Regression("age", scale=100), fg.Classification("sex", classes=2)], width=0.0625, hidden=4)
    for assignment in network.assignments():
        assignment.fix()
    save_compact(compact(network.eval(), image_shape=(3, 16, 16)), folder / "seed.onnx", "onnx", ABOUT)
    whole = (folder / "seed.onnx").read_bytes()
    seeds = [whole] * 4
    for grow in ("Concat", "MatMul", "ConstantOfShape"):
        model = onnx.load_model_from_string(whole)
        del model.graph.node[:]
        last = "images"
        for n in range(40):
            inputs, options = ([last], {}) if grow == "ConstantOfShape" else ([last, last], {})
            options = {"axis": 1} if grow == "Concat" else options
            model.graph.node.append(helper.make_node(grow, inputs, [f"v{n}"], **options))
            last = f"v{n}"
        model.graph.node.append(helper.make_node("ReduceMean", [last], ["age"]))
        model.graph.initializer.append(helper.make_tensor("n", TensorProto.INT64, [1], [2**33]))
        seeds.append(model.SerializeToString())
    return seeds


def checkpoint_seeds(folder: Path) -> list[bytes]:
    import torch
    from safetensors.torch import save

    import filtergroups as fg
    from filtergroups.checkpoint import Progress, save_checkpoint

    network = fg.vgg11([fg.Regression("age"), fg.Classification("gender", classes=2)], width=0.0625)
    constants = {"size": 16, "channels": 3, "mean": [0.5] * 3, "deviation": [0.2] * 3, "classes": {}}
    save_checkpoint(folder / "seed.safetensors", network, Progress(constants=constants))
    whole = (folder / "seed.safetensors").read_bytes()
    header = json.dumps({"a": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}}).encode()
    lying = struct.pack("<Q", len(header)) + header
    return [whole, whole, whole, save({"a": torch.zeros(3)}), lying, struct.pack("<Q", 2**60) + b"{}"]


JSON_FILES = ("results.json", "calibration.json", "export.json", "metrics.jsonl", "labels.json", "log.txt")


def json_seeds() -> dict[str, bytes]:
    real = {"mae": 7.1}
    organs = {"dice": {"overall": {"mean": 0.5, "std": 0.1, "patients": 3}, "bone": None}}
    result = {
        "split": "test", "samples": 10, "checkpoint": "best", "data": None, "statistics": "batch", "examples": 40,
        "tasks": {"age": real, "gender": {"accuracy": 0.8}, "organs": organs}, "plain": {"age": real, "organs": organs},
        "standard_errors": {"age": {"mae": 0.2}}, "notes": ["a note"],
        "calibration": {
            "age": {"coverage": 0.9, "coverage_corrected": None, "width": 3.0, "width_corrected": None},
            "gender": {"ece": 0.1, "ece_corrected": 0.1, "bins": [{"confidence": 0.9, "accuracy": 0.8, "count": 9}]},
        },
    }  # fmt: skip
    train = {
        "step": 1, "kind": "train", "epoch": 0, "losses": {"age": 0.3, "gender": 0.7}, "weights": 0.1, "entropy": 0.1,
        "temperature": 1.0, "learning_rate": 0.001, "shared": {"layers.0": 0.6},
    }  # fmt: skip
    validation = {"step": 9, "kind": "validation", "results": {"age": real}, "criteria": {"age": 0.7}}
    fitted = {"kind": "scale", "value": 1.2, "examples": 30}
    cost = {"name": "compact", "parameters": 9, "multiplications": 99, "bytes": 9, "latency_ms": {"1": 0.5}}
    export = {"file": "model.onnx", "format": "onnx", "tasks": ["age"], "rows": [cost, cost]}
    trees = {
        "results.json": [result, {**result, "split": "validation"}], "export.json": [export],
        "calibration.json": {"step": {"mode": 9}, "mode": {"age": fitted}},
        "labels.json": {"0": "background", "1": "bone"},
    }  # fmt: skip
    lines = "".join(json.dumps(entry) + "\n" for entry in (train, train, validation))
    log = "2026-01-01 10:00:00  sfg on vgg11: 1,000 parameters, 40 train examples, 9 steps\n"
    return {name: json.dumps(tree).encode() for name, tree in trees.items()} | {
        "metrics.jsonl": lines.encode(), "log.txt": log.encode()
    }  # fmt: skip


CONFIG = b"""seed = 0
[data]
kind = "table"
table = "labels.csv"
root = "images"
size = 16
split_column = "split"
[[tasks]]
name = "level"
kind = "regression"
scale = 100.0
[[tasks]]
name = "pattern"
kind = "classification"
labels = ["plain", "striped"]
[network]
name = "vgg11"
width = 0.25
[training]
epochs = 3
task_weights = { level = 10 }
"""
TABLE = b"image,level,pattern,split\n" + b"".join(
    b"%d.png,%d.5,%s,%s\n" % (n, n, (b"plain", b"striped")[n % 2], (b"train", b"validation", b"test")[n % 3])
    for n in range(60)
)


# --- what opens them ------------------------------------------------------------------------------------------------


def readers(folder: Path) -> dict[str, Callable[[Path], object]]:
    """By kind, what the commands do with such a file."""
    picture = folder / "picture.png"
    if not picture.exists():
        from tests.data.pictures import picture as paint

        paint(picture, 0.5, True, 0)

    def image(path: Path) -> object:
        from filtergroups.data.decoding import decode
        from filtergroups.data.errors import DataError

        pixels = decode(path, 32, 3)
        with contextlib.suppress(DataError):  # colours are no labels
            decode(path, 32, 1, labels=True)
        return pixels

    def volume(path: Path) -> object:
        from filtergroups.data.grid import read_grid, read_values

        read_grid(path, 2.0)
        return float(read_values(path).max())

    def onnx(path: Path) -> object:
        from filtergroups.shipped import predict_with_file

        return predict_with_file(path, [picture], folder / "out.csv", force=True)

    def checkpoint(path: Path) -> object:
        from filtergroups.restored import open_run

        run = folder / "checkpoint-run"
        run.mkdir(exist_ok=True)
        config = '[data]\nkind = "faces"\nroot = "faces"\nsize = 16\n[network]\nname = "vgg11"\nwidth = 0.0625\n'
        (run / "config.toml").write_text(config)
        put(path, run / "best.safetensors")
        return open_run(run)

    def json_file(path: Path) -> object:
        return look_at_run(folder, path)

    def csv_file(path: Path) -> object:
        from filtergroups.config import TaskConfig
        from filtergroups.data.splits import read_split
        from filtergroups.data.table import read_table

        if path.suffix == ".split":
            return read_split(path)
        assert TaskConfig.model_fields
        rows = read_table(path)
        from filtergroups.guess import guess_config

        try:
            return guess_config(path, folder)
        except ValueError:
            return rows

    def toml_file(path: Path) -> object:
        from filtergroups.config_file import dump_config, load_config

        return dump_config(load_config(path))

    return {
        "image": image, "volume": volume, "onnx": onnx, "checkpoint": checkpoint, "json": json_file, "csv": csv_file,
        "toml": toml_file,
    }  # fmt: skip


def look_at_run(folder: Path, path: Path) -> object:
    """All of a report that needs no network, and the tables, of a run with one file replaced."""
    from filtergroups.config import ScansData
    from filtergroups.correction import load_corrections
    from filtergroups.data.patients import label_table
    from filtergroups.reporting.calibration import calibration_section, cost_section
    from filtergroups.reporting.collect import record_of_run
    from filtergroups.reporting.comparison import comparison_section
    from filtergroups.reporting.curves import curves
    from filtergroups.reporting.html import json_script
    from filtergroups.reporting.summary import summary_section
    from filtergroups.run import Run
    from filtergroups.tables import results_table

    run = folder / "json-run"
    if not run.exists():
        (run / "assignments").mkdir(parents=True)
        (run / "config.toml").write_text('[data]\nkind = "faces"\nroot = "faces"\n[network]\nname = "vgg11"\n')
        np.savez(run / "assignments" / "step_00000000.npz", **{"layers.0": np.full((4, 3), 1 / 3, np.float16)})
    for name, content in json_seeds().items():
        (run / name).unlink(missing_ok=True)
        (run / name).write_bytes(content)
    replaced = path.name.split("-", 1)[-1]
    put(path, run / replaced)
    if replaced == "labels.json":
        return label_table(ScansData(kind="scans", root=run))
    record = record_of_run(run)
    load_corrections(Run(run), "mode", 9)
    for result in record.results:
        results_table(result)
    made = [summary_section(record, "r"), calibration_section(record, "r"), cost_section(record, "r")]
    return made, comparison_section([record, record]), json_script(curves(record))


def put(path: Path, place: Path) -> None:
    """The file itself in another place, whatever it is."""
    if place.is_symlink() or place.exists():
        shutil.rmtree(place) if place.is_dir() and not place.is_symlink() else place.unlink()
    if path.is_symlink() or not path.is_file() or path.stat().st_size > 10**8:
        place.symlink_to(os.readlink(path) if path.is_symlink() else path)
    else:
        place.write_bytes(path.read_bytes())


def files_of(kind: str, folder: Path, count: int, seed: int) -> Iterator[Path]:
    """The special files, then the damaged ones, one at a time."""
    ending = {
        "image": ".png",
        "volume": ".nii",
        "onnx": ".onnx",
        "checkpoint": ".safetensors",
        "csv": ".csv",
        "toml": ".toml",
    }
    for n, name in enumerate(SPECIAL):
        replaced = JSON_FILES[n % len(JSON_FILES)]
        yield special(folder / (f"{name}-{replaced}" if kind == "json" else f"{name}{ending[kind]}"), name)
    if kind == "image":
        contents: Iterator[bytes] = damaged_files(count, seed)
    elif kind == "volume":
        contents = mutated_volumes(count, seed)
    elif kind == "json":
        seeds = json_seeds()
        streams = {name: mutated([content], count, seed) for name, content in seeds.items()}
        for n in range(count):
            name = JSON_FILES[n % len(JSON_FILES)]
            yield written(folder / f"now-{name}", next(streams[name]))
        return
    else:
        seeds_of = {
            "onnx": lambda: onnx_seeds(folder), "checkpoint": lambda: checkpoint_seeds(folder),
            "csv": lambda: [TABLE, TABLE, b"file,split\na.png,train\nb.png,test\n"], "toml": lambda: [CONFIG],
        }  # fmt: skip
        contents = mutated(seeds_of[kind](), count, seed)
    for n, content in enumerate(contents):
        end = ending[kind]
        if kind == "volume":
            end = ".nii.gz" if content.startswith(b"\x1f\x8b") else ".nii"
        if kind == "csv" and n % 3 == 2:
            end = ".split"
        yield written(folder / f"now{end}", content)


def written(path: Path, content: bytes) -> Path:
    path.unlink(missing_ok=True)
    path.write_bytes(content)
    return path


def special(path: Path, name: str) -> Path:
    if path.is_dir() and not path.is_symlink():
        path.rmdir()
    path.unlink(missing_ok=True)
    if name == "pipe":
        os.mkfifo(path)
    elif name in ("device", "endless"):
        path.symlink_to("/dev/zero" if name == "endless" else "/dev/tty")
    elif name == "folder":
        path.mkdir()
    elif name == "loop":
        path.symlink_to(path)
    elif name == "hole":
        with path.open("wb") as file:
            file.truncate(10**12)
    elif name == "nothing":
        path.write_bytes(b"")
    return path


# --- trying them ----------------------------------------------------------------------------------------------------


def peak() -> float:
    """MB: the most memory that this process had since it was last asked to forget."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def work(kind: str, folder: Path, count: int, seed: int, start: int, pipe: Any) -> None:
    """Try the files of a kind from a number on; what became of each goes through the pipe."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_DATA, (8 * 2**30, 8 * 2**30))  # the machine is kept whole whatever happens
    read = readers(folder)[kind]
    sys.stderr = io.StringIO()
    for number, path in enumerate(files_of(kind, folder, count, seed)):
        if number < start:
            continue
        pipe.send(("begins", number, str(path)))
        Path("/proc/self/clear_refs").write_text("5")  # forget the peak
        before, began = peak(), time.perf_counter()
        try:
            read(path)
            outcome, said = "accepted", ""
        except (ValueError, OSError) as error:
            said = str(error)
            ours = type(error).__module__.startswith("filtergroups") or isinstance(error, OSError)
            fine = "\n" not in said and said.isprintable() and ours
            outcome = "refused" if fine else "traceback"
            said = said if fine else f"{type(error).__name__}: {ascii(said)[:200]}\n{traceback.format_exc()[-800:]}"
        except Exception as error:  # noqa: BLE001  # that is what is looked for
            outcome, said = "traceback", f"{type(error).__name__}: {error}\n{traceback.format_exc()[-800:]}"
        pipe.send(("ended", outcome, said, time.perf_counter() - began, peak() - before))
    pipe.send(("done",))


def tried(kind: str, folder: Path, count: int, seed: int, tally: Tally, keep: Callable[[], None]) -> None:
    """All files of a kind, by a process that is replaced where a file kills or holds it."""
    context = multiprocessing.get_context("spawn")
    said_at = time.monotonic()
    while True:
        ours, theirs = context.Pipe()
        process = context.Process(target=work, args=(kind, folder, count, seed, tally.tried, theirs))
        process.start()
        theirs.close()
        where = ""  # between files: the next one is made
        try:
            while True:
                if not ours.poll(MOST_SECONDS if where else 600):
                    process.kill()
                    tally.hangs.append(where or f"{kind} {tally.tried}, as it was made")
                    break
                message = ours.recv()
                if message[0] == "done":
                    process.join()
                    return
                if message[0] == "begins":
                    where = f"{kind} {message[1]} ({Path(message[2]).name})"
                    continue
                _, outcome, said, seconds, memory = message
                name, where = where, ""
                tally.tried += 1
                tally.accepted += outcome == "accepted"
                tally.refused += outcome == "refused"
                if outcome == "traceback":
                    tally.tracebacks.append(f"{name}: {said}")
                tally.seconds, tally.memory = max(tally.seconds, seconds), max(tally.memory, memory)
                if time.monotonic() - said_at > 20:
                    said_at = time.monotonic()
                    keep()
                    print(f"{kind}: {tally.tried} tried", file=sys.stderr, flush=True)
        except EOFError:
            tally.tracebacks.append(f"{where}: the process ended with {process.exitcode}")
        process.join()
        tally.tried += 1
        keep()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--scale", type=float, default=1.0, help="share of the full number of files")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="where the files and the state go, to go on later")
    parser.add_argument("--only", choices=list(COUNTS), action="append")
    given = parser.parse_args()
    folder = given.folder or Path(tempfile.mkdtemp(prefix="filtergroups-fuzz-"))
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
    state = folder / f"tally-{given.seed}-{given.scale:g}.json"
    kept = json.loads(state.read_text()) if state.exists() else {}
    tallies = {kind: Tally(**kept.get(kind, {})) for kind in given.only or COUNTS}

    def keep() -> None:
        state.write_text(json.dumps({kind: asdict(tally) for kind, tally in tallies.items()}))

    for kind, tally in tallies.items():
        count = max(round(COUNTS[kind] * given.scale), 20)
        (folder / kind).mkdir(exist_ok=True)
        if tally.tried < count + len(SPECIAL):
            tried(kind, folder / kind, count, given.seed, tally, keep)
        keep()
    print("kind        tried  accepted  refused  tracebacks  hangs  worst memory  worst time")
    for kind, tally in tallies.items():
        print(
            f"{kind:<10}{tally.tried:>7}{tally.accepted:>10}{tally.refused:>9}{len(tally.tracebacks):>12}"
            f"{len(tally.hangs):>7}{tally.memory:>11.0f} MB{tally.seconds:>10.1f} s"
        )
    wrong = [text for tally in tallies.values() for text in (*tally.tracebacks, *tally.hangs)]
    large = [kind for kind, tally in tallies.items() if tally.memory > MOST_MEMORY]
    for text in wrong[:20]:
        print(f"\n{text}")
    if large:
        print(f"more than {MOST_MEMORY} MB: {', '.join(large)}")
    return 1 if wrong or large else 0


if __name__ == "__main__":
    sys.exit(main())
