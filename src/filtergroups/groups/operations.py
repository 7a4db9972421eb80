"""What each torch function does to streams: one rule a family of functions, and a clear refusal for the rest."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from filtergroups.groups.streams import CannotLift, Layout, Streams

REMEDY = "name the module that holds it in lift(..., per_stream=[...]) to run a copy of it on each stream"

# Each output channel depends on the same input channel only, so these run once on the packed tensor.
CHANNELWISE = frozenset(
    """
    relu relu_ relu6 leaky_relu leaky_relu_ rrelu rrelu_ elu elu_ selu selu_ celu celu_ gelu silu silu_ mish mish_
    hardswish hardsigmoid hardtanh hardtanh_ hardshrink softshrink tanhshrink sigmoid sigmoid_ tanh tanh_ softplus
    softsign logsigmoid threshold threshold_ exp log log1p sqrt rsqrt square pow __pow__ abs neg __neg__ reciprocal
    clamp clamp_ clamp_min clamp_max clip sin cos erf nan_to_num
    max_pool1d max_pool2d max_pool3d avg_pool1d avg_pool2d avg_pool3d lp_pool1d lp_pool2d lp_pool3d
    max_pool1d_with_indices max_pool2d_with_indices max_pool3d_with_indices max_unpool1d max_unpool2d max_unpool3d
    adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d
    adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d
    adaptive_max_pool1d_with_indices adaptive_max_pool2d_with_indices adaptive_max_pool3d_with_indices
    fractional_max_pool2d fractional_max_pool3d interpolate upsample upsample_nearest upsample_bilinear grid_sample
    dropout dropout_ dropout1d dropout2d dropout3d feature_dropout feature_dropout_ alpha_dropout feature_alpha_dropout
    clone contiguous detach requires_grad_ float double half bfloat16 to type type_as cpu cuda mps
    """.split()
)
REDUCTIONS = frozenset("mean sum amax amin std var logsumexp".split())
SPATIAL_SELECTION = frozenset("flip roll softmax log_softmax cumsum".split())
QUERIES = frozenset(
    "size dim numel nelement element_size stride is_contiguous is_floating_point is_complex get_device __len__ "
    "__repr__ __format__ is_inference is_same_size data_ptr".split()
)
ATTRIBUTES = frozenset(
    "shape ndim dtype device requires_grad is_cuda is_cpu is_mps is_meta is_leaf is_quantized is_sparse is_nested "
    "is_xpu names grad_fn".split()
)
CONVOLUTIONS = frozenset(
    "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d linear matmul __matmul__ bmm einsum".split()
)
NORMALISATIONS = frozenset("batch_norm group_norm layer_norm instance_norm local_response_norm normalize".split())


def run(func: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Carry one torch function out on streams."""
    name = getattr(func, "__name__", str(func))
    if name == "__get__":
        attribute = func.__self__.__name__  # type: ignore[attr-defined]  # a bound getset descriptor has it
        if attribute in ATTRIBUTES:
            return func(*args, **kwargs)
        if attribute == "data":
            return args[0].like(args[0].packed.detach())
        raise CannotLift(f"streams have no attribute '{attribute}'; {REMEDY}")
    if name in QUERIES:
        return func(*args, **kwargs)
    if name in CHANNELWISE:
        return channelwise(func, args, kwargs)
    if name in RULES:
        return RULES[name](func, *args, **kwargs)
    if name in CONVOLUTIONS:
        raise CannotLift(f"torch's function '{name}' has its weights outside a module; use nn.Conv or nn.Linear, or {REMEDY}")
    if name in NORMALISATIONS:
        raise CannotLift(f"torch's function '{name}' would mix groups; use an nn norm module, or {REMEDY}")
    raise CannotLift(f"torch's function '{name}' is not known to keep the channels apart; {REMEDY}")


