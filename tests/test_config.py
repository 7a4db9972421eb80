"""A config is checked before anything is done."""

import math
import re
from typing import Annotated, Literal, get_args, get_origin

import pytest
import tomli_w

from filtergroups.config import (
    Config,
    ConfigError,
    Section,
)
from filtergroups.config_file import dump_config, load_config, make_config
from filtergroups.ranges import Range
from filtergroups.schedule import temperature_at
from tests.data.pictures import table_tree

FACES = {"data": {"kind": "faces", "root": "faces"}, "network": {"name": "vgg11"}}


def changed(section, **values):
    return {**FACES, section: {**FACES.get(section, {}), **values}}


@pytest.mark.parametrize(
    ("tree", "said"),
    [
        (changed("training", epoch=3), r"training\.epoch: unknown key; allowed here: epochs, batch_size"),
        (changed("data", sise=3), r"data\.sise: unknown key; allowed here: .*size"),
        ({**FACES, "colour": 1}, r"colour: unknown key; allowed here: seed, data"),
        (changed("training", epochs="ten"), r"training\.epochs: .*integer.*'ten'"),
        (
            changed("training", epochs=0),
            r"training\.epochs: expected an integer .* at most 1,000,000, found 0",
        ),
        (changed("training", epochs=5, finetune_epochs=5), "finetune_epochs is below epochs"),
        (changed("network", name="vgg12"), r"network\.name: .*'vgg11' or 'highresnet', found 'vgg12'"),
        (changed("data", kind="phases"), "'table', 'faces', 'scans', 'phantom'"),
        (changed("method", name="magic"), r"method\.name: .*'one_task'"),
        (
            {**changed("training", cost_factor=1.0), "method": {"name": "constant_mask"}},
            r"cost_factor is for a method that learns its groups .*'constant_mask'",
        ),
        (changed("data", size=8), "data.size is 16 or more for vgg11, found 8"),
        ({"network": {"name": "vgg11"}}, "data: expected a value, found none"),
        ({**FACES, "tasks": [{"name": "a", "kind": "regression"}]}, "are for data.kind = 'table'"),
    ],
)
def test_a_bad_config_is_refused_in_one_line_with_the_key(tree, said):
    with pytest.raises(ConfigError, match=said) as caught:
        make_config(tree)
    assert "\n" not in str(caught.value)


def numbers_of(section, loc=()):
    """Every number of the config: its place in the tree and whether it is an integer."""
    for name, field in section.model_fields.items():
        yield from _numbers_in(field.annotation, (*loc, name), field.metadata)


def _numbers_in(kind, loc, metadata=()):
    inner = get_args(kind)
    if isinstance(kind, type) and issubclass(kind, Section):
        yield from numbers_of(kind, loc)
    elif get_origin(kind) is Annotated:
        yield from _numbers_in(inner[0], loc, inner[1:])
    elif kind in (int, float):
        yield loc, kind, metadata
    elif get_origin(kind) is not Literal:
        for one in inner:
            if one is not Ellipsis:
                yield from _numbers_in(one, loc)


NUMBERS = list(numbers_of(Config))


def test_every_number_of_the_config_has_a_finite_range():
    assert len(NUMBERS) > 60
    for loc, kind, metadata in NUMBERS:
        ranges = [one for one in metadata if isinstance(one, Range)]
        assert len(ranges) == 1, f"{'.'.join(loc)}: {kind.__name__} without a range"
        assert math.isfinite(ranges[0].high - ranges[0].low)


@pytest.mark.parametrize("found", [math.inf, -math.inf, math.nan, 1e300, True, "1e", [1]])
@pytest.mark.parametrize("key", ["network.width", "network.hidden", "temperature.start", "temperature.floor",
    "temperature.rate", "training.learning_rate", "training.probability_factor", "training.batch_size",
    "training.threads", "training.devices", "training.epochs", "training.clip_norm", "data.size"])  # fmt: skip
