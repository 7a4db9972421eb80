"""The data that a config names."""

from collections.abc import Sequence
from typing import Any

from filtergroups.config import Config, FacesData, PhantomData, ScansData, TableData
from filtergroups.data.cache_folder import choose_cache
from filtergroups.data.examples import SPLITS, Data, DataError
from filtergroups.data.findings import Findings
from filtergroups.data.images import Progress
from filtergroups.data.twice import twice

BONE_ABOVE = 200.0  # HU: where the phantom's PSNR of bone is measured


def load_data(
    config: Config,
    *,
    constants: dict[str, Any] | None = None,
    parts: Sequence[str] = SPLITS,
    make: bool = True,
    progress: Progress | None = None,
    findings: Findings | None = None,
) -> Data:
    """Read a run's data; with constants (of a trained run) preprocessing learns nothing anew.

    make: draw and write the split, and generate the phantom, where they are not there yet. With constants nothing is
    ever written but the cache: the config may be a stranger's.
    findings (of images only): where to put what is wrong, instead of refusing it; nothing is then written.
    """
    how: dict[str, Any] = {"constants": constants, "parts": parts, "make": make and constants is None}
    loaded = _loaded(config, how, progress, findings)
    return loaded if config.data.twice is None else twice(loaded, config.data.twice)


def prepare_data(config: Config, progress: Progress | None = None) -> None:
    """Before a training: write what its config names and is not there yet, a split or the phantom."""
    data = config.data
    choose_cache(config)
    if isinstance(data, TableData):
        from filtergroups.data.table import prepare_split

        prepare_split(data, config.seed)
    elif isinstance(data, PhantomData):
        prepared_phantom(data, progress)
    elif isinstance(data, ScansData):
        from filtergroups.data.patients import patients_by_part

        patients_by_part(data, config.seed, keep=True, aside=False)


def _loaded(config: Config, how: dict[str, Any], progress: Progress | None, findings: Findings | None) -> Data:
    data = config.data
    if isinstance(data, FacesData):
        from filtergroups.data.faces import load_faces

        of_images = {"constants": how["constants"], "parts": how["parts"], "findings": findings}
        return load_faces(data, seed=config.seed, progress=progress, **of_images)
    if isinstance(data, TableData):
        from filtergroups.data.table import load_table

        return load_table(data, config.tasks, seed=config.seed, progress=progress, findings=findings, **how)
    from filtergroups.data.scans import load_scans

    if isinstance(data, PhantomData):
        data = prepared_phantom(data, progress) if how["make"] else found_phantom(data)
    return load_scans(data, seed=config.seed, progress=progress, **how)


def found_phantom(data: PhantomData) -> ScansData:
    """The phantom where it is already, to be read like any scans."""
    from filtergroups.data.phantom import has_phantom

    if not has_phantom(data.root, data.patients, data.seed, shape=data.shape, spacing=data.spacing):
        raise DataError(
            f"{data.root}: expected the phantom's scans, found none; `filtergroups data phantom` and `train` make "
            "them, or name their folder with --data"
        )
    return scans_settings(data)


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