def channelwise(func: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    values = [*args, *kwargs.values()]
    streams = next(value for value in values if isinstance(value, Streams))
    for other in values:
        if isinstance(other, Streams) and other.pairs is not streams.pairs:
            raise CannotLift(f"torch's function '{func.__name__}' combines features of different layers; {REMEDY}")
    result = func(*map(_packed, args), **{key: _packed(value) for key, value in kwargs.items()})
    if isinstance(result, tuple):
        return tuple(streams.like(part) for part in result)
    return streams.like(result)


def _packed(value: Any) -> Any:
    return value.packed if isinstance(value, Streams) else value


def reduction(func: Callable[..., Any], streams: Streams, dim: Any = None, *args: Any, **kwargs: Any) -> Streams:
    """Reduce over space, never over the batch or the channels."""
    dim = kwargs.pop("axis", dim)
    dims = _spatial_dims(func, streams, dim)
    return streams.like(func(streams.packed, dims, *args, **kwargs))


def along_space(func: Callable[..., Any], streams: Streams, *args: Any, **kwargs: Any) -> Streams:
    """Functions with a dimension argument that keep the shape."""
    dim = kwargs.get("dim", kwargs.get("dims", args[-1] if args else None))
    _spatial_dims(func, streams, dim)
    return streams.like(func(streams.packed, *args, **kwargs))


def _spatial_dims(func: Callable[..., Any], streams: Streams, dim: Any) -> tuple[int, ...]:
    given = (dim,) if isinstance(dim, int) else tuple(dim or ())
    dims = tuple(d % streams.packed.ndim for d in given)
    if not dims or 0 in dims or 1 in dims:
        raise CannotLift(f"'{func.__name__}' runs over the batch or the channels, which mixes groups; {REMEDY}")
    return dims


def view(func: Callable[..., Any], streams: Streams, *shape: Any) -> Streams:
    """view and reshape: the channel axis stays, or takes space in (flatten)."""
    if len(shape) == 1 and not isinstance(shape[0], int):
        shape = tuple(shape[0])
    batch, width, *space = (int(size) for size in streams.shape)
    positions = math.prod(space)
    wanted = _resolve(tuple(int(size) for size in shape), batch * width * positions)
    if wanted[:2] == (batch, width) and math.prod(wanted[2:]) == positions:
        return streams.like(streams.packed.reshape(batch, streams.pairs.count, *wanted[2:]))
    if wanted == (batch, width * positions):
        return _units(streams)
    raise CannotLift(
        f"a view of {tuple(streams.shape)} as {wanted} moves channels across groups; keep batch and channels, or {REMEDY}"
    )


def _resolve(shape: tuple[int, ...], numel: int) -> tuple[int, ...]:
    known = math.prod(size for size in shape if size != -1)
    return tuple(numel // known if size == -1 else size for size in shape)


def flatten(func: Callable[..., Any], streams: Streams, start_dim: int = 0, end_dim: int = -1) -> Streams:
    ndim = streams.packed.ndim
    start, end = start_dim % ndim, end_dim % ndim
    if start > 1 or start == end:
        return streams.like(streams.packed.flatten(start, end))
    if start == 1 and end == ndim - 1:
        return _units(streams)
    raise CannotLift(f"flatten({start_dim}, {end_dim}) joins batch or channels with other axes; use flatten(1), or {REMEDY}")


def _units(streams: Streams) -> Streams:
    """Take space into the channel axis: a unit is a channel at one position."""
    positions = math.prod(streams.packed.shape[2:])
    if positions == 1:
        return streams.like(streams.packed.flatten(1))
    streams = streams.settled()
    pairs = streams.pairs
    at = torch.arange(positions)
    parts = [(group, (kernels[:, None] * positions + at).flatten()) for group, kernels in pairs.parts()]
    origins = None if pairs.origins is None else pairs.origins.repeat_interleave(positions)
    units = Layout.of(pairs.width * positions, parts, mixed=pairs.mixed, origins=origins)
    gate = None if streams.gate is None else streams.gate.repeat_interleave(positions, dim=1)
    return Streams(streams.packed.flatten(1), units, gate, streams.draw)


def squeeze(func: Callable[..., Any], streams: Streams, dim: Any = None) -> Streams:
    if dim is None:
        dims = tuple(d for d in range(2, streams.packed.ndim) if streams.packed.shape[d] == 1)
        return streams.like(streams.packed.squeeze(dims))
    return streams.like(streams.packed.squeeze(_spatial_dims(func, streams, dim)))


def unsqueeze(func: Callable[..., Any], streams: Streams, dim: int) -> Streams:
    if dim % (streams.packed.ndim + 1) < 2:
        raise CannotLift(f"unsqueeze({dim}) moves the channel axis; {REMEDY}")
    return streams.like(streams.packed.unsqueeze(dim))


def prelu(func: Callable[..., Any], streams: Streams, weight: Tensor) -> Streams:
    return streams.like(func(streams.packed, of_channels(weight, 0, streams)))


def of_channels(tensor: Tensor, axis: int, streams: Streams) -> Tensor:
    """A tensor with one entry a channel of the plain network, laid out as the packed channels are."""
    if tensor.shape[axis] == 1 or streams.pairs.is_plain:
        return tensor
    return tensor.index_select(axis, streams.pairs.index(tensor.device)[1])


def pad(func: Callable[..., Any], streams: Streams, pad: Sequence[int], *args: Any, **kwargs: Any) -> Streams:
    """Padding in space is channel-wise; zero channels before or after only move the channels' indices."""
    space = 2 * (streams.packed.ndim - 2)
    amounts = list(pad)
    if not any(amounts[space:]):
        return streams.like(func(streams.packed, amounts[:space], *args, **kwargs))
    before, after = amounts[space : space + 2]
    mode = args[0] if args else kwargs.get("mode", "constant")
    value = args[1] if len(args) > 1 else kwargs.get("value")
    if mode != "constant" or value or any(amounts[space + 2 :]) or min(before, after) < 0:
        raise CannotLift(f"channels can be padded with zeros only, found {amounts} with mode '{mode}'; {REMEDY}")
    streams = streams.settled()
    pairs = streams.pairs
    moved = Layout.of(
        pairs.width + before + after,
        [(group, kernels + before) for group, kernels in pairs.parts()],
        mixed=pairs.mixed,
        origins=pairs.origins,
    )
    packed = func(streams.packed, amounts[:space]) if any(amounts[:space]) else streams.packed
    return Streams(packed, moved, streams.gate, streams.draw)


def cat(func: Callable[..., Any], tensors: Sequence[Any], dim: int = 0, **kwargs: Any) -> Streams:
    """Channel sets follow each other."""
    dim = kwargs.get("axis", dim)
    first = next(part for part in tensors if isinstance(part, Streams))
    axis = dim % first.packed.ndim
    if axis != 1:
        if any(part.pairs is not first.pairs for part in tensors):
            raise CannotLift(f"cat over axis {dim} needs features of one layer; {REMEDY}")
        return first.like(func([part.packed for part in tensors], axis))
    parts = [
        part.settled() if isinstance(part, Streams) else Streams.of_image(part, first.draw) for part in tensors
    ]
    laid: list[tuple[int, Tensor]] = []
    width = 0
    for part in parts:
        laid += [(group, kernels + width) for group, kernels in part.pairs.parts()]
        width += part.pairs.width
    origins = None
    if any(part.pairs.origins is not None for part in parts):
        origins = torch.cat([_origins(part.pairs) for part in parts])
    layout = Layout.of(width, laid, mixed=any(part.pairs.mixed for part in parts), origins=origins)
    gates = [part.gate for part in parts]
    gate = None if all(g is None for g in gates) else torch.cat(_same_batch([gate_or_ones(part) for part in parts]), 1)
    return Streams(torch.cat([part.packed for part in parts], 1), layout, gate, first.draw)


def _origins(pairs: Layout) -> Tensor:
    return torch.full((pairs.count,), -1) if pairs.origins is None else pairs.origins


def gate_or_ones(streams: Streams) -> Tensor:
    return streams.packed.new_ones(1, streams.pairs.count) if streams.gate is None else streams.gate


def _same_batch(gates: list[Tensor]) -> list[Tensor]:
    batch = max(gate.shape[0] for gate in gates)
    return [gate.expand(batch, -1) for gate in gates]


def take_channels(streams: Streams, start: int, stop: int) -> Streams:
    """Channels start to stop of the plain network."""
    streams = streams.settled()
    pairs = streams.pairs
    inside = (pairs.kernels >= start) & (pairs.kernels < stop)
    chosen = inside.nonzero().flatten()
    parts = []
    for segment in pairs.segments:
        kernels = pairs.kernels[segment.start : segment.stop]
        parts.append((segment.group, kernels[inside[segment.start : segment.stop]] - start))
    origins = None if pairs.origins is None else pairs.origins[chosen]
    layout = Layout.of(stop - start, parts, mixed=pairs.mixed, origins=origins)
    at = chosen.to(streams.packed.device)
    gate = None if streams.gate is None else streams.gate[:, at]
    return Streams(streams.packed.index_select(1, at), layout, gate, streams.draw)


def chunk(func: Callable[..., Any], streams: Streams, chunks: int, dim: int = 0) -> tuple[Streams, ...]:
    return split(func, streams, -(-int(streams.shape[dim]) // chunks), dim)


def split(func: Callable[..., Any], streams: Streams, sizes: Any, dim: int = 0) -> tuple[Streams, ...]:
    axis = dim % streams.packed.ndim
    if axis != 1:
        return tuple(streams.like(part) for part in streams.packed.split(sizes, axis))
    width = streams.pairs.width
    if isinstance(sizes, int):
        sizes = [min(sizes, width - start) for start in range(0, width, sizes)]
    stops = torch.tensor(sizes).cumsum(0).tolist()
    return tuple(take_channels(streams, stop - size, stop) for size, stop in zip(sizes, stops, strict=True))


def getitem(func: Callable[..., Any], streams: Streams, index: Any) -> Streams:
    """Slices; a slice of the channel axis takes those channels."""
    index = index if isinstance(index, tuple) else (index,)
    if Ellipsis in index:
        at = index.index(Ellipsis)
        index = index[:at] + (slice(None),) * (streams.packed.ndim - len(index) + 1) + index[at + 1 :]
    of_channel = index[1] if len(index) > 1 else slice(None)
    if not all(isinstance(part, slice) for part in index[:2]):
        raise CannotLift(f"an index {index} takes the batch or channel axis apart; use slices, or {REMEDY}")
    start, stop, step = of_channel.indices(streams.pairs.width)
    if step != 1:
        raise CannotLift(f"channels are sliced with step 1, found {step}; {REMEDY}")
    if (start, stop) != (0, streams.pairs.width):
        streams = take_channels(streams, start, max(start, stop))
    return streams.like(streams.packed[(index[0], slice(None), *index[2:])])


def _scaled(value: Any, factor: Any) -> Any:
    if factor == 1:
        return value
    return value.like(value.packed * factor) if isinstance(value, Streams) else value * factor


def addition(func: Callable[..., Any], left: Any, right: Any, *, alpha: Any = 1) -> Streams:
    return combine(left, _scaled(right, alpha), torch.add)


def subtraction(func: Callable[..., Any], left: Any, right: Any, *, alpha: Any = 1) -> Streams:
    return combine(left, _scaled(right, alpha), torch.sub)


def reversed_subtraction(func: Callable[..., Any], right: Any, left: Any) -> Streams:
    return combine(left, right, torch.sub)


def multiplication(func: Callable[..., Any], left: Any, right: Any) -> Streams:
    return combine(left, right, torch.mul)


def division(func: Callable[..., Any], left: Any, right: Any) -> Streams:
    if isinstance(right, Streams):
        raise CannotLift(f"features are divided by a number or a tensor, found features; {REMEDY}")
    return combine(left, right, torch.div)


def in_place(rule: Callable[..., Streams]) -> Callable[..., Streams]:
    """`a += b` where both have the same pairs changes a itself, as user code may hold another name of it."""

    def run_in_place(func: Callable[..., Any], left: Streams, right: Any, **kwargs: Any) -> Streams:
        result = rule(func, left, right, **kwargs)
        if result.pairs is left.pairs and result.packed.shape == left.packed.shape:
            left.packed, left.gate = result.packed, result.gate
            return left
        if func.__name__.startswith("__i"):
            return result
        raise CannotLift(f"'{func.__name__}' between features of different layers cannot be in place; write a + b")

    return run_in_place


def combine(left: Any, right: Any, operation: Callable[[Tensor, Tensor], Tensor]) -> Streams:
    """Elementwise arithmetic of streams with streams, tensors or numbers."""
    if not isinstance(left, Streams):
        return right.like(operation(_beside(left, right), right.packed))  # type: ignore[no-any-return]
    if not isinstance(right, Streams):
        return left.like(operation(left.packed, _beside(right, left)))
    left.draw.joined(left, right)
    if left.stitch is not right.stitch:
        left, right = left.settled(), right.settled()
    if left.pairs is right.pairs and (left.gate is right.gate or operation is torch.mul):
        gate = left.gate if left.gate is right.gate else gate_or_ones(left) * gate_or_ones(right)
        return Streams(operation(left.packed, right.packed), left.pairs, gate, left.draw, left.stitch)
    left, right = left.settled(), right.settled()
    if operation is torch.mul:
        return _product(left, right)
    return _weighted_sum(left, right, operation)


def _beside(value: Any, streams: Streams) -> Any:
    """A tensor that broadcasts with the plain network's features, made to broadcast with the packed ones."""
    if not isinstance(value, Tensor):
        return value
    axis = value.ndim - (streams.packed.ndim - 1)
    if axis < 0:
        return value
    return of_channels(value, axis, streams)


def _weighted_sum(left: Streams, right: Streams, operation: Callable[[Tensor, Tensor], Tensor]) -> Streams:
    """Sum of features with different gates: what is read later is gate_l · left + gate_r · right.

    The sum keeps a pending gate, the larger of the two, so that a norm after it cannot bring back what the gates
    closed: features (gate_l · left + gate_r · right) / max, gate max.
    """
    pairs, at_left, at_right = _union(left.pairs, right.pairs)
    gates = [
        _spread(gate, pairs.count, at)
        for gate, at in zip(_same_batch([gate_or_ones(left), gate_or_ones(right)]), (at_left, at_right), strict=True)
    ]
    larger = torch.maximum(*gates)
    safe = larger.clamp_min(torch.finfo(larger.dtype).tiny)
    space = [1] * (left.packed.ndim - 2)
    shares = [(gate / safe).reshape(*gate.shape, *space) for gate in gates]
    packed = operation(
        shares[0] * _spread(left.packed, pairs.count, at_left), shares[1] * _spread(right.packed, pairs.count, at_right)
    )
    return Streams(packed, pairs, larger, left.draw)


def _product(left: Streams, right: Streams) -> Streams:
    """Product of features with different pairs: where one has no such pair it is 0."""
    pairs, at_left, at_right = _union(left.pairs, right.pairs)
    gates = _same_batch([gate_or_ones(left), gate_or_ones(right)])
    gate = _spread(gates[0], pairs.count, at_left) * _spread(gates[1], pairs.count, at_right)
    packed = _spread(left.packed, pairs.count, at_left) * _spread(right.packed, pairs.count, at_right)
    return Streams(packed, pairs, gate, left.draw)


def _union(left: Layout, right: Layout) -> tuple[Layout, Tensor, Tensor]:
    """The pairs of both, and where each side's pairs lie in it."""
    if left.width != right.width:
        if 1 not in (left.width, right.width):
            raise CannotLift(f"features of {left.width} and {right.width} channels cannot be added; {REMEDY}")
        raise CannotLift(f"features of one channel spread over {max(left.width, right.width)} mix groups; {REMEDY}")
    codes = [layout.groups * layout.width + layout.kernels for layout in (left, right)]
    union = torch.cat(codes).unique()
    groups, kernels = union // left.width, union % left.width
    parts = [(int(group), kernels[groups == group]) for group in groups.unique()]
    at = [torch.searchsorted(union, code) for code in codes]
    origins = None
    if left.origins is not None or right.origins is not None:
        origins = torch.full((len(union),), -1)
        for layout, places in ((right, at[1]), (left, at[0])):
            known = _origins(layout) >= 0
            origins[places[known]] = _origins(layout)[known]
    mixed = left.mixed or right.mixed
    return Layout.of(left.width, parts, mixed=mixed, origins=origins), at[0], at[1]


def _spread(tensor: Tensor, count: int, at: Tensor) -> Tensor:
    """Put channels at their places among `count`, zeros elsewhere."""
    if len(at) == count and bool((at == torch.arange(count)).all()):
        return tensor
    target = tensor.new_zeros(tensor.shape[0], count, *tensor.shape[2:])
    return target.index_copy(1, at.to(tensor.device), tensor)


def refuse_channel_order(func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    raise CannotLift(f"'{func.__name__}' moves the channel axis, which streams cannot follow; {REMEDY}")


RULES: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(REDUCTIONS, reduction),
    **dict.fromkeys(SPATIAL_SELECTION, along_space),
    **dict.fromkeys(("view", "reshape"), view),
    "flatten": flatten,
    "squeeze": squeeze,
    "unsqueeze": unsqueeze,
    "prelu": prelu,
    "pad": pad,
    **dict.fromkeys(("cat", "concat", "concatenate"), cat),
    "chunk": chunk,
    "split": split,
    "__getitem__": getitem,
    **dict.fromkeys(("add", "__add__", "__radd__"), addition),
    **dict.fromkeys(("sub", "__sub__", "subtract"), subtraction),
    **dict.fromkeys(("rsub", "__rsub__"), reversed_subtraction),
    **dict.fromkeys(("mul", "__mul__", "__rmul__", "multiply"), multiplication),
    **dict.fromkeys(("div", "__div__", "__truediv__", "true_divide", "divide"), division),
    **dict.fromkeys(("add_", "__iadd__"), in_place(addition)),
    **dict.fromkeys(("sub_", "__isub__"), in_place(subtraction)),
    **dict.fromkeys(("mul_", "__imul__"), in_place(multiplication)),
    **dict.fromkeys(("div_", "__itruediv__", "__idiv__"), in_place(division)),
    **dict.fromkeys(("permute", "transpose", "swapaxes", "movedim", "t"), refuse_channel_order),
}
