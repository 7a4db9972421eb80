"""What every test starts from: the same random state, and in CI the same drawn examples as last time."""

import os

import pytest
import torch
from hypothesis import settings

settings.register_profile("ci", derandomize=True, deadline=None)
if os.environ.get("CI"):
    settings.load_profile("ci")


@pytest.fixture(autouse=True)
def _same_random_state():
    torch.manual_seed(0)
