"""What each torch function does to streams: one rule a family of functions, and a clear refusal for the rest."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from filtergroups.groups import elementwise
from filtergroups.groups.arithmetic import ARITHMETIC, of_channels, origins_of, same_batch
from filtergroups.groups.streams import REMEDY, CannotLift, Layout, Run, Streams


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Each output channel depends on the same input channel only, so these run on each stream as they are.
CHANNELWISE = words(
    """
    relu relu_ relu6 leaky_relu leaky_relu_ rrelu rrelu_ elu elu_ selu selu_ celu celu_ gelu silu silu_ mish mish_
    hardswish hardsigmoid hardtanh hardtanh_ hardshrink softshrink tanhshrink sigmoid sigmoid_ tanh tanh_ softplus
    softsign logsigmoid threshold threshold_ exp log log1p sqrt rsqrt square pow __pow__ abs neg __neg__ reciprocal
    clamp clamp_ clamp_min clamp_max clip sin cos erf nan_to_num
    max_pool1d max_pool3d avg_pool1d avg_pool2d avg_pool3d lp_pool1d lp_pool2d lp_pool3d
    max_pool1d_with_indices max_pool2d_with_indices max_pool3d_with_indices max_unpool1d max_unpool2d max_unpool3d
    adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d
    adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d
    adaptive_max_pool1d_with_indices adaptive_max_pool2d_with_indices adaptive_max_pool3d_with_indices
    fractional_max_pool2d fractional_max_pool3d interpolate upsample upsample_nearest upsample_bilinear grid_sample
    dropout dropout_ dropout1d dropout2d dropout3d feature_dropout feature_dropout_ alpha_dropout feature_alpha_dropout
    clone contiguous detach requires_grad_ float double half bfloat16 to type type_as cpu cuda mps
    """
)
REDUCTIONS = words("mean sum amax amin std var logsumexp")
SPATIAL_SELECTION = words("flip roll softmax log_softmax cumsum")
QUERIES = words(
    """
    size dim numel nelement element_size stride is_contiguous is_floating_point is_complex get_device __len__ __repr__
    __format__ is_inference is_same_size
    """
)
ATTRIBUTES = words(
    """
    shape ndim dtype device requires_grad is_cuda is_cpu is_mps is_meta is_leaf is_quantized is_sparse is_nested is_xpu
    names grad_fn
    """
)
CONVOLUTIONS = words(
    """
    conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d linear matmul __matmul__ bmm einsum
    """
)
NORMALISATIONS = words("batch_norm group_norm layer_norm instance_norm local_response_norm normalize")
OUT_OF_PLACE: dict[str, Callable[..., Any]] = {
    name: next(getattr(home, name[:-1]) for home in (torch.Tensor, F, torch) if hasattr(home, name[:-1]))
    for name in CHANNELWISE
    if name.endswith("_") and not name.endswith("__") and name != "requires_grad_"
}


def run(func: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Carry one torch function out on streams."""
    name = getattr(func, "__name__", str(func))
    if name == "__get__":
        attribute = func.__self__.__name__  # type: ignore[attr-defined]  # a bound getset descriptor has it
        if attribute in ATTRIBUTES:
            return func(*args, **kwargs)
        if attribute == "data":
            return args[0].each(torch.Tensor.detach)
        raise CannotLift(f"streams have no attribute '{attribute}'; {REMEDY}")
    if name in QUERIES:
        return func(*args, **kwargs)
    if name in CHANNELWISE:
        return channelwise(func, args, kwargs)
    if name in RULES:
        return RULES[name](func, *args, **kwargs)
    if name in CONVOLUTIONS:
        raise CannotLift(
            f"torch's function '{name}' has its weights outside a module; use nn.Conv or nn.Linear, or {REMEDY}"
        )
    if name in NORMALISATIONS:
        raise CannotLift(f"torch's function '{name}' would mix groups; use an nn norm module, or {REMEDY}")
    raise CannotLift(f"torch's function '{name}' is not known to keep the channels apart; {REMEDY}")


