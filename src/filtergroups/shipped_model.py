"""What an ONNX file must be before onnxruntime opens it: a plain network of bounded size that says what it is for.

A file may come from somebody else. Its graph is looked through without running it: known operators only, no loops, no
branches, nothing outside of the file, no tensor that is larger than its bytes. Memory and time are bounded as it runs.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import AfterValidator, Field, model_validator

from filtergroups.data.errors import DataError
from filtergroups.kept import Corrected, Finite, Kept, Name, Text
from filtergroups.naming import check_name
from filtergroups.reading import checked, read_bytes, reading

MOST_BYTES = 500_000_000  # of a file: 125 million weights
MOST_NODES = 5000
MOST_TASKS = 256
KEY, FORMAT = "filtergroups", "filtergroups compact 1"

# Those of networks as they are exported. What loops, branches, draws numbers or makes large tensors is not among them.
OPERATORS = frozenset(
    re.findall(
        r"\w+",
        """
        Conv ConvTranspose Gemm MatMul BatchNormalization InstanceNormalization GroupNormalization LayerNormalization
        LRN MaxPool AveragePool GlobalAveragePool GlobalMaxPool ReduceMean ReduceSum ReduceMax ReduceMin ReduceL2
        Relu LeakyRelu PRelu Elu Selu Celu Gelu Sigmoid HardSigmoid HardSwish Softplus Softsign Tanh Mish Erf Clip
        Add Sub Mul Div Neg Abs Sqrt Exp Log Pow Reciprocal Max Min Sum Mean Softmax LogSoftmax Floor Ceil Round Sign
        Concat Split Slice Gather Reshape Squeeze Unsqueeze Flatten Transpose Identity Cast Shape Size Constant Pad
        """,
    )
)


class ImageConstants(Kept):
    """How images are prepared."""

    size: Annotated[int, Field(ge=1, le=8192)]
    channels: Literal[1, 3]
    mean: Annotated[list[Finite], Field(min_length=1, max_length=3)]
    deviation: Annotated[list[Annotated[float, Field(gt=0, allow_inf_nan=False)]], Field(min_length=1, max_length=3)]
    classes: dict[Name, Annotated[list[Name], Field(max_length=100_000)]] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _by_channel(self) -> "ImageConstants":
        if not len(self.mean) == len(self.deviation) == self.channels:
            raise ValueError(f"a mean and a deviation for each of {self.channels} channels")
        return self


class ScanConstants(Kept):
    """How scans are prepared."""

    spacing: Annotated[float, Field(gt=0, le=1000, allow_inf_nan=False)] | None
    bias_correction: bool
    landmarks: Annotated[list[Finite], Field(min_length=2, max_length=1000)] | None
    label_values: Annotated[list[Annotated[int, Field(ge=0, le=2**31 - 1)]], Field(max_length=10_000)] | None
    label_names: Annotated[list[Name], Field(max_length=10_000)] | None


class TaskAbout(Kept):
    """A task of an exported network."""

    kind: Literal["Regression", "Classification", "Segmentation", "ImageRegression"]
    name: Annotated[str, AfterValidator(check_name)]
    labels: list[Name] | None = None
    classes: Annotated[int, Field(ge=2, le=100_000)] | None = None
    scale: Finite = 1.0
    offset: Finite = 0.0
    unit: Annotated[str, Field(max_length=100)] = ""
    correction: Corrected | None = None

    @model_validator(mode="after")
    def _is_whole(self) -> "TaskAbout":
        if not self.scale:
            raise ValueError("a scale is not 0")
        if self.of_classes and self.classes is None:
            raise ValueError("a number of classes")
        if self.of_classes and self.labels is not None and len(self.labels) != self.classes:
            raise ValueError(f"a name for each of {self.classes} classes")
        if self.correction and (self.correction.kind == "temperature") != self.of_classes:
            raise ValueError("a temperature is for classes, an interval for real values")
        return self

    @property
    def of_classes(self) -> bool:
        return self.kind in ("Classification", "Segmentation")

    @property
    def outputs(self) -> int:
        """Values at each place of its output."""
        return self.classes or 1 if self.of_classes else 1


class Windows(Kept):
    """How a scan is cut."""

    window: Annotated[list[Annotated[int, Field(ge=1, le=4096)]], Field(min_length=2, max_length=3)]
    padding: Annotated[int, Field(ge=0, le=512)]


class About(Kept):
    """What an exported file knows about itself."""

    format: Literal["filtergroups compact 1"]
    kind: Literal["images", "scans"]
    tasks: Annotated[list[TaskAbout], Field(min_length=1, max_length=MOST_TASKS)]
    constants: dict[str, Any]
    image_shape: Annotated[list[Annotated[int, Field(ge=1, le=8192)]], Field(min_length=3, max_length=4)]
    scans: dict[str, Any] = Field(default_factory=dict)
    windows: Windows | None = None
    made_by: Text = ""

    @model_validator(mode="after")
    def _fits_together(self) -> "About":
        if len({task.name for task in self.tasks}) < len(self.tasks):
            raise ValueError("tasks of different names")
        model = ImageConstants if self.kind == "images" else ScanConstants
        found = model.model_validate(self.constants, strict=True)
        if isinstance(found, ImageConstants) and self.image_shape != [found.channels, found.size, found.size]:
            raise ValueError(f"an image_shape of {found.channels} channels and size {found.size}")
        if self.kind == "scans" and (self.windows is None or len(self.windows.window) != len(self.image_shape) - 1):
            raise ValueError(f"windows of {len(self.image_shape) - 1} axes")
        values = found.label_values if isinstance(found, ScanConstants) else None
        for task in self.tasks:
            if self.kind == "scans" and task.kind == "Segmentation" and len(values or ()) != task.classes:
                raise ValueError(f"a label value for each of the {task.classes} classes of '{task.name}'")
        return self


def looked_through(path: Path) -> tuple[bytes, About]:
    """An ONNX file's bytes, once its graph and what it says about itself are found to be of `filtergroups export`."""
    import onnx

    what, remedy = "an ONNX file of `filtergroups export`", "export the run first"
    with reading(path, what, DataError, remedy):
        content = read_bytes(path, MOST_BYTES)
        model = onnx.load_model_from_string(content)
        refuse_strange(model)
        about = {entry.key: entry.value for entry in model.metadata_props}.get(KEY)
        if about is None:
            raise ValueError("another")
        found: About = checked(About, about)
        refuse_misfit(model.graph, found)
        return content, found


