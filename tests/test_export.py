"""A shipped network says what the run's mode network says, anywhere, without the run."""

import csv
import json
import re
import subprocess
import sys
from pathlib import Path

import nibabel
import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from typer.testing import CliRunner

import filtergroups as fg
from filtergroups.cli import app
from filtergroups.config_file import make_config
from filtergroups.data.examples import DataError
from filtergroups.data.phantom import write_phantom
from filtergroups.exporting import export
from filtergroups.inference import predict
from filtergroups.restored import open_run
from filtergroups.run import Run
from filtergroups.shipped import open_shipped
from filtergroups.statistics import use_recalibrated
from filtergroups.training import train
from tests.backbones import BACKBONES
from tests.data.pictures import picture_table, table_tree
from tests.laws import fix_at_random, randomise

CLI = CliRunner()


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """A trained run on pictures, calibrated at its mode."""
    folder = tmp_path_factory.mktemp("pictures")
    table = picture_table(folder, 150)
    tree = table_tree(folder, table, epochs=4)
    tree["tasks"][0]["unit"] = "points"
    run = train(make_config(tree), folder / "run").path
    fg.calibrate(run, samples=0)
    return run


@pytest.fixture(scope="module")
def scans(tmp_path_factory):
    """A trained run on small phantoms."""
    folder = tmp_path_factory.mktemp("scans")
    tree = {
        "data": {
            "kind": "phantom", "root": str(folder / "phantom"), "patients": 4, "shape": [32, 24, 8],
            "spacing": [12.0, 12.0, 12.0], "patch": 16, "padding": 2, "patches_per_patient": 4,
            "cache": str(folder / "cache"),
        },
        "network": {"name": "highresnet", "width": 0.25}, "method": {"init": "shared"},
        "training": {"epochs": 2, "batch_size": 4},
    }  # fmt: skip
    run = train(make_config(tree), folder / "run").path
    write_phantom(folder / "new", 1, 9, shape=(32, 24, 8), spacing=(12.0, 12.0, 12.0))
    return run, folder / "new"


