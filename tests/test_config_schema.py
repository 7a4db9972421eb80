"""The schema that editors check and complete configs by."""

import json
import re
import tomllib
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from filtergroups.config_file import load_config
from filtergroups.config_schema import SCHEMA, config_schema
from filtergroups.guess import guess_config
from tests.data.pictures import picture_table

ROOT = Path(__file__).parents[1]
VALIDATOR = Draft202012Validator(json.loads(SCHEMA.read_text(encoding="utf-8")))
WHOLE = '[data]\nkind = "faces"\nroot = "x"\n[network]\nname = "vgg11"\n'


def complaints(text):
    return [problem.message for problem in VALIDATOR.iter_errors(tomllib.loads(text))]


def test_the_file_is_what_the_config_says():
    Draft202012Validator.check_schema(config_schema())
    assert json.loads(SCHEMA.read_text(encoding="utf-8")) == config_schema(), "run: make schema"


def test_the_configs_of_the_readme_fit():
    configs = re.findall(r"```toml\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert len(configs) == 2
    for config in configs:
        assert complaints(config) == []


def test_files_that_extend_others_fit():
    texts = [file.read_text(encoding="utf-8") for file in sorted((ROOT / "experiments").glob("*/*.toml"))]
    extending = [text for text in texts if "extends" in tomllib.loads(text)]
    assert len(extending) > 30
    for text in extending:
        assert complaints(text) == []


def test_init_points_the_editor_to_a_schema_that_its_config_fits(tmp_path):
    text = guess_config(picture_table(tmp_path), tmp_path / "images")
    first = text.splitlines()[0]
    assert first == f"#:schema {SCHEMA.resolve().as_uri()}"
    assert complaints(text) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("seed = 1\n", "'data' is a required property"),
        (WHOLE.replace('root = "x"\n', ""), "'root' is a required property"),
        (WHOLE.replace('kind = "faces"\n', ""), "'kind' is a required property"),
        (WHOLE.replace('"faces"', '"table"'), "'table' is a required property"),
        (WHOLE.replace('"faces"', '"face"'), "is not valid under any"),
        (WHOLE + "widht = 2\n", "'widht' was unexpected"),
        (WHOLE + 'width = "wide"\n', "'wide' is not of type 'number'"),
        ('extends = "a.toml"\n[training]\nepochs = 0\n', "0 is less than the minimum of 1"),
        ('extends = "a.toml"\n[data]\nrooot = "x"\n', "is not valid under any"),
        ("extends = 1\n", "1 is not of type 'string'"),
    ],
)
def test_a_mistake_is_marked(text, said):
    def leaves(problems):
        for problem in problems:
            yield problem.message
            yield from leaves(problem.context)

    assert complaints(WHOLE) == []
    found = list(leaves(VALIDATOR.iter_errors(tomllib.loads(text))))
    assert any(said in message for message in found), found


def test_a_part_of_the_data_and_an_extended_file_make_a_whole(tmp_path):
    (tmp_path / "a.toml").write_text(WHOLE)
    part = 'extends = "a.toml"\n[data]\nselection = 0.1\n'
    (tmp_path / "b.toml").write_text(part)
    assert complaints(part) == []
    assert load_config(tmp_path / "b.toml").data.selection == 0.1
