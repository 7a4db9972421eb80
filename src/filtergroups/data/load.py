"""The data that a config names."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from filtergroups.config import Config, FacesData, PhantomData, ScansData, TableData
from filtergroups.data.examples import SPLITS, Data
from filtergroups.data.images import Progress
from filtergroups.data.twice import twice

BONE_ABOVE = 200.0  # HU: where the phantom's PSNR of bone is measured


def load_data(
    config: Config,
    *,
    constants: dict[str, Any] | None = None,
    parts: Sequence[str] = SPLITS,
    progress: Progress | None = None,
) -> Data:
    """Read a run's data; with constants (of a trained run) preprocessing learns nothing anew."""
    loaded = _loaded(config, constants, parts, progress)
    return loaded if config.data.twice is None else twice(loaded, config.data.twice)


def _loaded(config: Config, constants: dict[str, Any] | None, parts: Sequence[str], progress: Progress | None) -> Data:
    data = config.data
    if isinstance(data, FacesData):
        from filtergroups.data.faces import load_faces

        return load_faces(data, seed=config.seed, constants=constants, parts=parts, progress=progress)
    if isinstance(data, TableData):
        from filtergroups.data.table import load_table

        return load_table(data, config.tasks, seed=config.seed, constants=constants, parts=parts, progress=progress)
    from filtergroups.data.scans import load_scans

    if isinstance(data, PhantomData):
        data = prepared_phantom(data, progress)
    return load_scans(data, seed=config.seed, constants=constants, parts=parts, progress=progress)


def prepared_phantom(data: PhantomData, progress: Progress | None = None) -> ScansData:
    """Write the phantom if it is not there yet, and read it like any scans."""
    from filtergroups.data.phantom import write_phantom

    def report(done: int, of: int) -> None:
        if progress is not None:
            progress("generating phantom", done, of)

    write_phantom(data.root, data.patients, data.seed, shape=data.shape, spacing=data.spacing, progress=report)
    return scans_settings(data)


def scans_settings(data: PhantomData) -> ScansData:
    """A phantom's settings as those of any scans."""
    same = ("selection", "spatial_dims", "patch", "patch_depth", "padding", "patches_per_patient", "zoom", "rotation")
    given = {key: getattr(data, key) for key in same}
    return ScansData(kind="scans", root=data.root, cache=data.cache, bone_above=BONE_ABOVE, target_unit="HU", **given)


def check_data(config: Config) -> list[str]:
    """Read every file and label and say what is wrong, a line each; nothing is changed."""
    data = config.data
    if isinstance(data, FacesData):
        from filtergroups.data.faces import check_faces

        return check_faces(data)
    if isinstance(data, TableData):
        from filtergroups.data.table import check_table

        return check_table(data, config.tasks)
    from filtergroups.data.scans import check_scans

    if isinstance(data, PhantomData):
        if not Path(data.root).exists():
            return []
        data = prepared_phantom(data)
    return check_scans(data)