def rows_of(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def images_of(run):
    return sorted((Path(Run.open(run).config().data.root)).rglob("*.png"))[:12]


def test_a_shipped_file_predicts_what_the_run_s_mode_network_does(pictures, tmp_path):
    made = export(pictures, out=tmp_path / "model.onnx")
    predict(pictures, images_of(pictures), tmp_path / "run.csv", samples=0)
    done = predict(made.path, images_of(pictures), tmp_path / "onnx.csv")
    assert done.notes == ["90 % intervals and probabilities are corrected, as `calibrate` fitted them"]
    expected, found = rows_of(tmp_path / "run.csv"), rows_of(tmp_path / "onnx.csv")
    assert [list(row) for row in found] == [list(row) for row in expected]
    for one, two in zip(found, expected, strict=True):
        assert one["file"] == two["file"]
        assert one["pattern"] == two["pattern"]
        for column in set(one) - {"file", "pattern", "error"}:
            assert float(one[column]) == pytest.approx(float(two[column]), rel=1e-3, abs=1e-3), column


def test_a_shipped_file_does_not_tell_where_it_was_made(pictures, tmp_path):
    out = tmp_path / "model.onnx"
    export(pictures, out=out, measure=False)
    content = out.read_bytes()
    for place in (Path(fg.__file__).parent, pictures, Path.home()):
        assert str(place).encode() not in content
    assert b".py" not in content


def test_a_shipped_file_needs_neither_torch_nor_the_run(pictures, tmp_path):
    export(pictures, out=tmp_path / "model.onnx")
    words = ["predict", tmp_path / "model.onnx", images_of(pictures)[0].parent, "-o", tmp_path / "out.csv"]
    program = f"""
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "lightning_fabric", "monai"):
            raise ImportError("not here: " + name)
sys.meta_path.insert(0, Refuse())
from filtergroups.cli import main
sys.argv = ["filtergroups", *{[str(word) for word in words]!r}]
main()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(rows_of(tmp_path / "out.csv")) > 3


def test_what_a_user_must_know_is_inside_the_file(pictures, tmp_path):
    made = export(pictures, out=tmp_path / "model.onnx")
    about = open_shipped(made.path).about
    level, pattern = about["tasks"]
    assert (level["name"], level["unit"], level["scale"]) == ("level", "points", 100.0)
    assert level["correction"]["kind"] == "constant"
    assert pattern["labels"] == ["plain", "striped"]
    assert about["constants"]["size"] == 16
    assert len(about["constants"]["mean"]) == 3
    text = (tmp_path / "model.onnx").read_bytes()
    assert str(tmp_path.parent).encode() not in text  # nobody's folders
    model = onnx.load(made.path)
    assert [d.dim_param or d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim] == [
        "batch", 3, "height", "width",
    ]  # fmt: skip
    onnx.checker.check_model(model)


@pytest.mark.parametrize("to", ["pt2", "safetensors"])
def test_torch_formats_give_the_mode_network_s_outputs(pictures, tmp_path, to):
    made = export(pictures, to=to, out=tmp_path / f"model.{to}", measure=False)
    images = torch.randn(5, 3, 16, 16)
    restored = open_run(pictures)
    use_recalibrated(restored, 0)
    if to == "pt2":
        files = {"filtergroups.json": ""}
        network = torch.export.load(made.path, extra_files=files).module()
        assert json.loads(files["filtergroups.json"])["tasks"][0]["name"] == "level"
    else:
        network, about = fg.load_compact(made.path)
        assert about["tasks"][0]["name"] == "level"
    with torch.no_grad():
        expected, found = restored.network(images), network(images)
    for task in expected:
        torch.testing.assert_close(found[task], expected[task], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["resnet18", "unet", "net3d", "mobilenet", "highresnet"])
def test_lifted_networks_run_in_onnxruntime_at_any_batch(name, tmp_path):
    pixels = [fg.ImageRegression("ct"), fg.Segmentation("organs", classes=3)]
    tasks = pixels if name in ("unet", "net3d", "highresnet") else [fg.Regression("age"), fg.Classification("gender")]
    torch.manual_seed(0)
    if name == "highresnet":
        network, shape = fg.highresnet(tasks, width=0.25), (4, 1, 16, 16)
    else:
        make, shape = BACKBONES[name]
        network = fg.lift(make(), tasks)
    randomise(network)
    fix_at_random(network)
    network.eval()
    small = fg.compact(network, image_shape=shape[1:])
    fg.save_compact(small, tmp_path / "model.onnx", "onnx", {})
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    for batch in (1, 3):
        images = torch.randn(batch, *shape[1:])
        if 3 in small.varies and batch == 3:
            images = torch.cat([images, images], 3)
        outputs = session.run([task.name for task in tasks], {"images": images.numpy()})
        with torch.no_grad():
            expected = network(images)
        for task, output in zip(tasks, outputs, strict=True):
            scale = expected[task.name].abs().max().clamp_min(1)
            assert np.abs(output - expected[task.name].numpy()).max() / scale < 1e-4


def test_scans_are_predicted_from_the_file_alone(scans, tmp_path):
    run, new = scans
    made = export(run, out=tmp_path / "model.onnx", measure=False)
    predict(run, [new], tmp_path / "run", samples=0)
    predict(made.path, [new], tmp_path / "onnx")
    found = sorted(path.relative_to(tmp_path / "run") for path in (tmp_path / "run").rglob("*.nii.gz"))
    assert found
    for path in found:
        one, two = (nibabel.load(tmp_path / way / path).get_fdata() for way in ("run", "onnx"))
        np.testing.assert_allclose(one, two, rtol=1e-3, atol=0.05)


def test_one_task_alone_is_smaller(pictures, tmp_path):
    whole = export(pictures, to="safetensors", out=tmp_path / "all.safetensors")
    alone = export(pictures, to="safetensors", tasks=["pattern"], out=tmp_path / "one.safetensors")
    assert alone.rows[1].multiplications < whole.rows[1].multiplications
    assert alone.path.stat().st_size < whole.path.stat().st_size
    names = [row.name for row in whole.rows]
    assert names == [
        "grouped network at its mode",
        "compact, level, pattern",
        "compact, level alone",
        "compact, pattern alone",
    ]
    kept = json.loads((pictures / "export.json").read_text())
    assert [entry["file"] for entry in kept[-2:]] == [str(whole.path), str(alone.path)]
    assert set(kept[-1]["rows"][0]["latency_ms"]) == {"1", "32"}


def test_the_command_prints_before_and_after(pictures, tmp_path):
    done = CLI.invoke(app, ["export", str(pictures), "-o", str(tmp_path / "m.onnx")])
    assert done.exit_code == 0, done.output
    assert re.search(r"compact, level, pattern +[\d,]+ \(\d+%\) +[\d.]+ M \(\d+%\)", done.output)
    assert f"wrote {tmp_path / 'm.onnx'}" in done.output


def test_what_a_user_gets_wrong_is_one_line(pictures, tmp_path):
    def said(*words):
        done = CLI.invoke(app, [str(word) for word in words])
        assert done.exit_code == 2
        assert len(done.output.strip().splitlines()) == 1, done.output
        return done.output

    (tmp_path / "there.onnx").write_text("x")
    assert "use --force" in said("export", pictures, "-o", tmp_path / "there.onnx")
    assert "['level', 'pattern'], found 'age'" in said("export", pictures, "--task", "age", "-o", tmp_path / "a.onnx")
    assert "['onnx', 'pt2', 'safetensors'], found 'tflite'" in said("export", pictures, "--to", "tflite")
    assert "expected a run folder" in said("export", tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "config.toml").write_text((pictures / "config.toml").read_text())
    assert "expected a checkpoint, found none" in said("export", tmp_path / "empty")
    image = images_of(pictures)[0]
    assert "expected an ONNX file" in said("predict", tmp_path / "there.onnx", image, "-o", tmp_path / "o.csv")
    assert "found none" in said("predict", tmp_path / "nowhere.onnx", image, "-o", tmp_path / "o.csv")
    assert not (tmp_path / "o.csv").exists()


def test_a_foreign_onnx_file_is_refused(tmp_path):
    there, here = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1]) for name in ("x", "y"))
    graph = onnx.helper.make_graph([onnx.helper.make_node("Relu", ["x"], ["y"])], "other", [there], [here])
    opsets = [onnx.helper.make_opsetid("", 17)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8), tmp_path / "other.onnx")
    with pytest.raises(DataError, match="found another; export the run first"):
        open_shipped(tmp_path / "other.onnx")


def test_a_foreign_safetensors_file_is_refused(pictures):
    with pytest.raises(ValueError, match="expected a compact network"):
        fg.load_compact(Run.open(pictures).checkpoint("best"))


def test_the_lines_of_plain_onnxruntime_code_say_the_same(pictures, tmp_path, capsys, monkeypatch):
    export(pictures, out=tmp_path / "model.onnx", measure=False)
    image = images_of(pictures)[0]
    (tmp_path / "image.png").write_bytes(image.read_bytes())
    text = (Path(__file__).parents[1] / "docs" / "shipping.md").read_text(encoding="utf-8")
    code = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    assert code is not None
    monkeypatch.chdir(tmp_path)
    exec(compile(code[1], "shipping.md", "exec"), {})
    printed = capsys.readouterr().out
    predict(tmp_path / "model.onnx", [image], tmp_path / "out.csv")
    (row,) = rows_of(tmp_path / "out.csv")
    level, pattern = (line.split() for line in printed.splitlines())
    assert level[0] == "level"
    assert level[2] == "points"
    assert float(level[1]) == pytest.approx(float(row["level"]), rel=1e-2)
    assert pattern == ["pattern", row["pattern"]]
