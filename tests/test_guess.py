"""The config that `filtergroups init` writes."""

import tomllib

import pytest
from PIL import Image

from filtergroups.guess import guess_config


@pytest.mark.parametrize(("rows", "epochs_for_groups"), [(60, 20), (400, 20), (1600, 9), (4000, 4)])
def test_the_groups_have_some_300_steps_and_at_most_half_of_the_epochs(tmp_path, rows, epochs_for_groups):
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    lines = [f"a.png,{n % 7}.5" for n in range(rows)]
    table = tmp_path / "labels.csv"
    table.write_text("\n".join(["image,level", *lines]) + "\n")
    training = tomllib.loads(guess_config(table, tmp_path))["training"]
    assert training["epochs"] - training["finetune_epochs"] == epochs_for_groups
    steps_per_epoch = int(0.7 * rows) // training["batch_size"]
    assert epochs_for_groups == 20 or 300 <= epochs_for_groups * steps_per_epoch < 300 + steps_per_epoch
