"""What every test starts from: the same random state, and in CI the same drawn examples as last time."""

import os

import pytest
import torch
from hypothesis import settings
from xdist.scheduler import LoadFileScheduling

settings.register_profile("ci", derandomize=True, deadline=None)
if os.environ.get("CI"):
    settings.load_profile("ci")


class Scheduling(LoadFileScheduling):
    """Tests that look at the same runs go to one process: those of a file, and all of the reports (slow to make)."""

    def _split_scope(self, nodeid):
        file = super()._split_scope(nodeid)
        return "tests/reporting" if file.startswith("tests/reporting/") else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    return Scheduling(config, log)


@pytest.fixture(autouse=True)
def _same_random_state():
    torch.manual_seed(0)


@pytest.fixture(autouse=True, scope="session")
def _no_cache_of_the_user(tmp_path_factory):
    """Nothing of a test lands in the cache of whoever runs it; processes that tests start inherit this."""
    before = os.environ.get("XDG_CACHE_HOME")
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))
    yield
    os.environ.pop("XDG_CACHE_HOME")
    if before is not None:
        os.environ["XDG_CACHE_HOME"] = before