def channelwise(func: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    values = [*args, *kwargs.values()]
    streams = next(value for value in values if isinstance(value, Streams))
    for other in values:
        if isinstance(other, Streams) and other.pairs is not streams.pairs:
            raise CannotLift(f"torch's function '{func.__name__}' combines features of different layers; {REMEDY}")
    # Streams may share memory with each other, so "in place" changes the container and never a tensor.
    in_place = kwargs.get("inplace", False) or func.__name__ in OUT_OF_PLACE
    func = OUT_OF_PLACE.get(func.__name__, func)
    results = []
    for n in range(len(streams.parts)):
        named = {key: _part(value, n) for key, value in kwargs.items()}
        if "inplace" in named:
            named["inplace"] = False
        results.append(func(*(_part(value, n) for value in args), **named))
    if isinstance(results[0], tuple):
        return tuple(streams.like(parts) for parts in zip(*results, strict=True))
    if not in_place:
        return streams.like(results)
    streams.parts = tuple(results)
    return streams


def _part(value: Any, n: int) -> Any:
    return value.parts[n] if isinstance(value, Streams) else value


def reduction(func: Callable[..., Any], streams: Streams, dim: Any = None, *args: Any, **kwargs: Any) -> Streams:
    """Reduce over space, never over the batch or the channels."""
    dims = _spatial_dims(func, streams, kwargs.pop("axis", dim))
    return streams.each(lambda part: func(part, dims, *args, **kwargs))


def along_space(func: Callable[..., Any], streams: Streams, *args: Any, **kwargs: Any) -> Streams:
    """Functions with a dimension argument that keep the shape."""
    _spatial_dims(func, streams, kwargs.get("dim", kwargs.get("dims", args[-1] if args else None)))
    return streams.each(lambda part: func(part, *args, **kwargs))


def _spatial_dims(func: Callable[..., Any], streams: Streams, dim: Any) -> tuple[int, ...]:
    given = (dim,) if isinstance(dim, int) else tuple(dim or ())
    dims = tuple(d % streams.axes for d in given)
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
        return streams.each(lambda part: part.reshape(part.shape[0], part.shape[1], *wanted[2:]))
    if wanted == (batch, width * positions):
        return _units(streams)
    raise CannotLift(
        f"a view of {tuple(streams.shape)} as {wanted} moves channels across groups; keep the channels, or {REMEDY}"
    )


def _resolve(shape: tuple[int, ...], numel: int) -> tuple[int, ...]:
    known = math.prod(size for size in shape if size != -1)
    return tuple(numel // known if size == -1 else size for size in shape)


def flatten(func: Callable[..., Any], streams: Streams, start_dim: int = 0, end_dim: int = -1) -> Streams:
    start, end = start_dim % streams.axes, end_dim % streams.axes
    if start > 1 or start == end:
        return streams.each(lambda part: part.flatten(start, end))
    if start == 1 and end == streams.axes - 1:
        return _units(streams)
    raise CannotLift(
        f"flatten({start_dim}, {end_dim}) joins batch or channels with other axes; use flatten(1), or {REMEDY}"
    )


def _units(streams: Streams) -> Streams:
    """Take space into the channel axis: a unit is a channel at one position."""
    positions = math.prod(streams.parts[0].shape[2:])
    if positions == 1:
        return streams.each(lambda part: part.flatten(1))
    streams = streams.settled()
    at = torch.arange(positions)
    units = _relaid(
        streams.pairs,
        streams.pairs.width * positions,
        lambda kernels: (kernels[:, None] * positions + at).flatten(),
        lambda origins: origins.repeat_interleave(positions),
    )
    gates = streams.gates and tuple(gate.repeat_interleave(positions, dim=1) for gate in streams.gates)
    return Streams([part.flatten(1) for part in streams.parts], units, gates, streams.draw)


def _relaid(
    pairs: Layout,
    width: int,
    kernels: Callable[[Tensor], Tensor],
    origins: Callable[[Tensor], Tensor] = lambda identities: identities,
) -> Layout:
    """The same streams with their kernels at other places."""
    runs = tuple(Run.of(kernels(run.indices())) for run in pairs.kernels)
    identities = pairs.origins and tuple(map(origins, pairs.origins))
    return replace(pairs, width=width, kernels=runs, origins=identities)


def squeeze(func: Callable[..., Any], streams: Streams, dim: Any = None) -> Streams:
    ones = tuple(d for d in range(2, streams.axes) if streams.parts[0].shape[d] == 1)
    dims = ones if dim is None else _spatial_dims(func, streams, dim)
    return streams.each(lambda part: part.squeeze(dims))


def unsqueeze(func: Callable[..., Any], streams: Streams, dim: int) -> Streams:
    if dim % (streams.axes + 1) < 2:
        raise CannotLift(f"unsqueeze({dim}) moves the channel axis; {REMEDY}")
    return streams.each(lambda part: part.unsqueeze(dim))


def max_pool2d(func: Callable[..., Any], streams: Streams, *args: Any, **kwargs: Any) -> Streams:
    if kwargs.pop("return_indices", False):
        return channelwise(func, (streams, *args), {**kwargs, "return_indices": True})  # type: ignore[no-any-return]  # a pair
    return streams.each(lambda part: elementwise.max_pool2d(part, *args, **kwargs))


def prelu(func: Callable[..., Any], streams: Streams, weight: Tensor) -> Streams:
    slopes = of_channels(weight, 0, streams)
    return streams.like(func(part, slope) for part, slope in zip(streams.parts, slopes, strict=True))


def pad(func: Callable[..., Any], streams: Streams, pad: Sequence[int], *args: Any, **kwargs: Any) -> Streams:
    """Padding in space is channel-wise; zero channels before or after only move the channels' indices."""
    space = 2 * (streams.axes - 2)
    amounts = list(pad)
    if not any(amounts[space:]):
        return streams.each(lambda part: func(part, amounts[:space], *args, **kwargs))
    before, after = amounts[space : space + 2]
    mode = args[0] if args else kwargs.get("mode", "constant")
    value = args[1] if len(args) > 1 else kwargs.get("value")
    if mode != "constant" or value or any(amounts[space + 2 :]) or min(before, after) < 0:
        raise CannotLift(f"channels can be padded with zeros only, found {amounts} with mode '{mode}'; {REMEDY}")
    streams = streams.settled()
    pairs = _relaid(streams.pairs, streams.pairs.width + before + after, lambda kernels: kernels + before)
    parts = [func(part, amounts[:space]) if any(amounts[:space]) else part for part in streams.parts]
    return Streams(parts, pairs, streams.gates, streams.draw)


def cat(func: Callable[..., Any], tensors: Sequence[Any], dim: int = 0, **kwargs: Any) -> Streams:
    """Channel sets follow each other, in every stream."""
    first = next(part for part in tensors if isinstance(part, Streams))
    axis = kwargs.get("axis", dim) % first.axes
    if axis != 1:
        if any(not isinstance(part, Streams) or part.pairs is not first.pairs for part in tensors):
            raise CannotLift(f"cat over axis {dim} needs features of one layer; {REMEDY}")
        return first.like(func(parts, axis) for parts in zip(*(part.parts for part in tensors), strict=True))
    items = [item.settled() if isinstance(item, Streams) else Streams.of_image(item, first.draw) for item in tensors]
    surveyed = any(item.pairs.origins for item in items)
    gated = any(item.gates for item in items)
    starts = torch.tensor([0, *(item.pairs.width for item in items)]).cumsum(0).tolist()
    groups = sorted({group for item in items for group in item.pairs.groups})
    parts, kernels, gates, origins = [], [], [], []
    for group in groups:
        places = [
            (i, item, item.pairs.groups.index(group)) for i, item in enumerate(items) if group in item.pairs.groups
        ]
        parts.append(torch.cat([item.parts[n] for _, item, n in places], 1))
        kernels.append((group, torch.cat([item.pairs.kernels[n].indices() + starts[i] for i, item, n in places])))
        if gated:
            gates.append(torch.cat(same_batch([item.gate(n) for _, item, n in places]), 1))
        if surveyed:
            origins.append(torch.cat([origins_of(item.pairs, n) for _, item, n in places]))
    mixed = any(item.pairs.mixed for item in items)
    pairs = Layout.of(starts[-1], kernels, mixed=mixed, origins=tuple(origins) or None)
    return Streams(parts, pairs, tuple(gates) or None, first.draw)


def take_channels(streams: Streams, start: int, stop: int) -> Streams:
    """Channels start to stop of the plain network."""
    streams = streams.settled()
    pairs = streams.pairs
    parts, kernels, gates, origins = [], [], [], []
    for n, (group, run) in enumerate(zip(pairs.groups, pairs.kernels, strict=True)):
        indices = run.indices()
        inside = ((indices >= start) & (indices < stop)).nonzero().flatten()
        if len(inside):
            chosen = Run.of(inside)
            parts.append(chosen.take(streams.parts[n], 1))
            kernels.append((group, indices[inside] - start))
            gates.append(chosen.take(streams.gate(n), 1))
            origins.append(origins_of(pairs, n)[inside])
    if not parts:  # no stream has these channels: they are 0
        parts = [streams.parts[0].narrow(1, 0, 1) * 0]
        kernels = [(pairs.groups[0], torch.tensor([0]))]
        gates, origins = [streams.gate(0).narrow(1, 0, 1)], [torch.tensor([-1])]
    layout = Layout.of(stop - start, kernels, mixed=pairs.mixed, origins=tuple(origins) if pairs.origins else None)
    return Streams(parts, layout, tuple(gates) if streams.gates else None, streams.draw)


def chunk(func: Callable[..., Any], streams: Streams, chunks: int, dim: int = 0) -> tuple[Streams, ...]:
    return split(func, streams, -(-int(streams.shape[dim]) // chunks), dim)


def split(func: Callable[..., Any], streams: Streams, sizes: Any, dim: int = 0) -> tuple[Streams, ...]:
    axis = dim % streams.axes
    if axis != 1:
        pieces = zip(*(part.split(sizes, axis) for part in streams.parts), strict=True)
        return tuple(streams.like(parts) for parts in pieces)
    width = streams.pairs.width
    if isinstance(sizes, int):
        sizes = [min(sizes, width - start) for start in range(0, width, sizes)]
    stops = torch.tensor(sizes).cumsum(0).tolist()
    return tuple(take_channels(streams, stop - size, stop) for size, stop in zip(sizes, stops, strict=True))


def getitem(func: Callable[..., Any], streams: Streams, index: Any) -> Streams:
    """Slices; a slice of the channel axis takes those channels."""
    index = index if isinstance(index, tuple) else (index,)
    if any(part is Ellipsis for part in index):
        at = next(n for n, part in enumerate(index) if part is Ellipsis)
        index = index[:at] + (slice(None),) * (streams.axes - len(index) + 1) + index[at + 1 :]
    if not all(isinstance(part, slice) for part in index[:2]):
        raise CannotLift(f"an index {index} takes the batch or channel axis apart; use slices, or {REMEDY}")
    start, stop, step = (index[1] if len(index) > 1 else slice(None)).indices(streams.pairs.width)
    if step != 1 or stop <= start:
        raise CannotLift(f"channels are sliced as start:stop, found {index[1]}; {REMEDY}")
    if (start, stop) != (0, streams.pairs.width):
        streams = take_channels(streams, start, stop)
    return streams.each(lambda part: part[(index[0], slice(None), *index[2:])])


def refuse_channel_order(func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    raise CannotLift(f"'{func.__name__}' moves the channel axis, which streams cannot follow; {REMEDY}")


RULES: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(REDUCTIONS, reduction),
    **dict.fromkeys(SPATIAL_SELECTION, along_space),
    **dict.fromkeys(("view", "reshape"), view),
    "flatten": flatten,
    "squeeze": squeeze,
    "unsqueeze": unsqueeze,
    "max_pool2d": max_pool2d,
    "prelu": prelu,
    "pad": pad,
    **dict.fromkeys(("cat", "concat", "concatenate"), cat),
    "chunk": chunk,
    "split": split,
    "__getitem__": getitem,
    **ARITHMETIC,
    **dict.fromkeys(("permute", "transpose", "swapaxes", "movedim", "t"), refuse_channel_order),
}
