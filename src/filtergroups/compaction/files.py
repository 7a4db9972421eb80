"""A compact network as a file: ONNX, torch's pt2, or safetensors with its steps as JSON.

What a user of the file needs to know travels inside it as JSON: preprocessing, tasks, units, names of classes.
"""

import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from typing import Annotated, Any

import torch
from pydantic import Field
from safetensors.torch import save
from torch import Tensor

from filtergroups.checkpoint import read_tensors
from filtergroups.compaction.recording import CannotExport
from filtergroups.compaction.steps import CompactNetwork, Step, Value, as_json, from_json
from filtergroups.kept import Count, Kept, Name
from filtergroups.paths import AnyPath, as_path
from filtergroups.reading import checked, parse_json, reading
from filtergroups.writing import write_atomically

FORMATS = ("onnx", "pt2", "safetensors")
KEY = "filtergroups"  # under which the JSON is found in every format
FORMAT = "filtergroups compact 1"
MOST_STEPS = 20_000
AXES = {0: "batch", 2: "height", 3: "width", 4: "depth"}


def save_compact(network: CompactNetwork, path: AnyPath, to: str, about: dict[str, Any]) -> None:
    """Write a compact network; about: what its users need to know, as JSON values."""
    if to not in FORMATS:
        raise ValueError(f"a format is one of {list(FORMATS)}, found {to!r}; choose one")
    content = {"onnx": _onnx, "pt2": _pt2, "safetensors": _safetensors}[to](network, {"format": FORMAT, **about})
    write_atomically(as_path(path), content)


def _example(network: CompactNetwork) -> Tensor:
    """Two images; more than one, as torch takes a batch of one for a fact."""
    like = next(iter(network.weights.values()))
    return torch.zeros(2, *network.image_shape, dtype=torch.float32, device=like.device)


def _dynamic(network: CompactNetwork) -> dict[int, Any]:
    return dict.fromkeys(network.varies, torch.export.Dim.DYNAMIC)


@contextmanager
def _quiet() -> Iterator[None]:
    """torch's exporters speak of packages that are not needed here."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _exported(network: CompactNetwork) -> Any:
    try:
        with _quiet(), torch.no_grad():
            return torch.export.export(network, (_example(network),), dynamic_shapes=(_dynamic(network),), strict=False)
    except Exception as error:  # torch raises many kinds here, of many lines
        raise CannotExport(f"torch could not export the network: {_first_line(error)}; try --to safetensors") from error


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def _onnx(network: CompactNetwork, about: dict[str, Any]) -> bytes:
    program = _exported(network)
    try:
        with _quiet():
            made = torch.onnx.export(
                program, verbose=False, dynamo=True, input_names=["images"], output_names=list(network.outputs)
            )
            assert made is not None
            model = made.model_proto
    except Exception as error:  # torch raises many kinds here, of many lines
        raise CannotExport(f"torch could not write ONNX: {_first_line(error)}; try --to safetensors") from error
    renamed = {}
    for axis, dimension in enumerate(model.graph.input[0].type.tensor_type.shape.dim):
        if dimension.dim_param:
            renamed[dimension.dim_param] = AXES[axis]
    for value in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        for dimension in value.type.tensor_type.shape.dim:
            if dimension.dim_param in renamed:
                dimension.dim_param = renamed[dimension.dim_param]
    # torch notes where its source lies: folders of whoever exports are nobody's business.
    for noted in (model, *model.graph.node, *(node for function in model.functions for node in function.node)):
        del noted.metadata_props[:]
    entry = model.metadata_props.add()
    entry.key, entry.value = KEY, json.dumps(about)
    model.producer_name = KEY
    content: bytes = model.SerializeToString()
    return content


def _pt2(network: CompactNetwork, about: dict[str, Any]) -> bytes:
    content = BytesIO()
    with _quiet():
        torch.export.save(_exported(network), content, extra_files={f"{KEY}.json": json.dumps(about)})
    return content.getvalue()


def _safetensors(network: CompactNetwork, about: dict[str, Any]) -> bytes:
    steps = [
        {
            "function": step.function, "args": as_json(step.args), "results": list(step.results),
            "kwargs": {key: as_json(value) for key, value in step.kwargs.items()}, "several": step.several,
        }
        for step in network.steps
    ]  # fmt: skip
    program = {
        "steps": steps, "outputs": {task: value.number for task, value in network.outputs.items()},
        "image_shape": list(network.image_shape), "varies": list(network.varies),
        "multiplications": network.multiplications,
    }  # fmt: skip
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in network.weights.items()}
    return save(tensors, {KEY: json.dumps(about), "program": json.dumps(program)})


class StepKept(Kept):
    """A step as JSON."""

    function: Name
    args: list[Any]
    keywords: Annotated[dict[Name, Any], Field(alias="kwargs")]
    results: Annotated[list[Count], Field(min_length=1, max_length=1000)]
    several: bool


class Program(Kept):
    """A compact network's steps as JSON."""

    steps: Annotated[list[StepKept], Field(max_length=MOST_STEPS)]
    outputs: dict[Name, Count]
    image_shape: list[Annotated[int, Field(ge=1, le=2**20)]]
    varies: list[Annotated[int, Field(ge=0, le=8)]]
    multiplications: Count


def load_compact(path: AnyPath) -> tuple[CompactNetwork, dict[str, Any]]:
    """A compact network from safetensors, and what is known about it; no code of the file is run."""
    path = as_path(path)
    what, remedy = "a compact network of filtergroups", "export the run again"
    try:
        with reading(path, what, ValueError, remedy):
            metadata, tensors = read_tensors(path)
            about, program = parse_json(metadata[KEY]), checked(Program, metadata["program"])
            steps = [
                Step(one.function, from_json(one.args), {k: from_json(v) for k, v in one.keywords.items()},
                     tuple(one.results), one.several)
                for one in program.steps
            ]  # fmt: skip
            outputs = {task: Value(number) for task, number in program.outputs.items()}
            network = CompactNetwork(steps, tensors, outputs)
    except FileNotFoundError:
        raise ValueError(f"{path}: expected a compact network, found no file; check the path") from None
    network.image_shape, network.varies = tuple(program.image_shape), tuple(program.varies)
    network.multiplications = program.multiplications
    return network.eval(), about
