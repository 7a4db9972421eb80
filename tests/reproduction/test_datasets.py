"""Data are found where they lie, archives are unpacked once, and never outside of their folder."""

import io
import shutil
import tarfile

import pytest

from filtergroups.data.errors import DataError
from filtergroups.reproduction.datasets import VARIABLE, locate, unpacked


def archive_of(path, members):
    with tarfile.open(path, "w") as tar:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return path


@pytest.mark.parametrize("place", [".", "UTKFace"])
def test_a_folder_is_found_by_itself_or_by_what_holds_it(toys, place):
    found = locate("UTKFace", toys / place)
    assert found == {"root": str(toys / "UTKFace"), "split_file": str(toys / "utkface-split.csv")}


@pytest.mark.parametrize("name", ["UTKFace", "head-mr-ct", "prostate-t2-adc"])
def test_a_folder_of_another_name_is_known_by_what_is_in_it(toys, tmp_path, name):
    shutil.copyfile(toys / "utkface-split.csv", tmp_path / "utkface-split.csv")
    (tmp_path / "mine").symlink_to(toys / name)
    assert locate(name, tmp_path / "mine")["root"] == str(toys / name)
    with pytest.raises(DataError, match="expected the data set"):
        locate(name, tmp_path)


def test_a_variable_names_the_place(toys, monkeypatch):
    monkeypatch.setenv(VARIABLE, str(toys))
    assert locate("head-mr-ct") == {"root": str(toys / "head-mr-ct")}


def test_an_archive_is_unpacked_once(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    archive = archive_of(tmp_path / "UTKFace.tar", {"UTKFace/1_0_0_20170101.jpg": b"picture"})
    (tmp_path / "utkface-split.csv").write_text("file,split\n1_0_0_20170101.jpg,train\n")
    said = []
    first, again = (locate("UTKFace", tmp_path, said.append) for _ in range(2))
    assert first == again
    assert said == [f"unpacking {archive}"]
    root = unpacked(archive)
    assert (root / "1_0_0_20170101.jpg").read_bytes() == b"picture"
    assert str(root) == first["root"]


@pytest.mark.parametrize("name", ["../outside.txt", "/tmp/outside-of-everything.txt"])
def test_an_archive_that_leaves_its_folder_is_refused(tmp_path, monkeypatch, name):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    archive = archive_of(tmp_path / "UTKFace.tar", {"UTKFace/a.jpg": b"1", name: b"evil"})
    if name.startswith("/"):  # made relative, so that it stays inside
        assert unpacked(archive).is_relative_to(tmp_path)
    else:
        with pytest.raises(DataError, match="expected a tar archive to unpack"):
            unpacked(archive)
    assert not list(tmp_path.rglob("outside.txt"))
    assert not list((tmp_path / "cache" / "filtergroups" / "unpacked").glob("tmp*"))


def test_a_broken_archive_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "head-mr-ct.tar").write_bytes(b"no archive")
    with pytest.raises(DataError, match="expected a tar archive"):
        locate("head-mr-ct", tmp_path)
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file() and path.suffix != ".lock"]


def test_what_is_missing_is_said_in_one_line(tmp_path, toys):
    with pytest.raises(DataError, match=r"expected the data set UTKFace or UTKFace\.tar, found neither in"):
        locate("UTKFace", tmp_path)