def refuse_strange(model: Any) -> None:
    """Refuse whatever a network as we export it does not have."""
    graph = model.graph
    if any(opset.domain not in ("", "ai.onnx") for opset in model.opset_import) or len(model.functions):
        raise ValueError("operators of its own")
    if len(graph.node) > MOST_NODES:
        raise ValueError(f"{len(graph.node):,} steps, more than {MOST_NODES:,}")
    for node in graph.node:
        if node.domain not in ("", "ai.onnx") or node.op_type not in OPERATORS:
            raise ValueError(f"a step '{node.op_type[:40]}', which no network of ours has")
        for attribute in node.attribute:
            if attribute.HasField("g") or len(attribute.graphs) or attribute.HasField("sparse_tensor"):
                raise ValueError("steps inside of a step")
    if len(graph.sparse_initializer) or len(model.training_info):
        raise ValueError("sparse weights, or steps of a training")
    for tensor in _tensors(graph):
        _refuse_false_size(tensor)
    refuse_fatal(model)


def refuse_fatal(model: Any) -> None:
    """Refuse steps in which onnxruntime ends the process instead of raising an error.

    A division of whole numbers by anything but a constant above 0 (-2^63 / -1 has no answer), a mean of whole numbers
    (of none), a negative part of a split, a transposed convolution in less than one group.
    """
    from onnx import TensorProto, numpy_helper, shape_inference

    held = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Constant" and len(node.attribute) == 1 and node.attribute[0].HasField("t"):
            held[node.output[0]] = node.attribute[0].t

    def least(name: str) -> int | None:
        """The smallest number of a constant; None where it is none."""
        values = numpy_helper.to_array(held[name]) if name in held else np.empty(0)
        return int(values.min()) if values.size and values.dtype.kind in "iu" else None

    if any(node.op_type in ("Div", "ReduceMean", "Mean") for node in model.graph.node):
        inferred = shape_inference.infer_shapes(_without_weights(model)).graph
        values = (*inferred.value_info, *inferred.input, *inferred.output)
        kinds = {value.name: value.type.tensor_type.elem_type for value in values}
    for node in model.graph.node:
        given = {attribute.name: attribute for attribute in node.attribute}
        if node.op_type in ("Div", "ReduceMean", "Mean"):
            real = kinds.get(node.output[0]) in (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16)
            if not real and (node.op_type != "Div" or (least(node.input[1]) or 0) < 1):
                raise ValueError(f"a step '{node.op_type}' of whole numbers that may have no answer")
        sizes = node.input[1] if node.op_type == "Split" and len(node.input) > 1 else ""
        if sizes and (least(sizes) is None or (least(sizes) or 0) < 0):
            raise ValueError("a split in parts that are not given as sizes")
        if "group" in given and given["group"].i < 1:
            raise ValueError(f"a convolution in {given['group'].i} groups")