def test_a_number_out_of_its_range_is_refused_by_name_with_the_range(tmp_path, key, found):
    section, name = key.split(".")
    with pytest.raises(ConfigError) as caught:
        make_config(changed(section, **{name: found}))
    assert re.fullmatch(rf"config: {section}\.{name}: expected an? (integer|number) .*\d and (at most|below) .*, "
                        r"found .*", str(caught.value))  # fmt: skip
    (tmp_path / "c.toml").write_text(tomli_w.dumps(FACES))
    with pytest.raises(ConfigError) as by_set:
        load_config(tmp_path / "c.toml", [f"{key}={tomli_w.dumps({'x': found})[4:].strip()}"])
    assert str(by_set.value).removeprefix(str(tmp_path / "c.toml")) == str(caught.value).removeprefix("config")


@pytest.mark.parametrize(
    ("tree", "said"),
    [
        (changed("training", learning_rate=1.0, probability_factor=2000.0), "the learning rate of p, is at most 10"),
        (changed("method", groups="all_subsets", threshold=0.19), r"method\.threshold is below 1 / 3|found 0\.19"),
        (changed("method", groups=[["age"], ["gender"]]), "contains the set of all tasks"),
        (changed("method", groups=[["age", "sex"], ["age", "gender"]]), "non-empty set of the tasks"),
        (changed("data", kind="phantom", shape=[4096, 4096, 4096]), "at most 500,000,000 voxels"),
    ],
)
def test_numbers_that_do_not_go_together_are_refused(tree, said):
    if tree["data"]["kind"] == "faces" and tree.get("method", {}).get("threshold"):
        tree = {**tree, "data": {**tree["data"], "tasks": ["age", "gender", "race"]}}
    with pytest.raises(ConfigError, match=said):
        make_config(tree)


def test_all_subsets_of_many_tasks_are_refused_at_once(tmp_path):
    tree = table_tree(tmp_path, tmp_path / "t.csv")
    tree["tasks"] = [{"name": f"t{n}", "kind": "regression"} for n in range(40)]
    make_config(tree)
    with pytest.raises(ConfigError, match=r"at most 1,023 groups, found 40 tasks with 2\^40 - 1 subsets"):
        make_config({**tree, "method": {"groups": "all_subsets"}})


@pytest.mark.parametrize(
    ("task", "said"),
    [
        ({"kind": "classification", "labels": ["a"]}, "2 or more different names"),
        ({"kind": "classification", "labels": ["a", "a"]}, "2 or more different names"),
        ({"kind": "classification", "labels": ["a", "b"], "classes": 3}, "every one of the 3 classes, found 2"),
        ({"kind": "segmentation", "classes": 300}, "at most 256 classes, found 300"),
    ],
)
def test_classes_that_cannot_be_are_refused(tmp_path, task, said):
    tree = table_tree(tmp_path, tmp_path / "t.csv")
    tree["tasks"] = [{"name": "a", **task}]
    with pytest.raises(ConfigError, match=said):
        make_config(tree)


def test_tables_need_tasks_of_their_own(tmp_path):
    tree = table_tree(tmp_path, tmp_path / "t.csv")
    tree["tasks"] = []
    with pytest.raises(ConfigError, match="at least one"):
        make_config(tree)
    tree["tasks"] = [{"name": "a", "kind": "regression"}] * 2
    with pytest.raises(ConfigError, match="unique"):
        make_config(tree)


@pytest.mark.parametrize(
    ("task", "said"),
    [
        ({"name": "error"}, "'error' is a column of every table of predictions"),
        ({"name": "a", "scale": 0}, r"tasks\.0\.scale: expected a number other than 0"),
        ({"name": "a", "scale": float("nan")}, r"tasks\.0\.scale: expected a number .*, found nan"),
    ],
)
def test_tasks_that_could_not_be_trained_or_written_are_refused(tmp_path, task, said):
    tree = table_tree(tmp_path, tmp_path / "t.csv")
    tree["tasks"] = [{"kind": "regression", **task}]
    with pytest.raises(ConfigError, match=said):
        make_config(tree)


@pytest.mark.parametrize("written", ["", "none"])
def test_scans_may_have_one_task_only(tmp_path, written):
    data = {"kind": "scans", "root": str(tmp_path), "labels": written}
    config = make_config({"data": data, "network": {"name": "highresnet"}})
    (tmp_path / "c.toml").write_text(dump_config(config))
    assert config.data.labels is load_config(tmp_path / "c.toml").data.labels is None
    assert load_config(tmp_path / "c.toml").data.target == "ct.nii.gz"


