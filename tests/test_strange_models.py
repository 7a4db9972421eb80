"""An ONNX file or a checkpoint of somebody else runs nothing, writes nowhere it names, and costs little."""

import json
import subprocess
import sys
import time

import onnx
import pytest
import torch
from onnx import TensorProto, helper
from safetensors.torch import load_file, save_file

import filtergroups as fg
from filtergroups.compaction.build import compact
from filtergroups.compaction.files import save_compact
from filtergroups.data.errors import DataError
from filtergroups.shipped import open_shipped, predict_with_file
from filtergroups.shipped_model import KEY, looked_through
from tests.data.pictures import picture
from tests.test_reading import HOSTILE, special_files

ABOUT = {
    "kind": "images", "image_shape": [3, 16, 16], "made_by": "filtergroups",
    "constants": {"size": 16, "channels": 3, "mean": [0.5] * 3, "deviation": [0.2] * 3, "classes": {}},
    "tasks": [
        {"kind": "Regression", "name": "age", "scale": 100.0, "offset": 0.0, "unit": "", "labels": None},
        {"kind": "Classification", "name": "sex", "classes": 2, "labels": ["=1+1", "b"], "correction": None},
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A small network as it is shipped."""
    torch.manual_seed(0)
    network = fg.vgg11([fg.Regression("age", scale=100), fg.Classification("sex", classes=2)], width=0.0625, hidden=4)
    for assignment in network.assignments():
        assignment.fix()
    path = tmp_path_factory.mktemp("model") / "model.onnx"
    save_compact(compact(network.eval(), image_shape=(3, 16, 16)), path, "onnx", ABOUT)
    return path


@pytest.fixture
def image(tmp_path):
    picture(tmp_path / "image.png", 0.5, True, 0)
    return tmp_path / "image.png"


def changed(model, path, change, about=None):
    """The file after a change of its graph or of what it says."""
    made = onnx.load(str(model))
    if change is not None:
        change(made)
    if about is not None:
        (entry,) = made.metadata_props
        entry.value = json.dumps({**json.loads(entry.value), **about})
        assert entry.key == KEY
    path.write_bytes(made.SerializeToString())
    return path


def refused(path):
    began = time.perf_counter()
    with pytest.raises(DataError, match="expected an ONNX file") as caught:
        open_shipped(path)
    assert "\n" not in str(caught.value)
    assert time.perf_counter() - began < 10
    return str(caught.value)


def test_what_we_export_is_accepted_and_answers(model, image, tmp_path):
    done = predict_with_file(model, [image], tmp_path / "out.csv")
    assert done.count == 1
    assert "'=1+1" in (tmp_path / "out.csv").read_text() or ",b," in (tmp_path / "out.csv").read_text()
    assert not any(line.startswith("=") for line in (tmp_path / "out.csv").read_text().replace(",", "\n").splitlines())


def loop(made):
    body = helper.make_graph(
        [helper.make_node("Identity", ["more"], ["again"])], "body",
        [helper.make_tensor_value_info(*one, []) for one in (("i", TensorProto.INT64), ("more", TensorProto.BOOL))],
        [helper.make_tensor_value_info("again", TensorProto.BOOL, [])],
    )  # fmt: skip
    made.graph.initializer.append(helper.make_tensor("yes", TensorProto.BOOL, [], [True]))
    made.graph.node.append(helper.make_node("Loop", ["", "yes"], [], body=body))


def external(made):
    tensor = made.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    entry = tensor.external_data.add()
    entry.key, entry.value = "location", "../../../etc/passwd"


def large(made):
    tensor = made.graph.initializer[0]
    del tensor.dims[:]
    tensor.dims.extend([2**32, 1])


def filled(made):
    made.graph.initializer.append(helper.make_tensor("n", TensorProto.INT64, [1], [2**33]))
    made.graph.node.append(helper.make_node("ConstantOfShape", ["n"], ["all"]))


def foreign(made):
    made.opset_import.append(helper.make_opsetid("com.microsoft", 1))


def other_outputs(made):
    del made.graph.output[1:]


@pytest.mark.parametrize("change", [loop, external, large, filled, foreign, other_outputs])
def test_a_graph_that_is_no_plain_network_is_refused_before_it_is_opened(model, tmp_path, change):
    refused(changed(model, tmp_path / "model.onnx", change))


TASK = ABOUT["tasks"][0]


@pytest.mark.parametrize(
    "about",
    [
        *({"tasks": [{**TASK, "name": name}, ABOUT["tasks"][1]]} for name in ("../../x", "/tmp/x", "..", *HOSTILE)),
        {"tasks": [{**TASK, "scale": 0}, ABOUT["tasks"][1]]}, {"tasks": [{**TASK, "kind": "os.system"}]}, {"tasks": []},
        {"tasks": [{**TASK, "correction": {"kind": "scale", "value": -1.0, "examples": 9}}, ABOUT["tasks"][1]]},
        {"tasks": [TASK, {**ABOUT["tasks"][1], "labels": ["one"]}]}, {"kind": "scans"}, {"image_shape": [3, 99999, 16]},
        {"constants": {**ABOUT["constants"], "size": 10**9}},
        {"constants": {**ABOUT["constants"], "deviation": [0.0] * 3}},
        {"constants": {}}, {"constants": {**ABOUT["constants"], "channels": 1}},
    ],
)  # fmt: skip
def test_what_a_file_says_of_itself_is_checked(model, tmp_path, about):
    refused(changed(model, tmp_path / "model.onnx", None, about))


def test_a_network_that_grows_without_end_stops_at_its_bound_of_memory(model, image, tmp_path):
    def growing(made):
        del made.graph.node[:]
        last = "images"
        for n in range(24):
            made.graph.node.append(helper.make_node("Concat", [last, last], [f"c{n}"], axis=1))
            last = f"c{n}"
        made.graph.node.append(helper.make_node("ReduceMean", [last], ["age"]))
        made.graph.node.append(helper.make_node("ReduceMean", [last], ["sex"]))

    path = changed(model, tmp_path / "model.onnx", growing)
    with pytest.raises(DataError, match=r"needs more than 1\.5 GB of memory"):
        predict_with_file(path, [image], tmp_path / "out.csv")
    assert not (tmp_path / "out.csv").exists()


def test_special_files_are_no_models(tmp_path):
    for name in special_files(tmp_path):
        refused(tmp_path / name)
        with pytest.raises((ValueError, OSError)):
            fg.load_compact(tmp_path / name)


def test_a_scan_is_never_written_beside_the_output_folder(tmp_path):
    from filtergroups.config import ScansData
    from filtergroups.scan_inference import scan_files

    scans = ScansData(kind="scans", root=tmp_path)
    for name in ("...nii.gz", "..nii.gz", ".nii.gz"):
        (tmp_path / name).write_bytes(b"")
        if name == ".nii.gz":
            continue  # its name is that of the file
        with pytest.raises(DataError, match="expected a scan whose name can be a folder's"):
            scan_files([tmp_path / name], scans)


def test_a_network_is_not_built_larger_than_its_checkpoint(tmp_path):
    from filtergroups.checkpoint import Progress, save_checkpoint
    from filtergroups.restored import open_run
    from filtergroups.run import RunError

    network = fg.vgg11([fg.Regression("age"), fg.Classification("gender", classes=2)], width=0.0625)
    constants = {"size": 16, "channels": 3, "mean": [0.5] * 3, "deviation": [0.2] * 3, "classes": {}}
    save_checkpoint(tmp_path / "best.safetensors", network, Progress(constants=constants, names={}, plain={}))
    config = '[data]\nkind = "faces"\nroot = "faces"\nsize = 16\n[network]\nname = "vgg11"\nwidth = {}\n'
    (tmp_path / "config.toml").write_text(config.format(0.0625))
    open_run(tmp_path)
    (tmp_path / "config.toml").write_text(config.format(16))
    began = time.perf_counter()
    with pytest.raises(RunError, match="expected the weights of this config's network, found others"):
        open_run(tmp_path)
    assert time.perf_counter() - began < 10


def test_the_progress_of_a_checkpoint_is_checked(tmp_path):
    from filtergroups.checkpoint import FORMAT, load_checkpoint
    from filtergroups.run import RunError

    for progress in (
        "[]",
        "{",
        '{"step": "1"}',
        '{"step": -1}',
        '{"names": {"a": 1}}',
        '{"best": 3}',
        "[" * 99999,
        "null",
    ):
        save_file({"a": torch.zeros(1)}, tmp_path / "x.safetensors", {"format": FORMAT, "progress": progress})
        with pytest.raises(RunError, match="expected a whole checkpoint") as caught:
            load_checkpoint(tmp_path / "x.safetensors")
        assert "\n" not in str(caught.value)
    assert load_file(tmp_path / "x.safetensors")["a"].shape == (1,)
    content = (tmp_path / "x.safetensors").read_bytes()
    for size in (0, 7, 9, len(content) - 1):
        (tmp_path / "x.safetensors").write_bytes(content[:size])
        with pytest.raises(RunError):
            load_checkpoint(tmp_path / "x.safetensors")


def divided(made):
    made.graph.initializer.append(helper.make_tensor("least", TensorProto.INT64, [1], [-(2**63)]))
    made.graph.initializer.append(helper.make_tensor("minus", TensorProto.INT64, [1], [-1]))
    made.graph.node.append(helper.make_node("Div", ["least", "minus"], ["none"]))


def averaged(made):
    made.graph.node.append(helper.make_node("Shape", ["images"], ["lengths"]))
    made.graph.node.append(helper.make_node("ReduceMean", ["lengths"], ["none"]))


def split_badly(made):
    made.graph.initializer.append(helper.make_tensor("parts", TensorProto.INT64, [2], [-5, 8]))
    made.graph.node.append(helper.make_node("Split", ["images", "parts"], ["none", "more"], axis=1))


def ungrouped(made):
    made.graph.initializer.append(helper.make_tensor("w", TensorProto.FLOAT, [3, 1, 1, 1], [1.0] * 3))
    made.graph.node.append(helper.make_node("ConvTranspose", ["images", "w"], ["none"], group=0))


@pytest.mark.parametrize("change", [divided, averaged, split_badly, ungrouped])
def test_a_step_in_which_onnxruntime_would_end_the_process_is_refused_before(model, tmp_path, change):
    with pytest.raises(DataError, match="expected an ONNX file") as caught:
        looked_through(changed(model, tmp_path / "m.onnx", change))
    assert "\n" not in str(caught.value)


def test_memory_does_not_grow_with_the_number_of_images_that_a_file_wants_large(tmp_path, image):
    """An ONNX file says how large images are: 24 of 4096 × 4096 pixels take what one takes."""
    size = 4096
    ends = [helper.make_tensor(name, TensorProto.INT64, [1], [n]) for name, n in (("0", 0), ("1", 1))]
    graph = helper.make_graph(
        [
            helper.make_node("GlobalAveragePool", ["images"], ["mean"]),
            helper.make_node("Flatten", ["mean"], ["flat"]),
            helper.make_node("Slice", ["flat", "0", "1", "1"], ["age"]),
        ],
        "graph", [helper.make_tensor_value_info("images", TensorProto.FLOAT, ["batch", 3, size, size])],
        [helper.make_tensor_value_info("age", TensorProto.FLOAT, ["batch", 1])], ends,
    )  # fmt: skip
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    about = {**ABOUT, "constants": {**ABOUT["constants"], "size": size}, "image_shape": [3, size, size]}
    entry = made.metadata_props.add()
    entry.key, entry.value = KEY, json.dumps({"format": "filtergroups compact 1", **about, "tasks": ABOUT["tasks"][:1]})
    (tmp_path / "m.onnx").write_bytes(made.SerializeToString())
    code = (
        "import sys\nfrom pathlib import Path\nfrom filtergroups.shipped import predict_with_file as p\n"
        "folder = Path(sys.argv[1]); p(folder / 'm.onnx', [folder / 'image.png'] * 24, folder / 'out.csv')\n"
        "print(Path('/proc/self/status').read_text().split('VmHWM:')[1].split()[0])"  # rusage has the parent's too
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 1_000_000  # kB


PREDICT = """
import sys
import filtergroups.shipped_session as bounds
from filtergroups.cli import main
bounds.SECONDS_AN_IMAGE = 1.0
sys.argv[1:] = ["predict", *sys.argv[1:]]
main()
"""


def test_one_step_that_takes_for_ever_ends_in_one_line(model, image, tmp_path):
    """onnxruntime stops between steps only: a convolution of 200 × 200 over 1000 × 1000 takes it minutes."""

    def endless(made):
        pads, weight = [0, 0, 500, 500, 0, 13, 500, 500], [16, 16, 200, 200]
        made.graph.initializer.append(helper.make_tensor("pads", TensorProto.INT64, [8], pads))
        zeros = bytes(4 * 16 * 16 * 200 * 200)
        made.graph.initializer.append(helper.make_tensor("w", TensorProto.FLOAT, weight, zeros, raw=True))
        made.graph.node.insert(0, helper.make_node("Pad", ["images", "pads"], ["large"]))
        made.graph.node.insert(1, helper.make_node("Conv", ["large", "w"], ["slow"]))
        made.graph.node.insert(2, helper.make_node("ReduceMax", ["slow"], ["most"], keepdims=1))
        made.graph.node.insert(3, helper.make_node("Add", ["images", "most"], ["used"]))
        for node in made.graph.node[4:]:
            node.input[:] = ["used" if name == "images" else name for name in node.input]

    path = changed(model, tmp_path / "slow.onnx", endless)
    command = [sys.executable, "-c", PREDICT, path, *[image] * 4, "-o", tmp_path / "out.csv"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("error: the ONNX file takes more than 4 s for 4 images")
    assert "Traceback" not in done.stderr