def _without_weights(model: Any) -> Any:
    """The graph with inputs in the place of its weights, which may be large: enough to see what is of which kind."""
    from onnx import ModelProto, helper

    small = ModelProto()
    small.ir_version = model.ir_version
    small.opset_import.extend(model.opset_import)
    small.graph.name = "kinds"
    small.graph.node.extend(model.graph.node)
    small.graph.input.extend(model.graph.input)
    known = {value.name for value in model.graph.input}
    for tensor in model.graph.initializer:
        if tensor.name not in known:
            small.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims)))
    small.graph.output.extend(model.graph.output)
    return small


def _tensors(graph: Any) -> Iterator[Any]:
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors


def _refuse_false_size(tensor: Any) -> None:
    from onnx import TensorProto, helper

    if tensor.data_location == TensorProto.EXTERNAL or len(tensor.external_data):
        raise ValueError("weights outside of the file")
    if tensor.data_type in (TensorProto.STRING, TensorProto.UNDEFINED) or any(length < 0 for length in tensor.dims):
        raise ValueError("weights that are no numbers")
    count = 1
    for length in tensor.dims:
        count *= length
    size = helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
    held = len(tensor.raw_data) // size if tensor.raw_data else sum(
        len(values) for values in (tensor.float_data, tensor.int32_data, tensor.int64_data, tensor.double_data,
                                   tensor.uint64_data)
    )  # fmt: skip
    if held != count:
        raise ValueError(f"a tensor of {count:,} numbers with {held:,} of them in the file")


def refuse_misfit(graph: Any, about: About) -> None:
    """Refuse a graph whose inputs and outputs are not those of which the file speaks."""
    given = [value for value in graph.input if value.name not in {tensor.name for tensor in graph.initializer}]
    if [value.name for value in given] != ["images"]:
        raise ValueError(f"the inputs {[value.name[:40] for value in given][:4]} in place of 'images'")
    dims = given[0].type.tensor_type.shape.dim
    lengths = [dim.dim_value if dim.HasField("dim_value") else None for dim in dims]
    if len(lengths) != len(about.image_shape) + 1 or any(
        length not in (None, expected) for length, expected in zip(lengths[1:], about.image_shape, strict=True)
    ):
        raise ValueError(f"an input of shape {lengths} for images of shape {about.image_shape}")
    if [value.name for value in graph.output] != [task.name for task in about.tasks]:
        raise ValueError(f"the outputs {[value.name[:40] for value in graph.output][:4]} for other tasks")


def refuse_outputs(about: About, images: np.ndarray[Any, Any], outputs: dict[str, np.ndarray[Any, Any]]) -> None:
    """Refuse outputs that are not those of the tasks."""
    for task in about.tasks:
        found = outputs[task.name]
        flat = task.kind in ("Regression", "Classification")
        expected = (len(images), task.outputs, *(() if flat else images.shape[2:]))
        if found.shape != expected or found.dtype != np.float32:
            raise DataError(f"task '{task.name}': expected outputs of shape {expected}, found {found.shape}")
        if not np.isfinite(found).all():
            raise DataError(f"task '{task.name}': expected finite outputs, found NaN or infinity")