def test_an_extended_file_s_runs_are_relative_to_it(tmp_path):
    (tmp_path / "below").mkdir()
    above = make_config({**FACES, "method": {"name": "fixed_mask", "mask_from": "../runs/my"}})
    (tmp_path / "above.toml").write_text(dump_config(above))
    (tmp_path / "below" / "c.toml").write_text('extends = "../above.toml"')
    assert load_config(tmp_path / "below" / "c.toml").method.mask_from == tmp_path.parent / "runs" / "my"


def test_overrides_reach_every_key_and_paths_start_at_the_file(tmp_path):
    file = tmp_path / "sub" / "c.toml"
    file.parent.mkdir()
    file.write_text(dump_config(make_config(FACES)))
    config = load_config(file, ["training.epochs=3", "method.name=hard_sharing", "data.tasks=['age']", "seed = 7"])
    assert (config.training.epochs, config.method.name, config.data.tasks, config.seed) == (
        3,
        "hard_sharing",
        ["age"],
        7,
    )
    assert config.data.root == tmp_path / "sub" / "faces"
    for bad in ("training.epochs", "=3", "training..epochs=3", "seed.x=3"):
        with pytest.raises(ConfigError, match="--set"):
            load_config(file, [bad])
    for deep in ("[" * 100_000, "{a=" * 5000):  # a parser would go after them until Python stops it
        with pytest.raises(ConfigError, match=r"training\.epochs: expected an integer"):
            load_config(file, [f"training.epochs={deep}"])


def test_a_config_survives_being_written(tmp_path):
    tree = table_tree(tmp_path, tmp_path / "t.csv")
    tree["training"]["task_weights"] = {"level": 2.0}
    config = make_config(tree)
    file = tmp_path / "c.toml"
    file.write_text(dump_config(config))
    assert load_config(file) == config


@pytest.mark.parametrize("content", [b"seed = ", b"\xff\xfe", None])
def test_a_file_that_is_no_toml_is_one_line(tmp_path, content):
    file = tmp_path / "c.toml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match=r"c\.toml") as caught:
        load_config(file)
    assert "\n" not in str(caught.value)


def test_the_paper_s_setting_is_a_preset(tmp_path):
    file = tmp_path / "run.toml"
    sections = '[data]\nkind = "faces"\nroot = "x"\n[network]\nname = "vgg11"\n[training]\nepochs = 3\n'
    file.write_text(f'extends = "preset:paper"\n{sections}')
    config = load_config(file)
    assert (config.training.probability_factor, config.training.batch_size, config.temperature.rate) == (1, 10, 1e-5)
    assert not config.temperature.noise_warmup
    assert config.training.epochs == 3
    file.write_text(file.read_text().replace("preset:paper", "preset:papers"))
    with pytest.raises(ConfigError, match=r"extends: expected one of preset:paper, found 'preset:papers'"):
        load_config(file)


def test_groups_have_own_banks_until_their_kernels_are_fixed():
    def config(**settings):
        training = {"epochs": 4, **settings.pop("training", {})}
        data = {"kind": "table", "table": "t.csv", "root": ".", "size": 32}
        tasks = [{"name": "a", "kind": "regression"}, {"name": "b", "kind": "regression"}]
        return make_config(
            {"data": data, "tasks": tasks, "network": {"name": "vgg11"}, "training": training, **settings}
        )

    fixed_later, never = config(training={"finetune_epochs": 2}), config()
    assert fixed_later.has_own_banks
    assert not never.has_own_banks
    assert {temperature_at(step, 100, fixed_later.annealing) for step in (0, 50, 99)} == {1.0}
    assert temperature_at(99, 100, never.annealing) == pytest.approx(0.1)
    assert not config(training={"finetune_epochs": 2}, method={"own_banks": False}).has_own_banks
    assert not config(method={"name": "hard_sharing", "own_banks": True}).has_own_banks
    with pytest.raises(ConfigError, match=r"found no training\.finetune_epochs; set those, or own_banks = false"):
        config(method={"own_banks": True})
    with pytest.raises(ConfigError, match=r"method\.shares names groups of \['a', 'b', 'shared'\], found 'c'"):
        config(method={"name": "fixed_mask", "shares": {"c": 1.0}})
    with pytest.raises(ConfigError, match=r"method\.shares is for the method 'fixed_mask'"):
        config(method={"shares": {"a": 1.0}})
