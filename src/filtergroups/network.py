"""A grouped network: a lifted backbone, its tasks and their heads."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from filtergroups.baselines import Method, assignment_for, method_named
from filtergroups.groups.annealing import check_temperature
from filtergroups.groups.assignment import Assignment, Estimator, Initialisation, TiedRows
from filtergroups.groups.cost import CostModel
from filtergroups.groups.draw import Draw
from filtergroups.groups.exchange import Choice, Ungrouped
from filtergroups.groups.layer import ConcatMerge, GroupedConv, task_merge
from filtergroups.groups.lift import Lifted, lift_backbone
from filtergroups.groups.liveness import Liveness, liveness
from filtergroups.groups.norms import GroupedNorm
from filtergroups.groups.passes import Passes, has_converged, passes_at_once
from filtergroups.groups.processes import rows_of_this_process, world_size
from filtergroups.groups.recording import record
from filtergroups.groups.routing import TASKS_AND_SHARED, Family, family
from filtergroups.groups.streams import Streams
from filtergroups.networks.cross_stitch import CrossStitch, LayerStitch
from filtergroups.tasks import Prediction, Task, precise

Statistics = Literal["running", "batch"]

CONVERGED = 1e-3  # a layer whose kernels are all this close to certain is not sampled any more
CHUNK = 25  # passes whose gates are drawn together
CHECK_EVERY = 10  # passes after which a prediction looks whether it is stable


class GroupedNetwork(nn.Module):
    """One network for several tasks whose kernels belong to groups; made by `lift`, `vgg11` or `highresnet`."""

    def __init__(
        self,
        lifted: Lifted,
        tasks: Sequence[Task],
        heads: Mapping[str, nn.Module],
        groups: Family,
        *,
        method: str,
        estimator: Estimator = "soft",
        per_example: bool = False,
        threshold: float = 1e-3,
        merge_features: bool = True,
    ) -> None:
        super().__init__()
        if not 0 <= threshold < 1 / len(groups):
            raise ValueError(
                f"the threshold lies in [0, 1/{len(groups)}), so that every kernel keeps a group, found {threshold}"
            )
        self.tasks = tuple(tasks)
        self.family = groups
        self.method = method
        self.estimator: Estimator = estimator
        self.per_example = per_example
        self.threshold = threshold
        self.channels, self.spatial_dims = lifted.channels, lifted.spatial_dims
        self._example = lifted.example
        self._cost_models: dict[tuple[int, ...], CostModel] = {}
        self.backbone = lifted.backbone
        self.merges = nn.ModuleList()
        for leaf in tree_flatten(lifted.features)[0]:
            if merge_features and isinstance(leaf, Streams) and leaf.pairs.mixed:
                merge = task_merge(groups, leaf.pairs.width, leaf.axes - 2)
                self.merges.append(merge.to(leaf.device, leaf.dtype))
            else:
                self.merges.append(nn.Identity())
        self.heads = nn.ModuleDict(heads)
        self._layer_names = [layer.name for layer in lifted.layers]

    def forward(
        self,
        images: Tensor,
        temperature: float | None = None,
        generator: torch.Generator | None = None,
        noise: float = 1.0,
    ) -> dict[str, Tensor]:
        """Each task's output for a batch of images.

        With a temperature the gates are sampled by the generator; without one, at evaluation, each kernel is in its
        most probable group. Fixed assignments need neither. noise: how much of the noise the gates have; 0: none.
        """
        self._check_images(images)
        return self.drawn(images, self._draw(images, temperature, generator, noise))

    def drawn(self, images: Tensor, draw: Draw) -> dict[str, Tensor]:
        """Each task's output for images and gates."""
        features = self.backbone(Streams.of_image(images, draw))
        return {task.name: self.heads[task.name](self._merged(features, task)) for task in self.tasks}

    def _check_images(self, images: Tensor) -> None:
        if images.ndim != 2 + self.spatial_dims or images.shape[1] != self.channels:
            raise ValueError(
                f"images are batch × {self.channels} channels × {self.spatial_dims} spatial axes, "
                f"found shape {tuple(images.shape)}; reshape them or build the network for them"
            )
        if not images.is_floating_point():
            raise ValueError(f"images are floating point, found {images.dtype}; scale them, for example .float() / 255")

    def _draw(self, images: Tensor, temperature: float | None, generator: torch.Generator | None, noise: float) -> Draw:
        assignments = [layer.assignment for layer in self.grouped_layers()]
        if temperature is not None:
            check_temperature(temperature)
        if not self.is_random:
            return Draw.at_mode(self.family, assignments)
        if temperature is None:
            if self.training:
                raise ValueError(
                    f"method '{self.method}' samples its gates in training: expected temperature and generator, "
                    "found none; call net(images, temperature=anneal(step), generator=g), or net.eval() for the mode"
                )
            return Draw.at_mode(self.family, assignments)
        if generator is None:
            raise ValueError("sampling gates needs a generator, found none; pass torch.Generator().manual_seed(0)")
        count = images.shape[0]
        # In training a batch has a part on each process: gates, too, are drawn for all of it.
        several = self.per_example and self.training and world_size() > 1
        return Draw.sampled(
            self.family,
            assignments,
            temperature,
            generator,
            estimator=self.estimator,
            examples=(count * world_size() if several else count) if self.per_example else None,
            rows=rows_of_this_process(count) if several else None,
            threshold=self.threshold,
            noise=noise,
        )

    def _merged(self, features: Any, task: Task) -> Any:
        """The merge that a task's head reads: every group that contains the task."""
        leaves, tree = tree_flatten(features)
        merged = []
        for leaf, merge in zip(leaves, self.merges, strict=True):
            if not isinstance(leaf, Streams):
                merged.append(leaf)
            elif isinstance(merge, ConcatMerge):
                merged.append(merge.of(task.name, leaf.settled()))
            else:
                merged.append(leaf.dense(self.family.containing(task.name)))
        return tree_unflatten(merged, tree)

    def fix(self, how: Literal["mode", "proportions"] | None = None) -> None:
        """Put every kernel in one group for good: the most probable, or so that each group gets its part by mean p.

        None: `proportions` where groups have own banks, else `mode`. Of own banks each kernel keeps what its group has
        trained; parameters are new objects then, for which the optimiser is made anew. Weights that begin anew want
        `proportions` too: where kernels are undecided, their modes may leave a task without any.
        """
        if how not in ("mode", "proportions", None):
            raise ValueError(f"how is 'mode' or 'proportions', found {how!r}; choose one")
        if how is None:
            how = "proportions" if any(layer.banks > 1 for layer in self.grouped_layers()) else "mode"
        for assignment in self.assignments():
            assignment.fix(assignment.by_proportions() if how == "proportions" else None)
        self.join_banks()

    def join_banks(self) -> None:
        """One bank of kernels a layer, where each group had its own and every kernel is fixed in a group by now."""
        for layer in self.grouped_layers():
            if layer.assignment.kind == "fixed":
                layer.join_banks()

    @property
    def is_random(self) -> bool:
        """Are gates sampled?"""
        return any(assignment.kind != "fixed" for assignment in self.assignments())

    @property
    def passes_differ(self) -> bool:
        """Has a prediction of several passes a spread? Not where every kernel is fixed, or as good as certain."""
        return any(a.kind != "fixed" and not has_converged(a, CONVERGED) for a in self.assignments())

    def grouped_layers(self) -> Iterator[GroupedConv]:
        """The layers whose kernels are assigned to groups, in network order."""
        modules = dict(self.backbone.named_modules())
        for name in self._layer_names:
            yield modules[name]

    def assignments(self) -> list[Assignment]:
        """The assignments of all layers, each once: tied layers share one."""
        found = (layer.assignment for layer in self.grouped_layers())
        return list(dict.fromkeys(a.base if isinstance(a, TiedRows) else a for a in found))

    def liveness(self, tasks: Sequence[str] | None = None, groups: Sequence[Tensor] | None = None) -> Liveness:
        """Which kernels of each layer serve nobody once every kernel is in one group.

        tasks: whose heads count; None: all. groups: of each layer's kernels (K indices); None: the most probable.
        """
        layers = list(self.grouped_layers())
        chosen = [layer.assignment.mode() for layer in layers] if groups is None else groups
        of_layers = {layer: of_kernels.cpu() for layer, of_kernels in zip(layers, chosen, strict=True)}
        names = [task.name for task in self.tasks] if tasks is None else tasks
        images = layers[0].weight.new_zeros(self._example)
        return liveness(self.backbone, of_layers, self.family, names, images)

    def dead_kernels(self, tasks: Sequence[str] | None = None) -> dict[str, Tensor]:
        """By layer (K booleans): with every kernel in its most probable group, does no task depend on its weights?"""
        names = [layer.name for layer in self.grouped_layers()]
        return dict(zip(names, self.liveness(tasks).dead, strict=True))

    @property
    def image_shape(self) -> tuple[int, ...]:
        """Channels and space of the image that the backbone was tried on when it was lifted."""
        return tuple(self._example[1:])

    def cost_model(self, image_shape: Sequence[int] | None = None) -> CostModel:
        """The multiplications of one image of a shape (channels × space) as a function of p; `.plain` is the reference.

        None: the shape that the backbone was tried on when it was lifted. Found by one pass, then kept.
        """
        batch = self._example[0]
        shape = self.image_shape if image_shape is None else tuple(image_shape)
        if shape not in self._cost_models:
            layers = list(self.grouped_layers())
            images = layers[0].weight.new_zeros(batch, *shape)
            self._check_images(images)
            heads = {task.name: self.heads[task.name] for task in self.tasks}
            self._cost_models[shape] = record(self.backbone, layers, list(self.merges), heads, self.family, images)
        return self._cost_models[shape]

    def multiplications(self, image_shape: Sequence[int] | None = None) -> int:
        """How many the mode network needs for one image; those of norms and activations are not counted."""
        return self.cost_model(image_shape).of_groups([assignment.mode() for assignment in self.assignments()])

    def expected_multiplications(self, image_shape: Sequence[int] | None = None) -> Tensor:
        """The mean over hard gates drawn from p; differentiable."""
        return self.cost_model(image_shape).expected([a.probabilities() for a in self.assignments()])

    @torch.no_grad()
    def predict(
        self,
        images: Tensor,
        samples: int = 50,
        generator: torch.Generator | None = None,
        *,
        temperature: float = 0.1,
        statistics: Statistics = "running",
        converged: float = CONVERGED,
        precision: float | None = None,
        at_once: int | None = None,
    ) -> dict[str, Prediction]:
        """Predict with spread from several sampled passes; samples=0 is one deterministic pass of the mode network.

        statistics: norms use their running statistics, or those of this batch (the paper; a prediction then depends on
        the other images of its batch). converged: a layer whose kernels are all this close to certain is taken at its
        mode. precision: stop before `samples` passes once every standard error, of a class probability or of a real
        value in units of its scale, is at most this. at_once: passes that go side by side; None: a number that suits
        the images.
        """
        if samples < 0:
            raise ValueError(f"samples is 0 (the mode network) or more, found {samples}")
        accumulators = {task.name: task.accumulator() for task in self.tasks}
        with self.evaluating(statistics):
            if not samples:
                for name, output in self(images).items():
                    accumulators[name].add(output)
            else:
                self._check_images(images)
                passes = self.passes(temperature, generator, converged)
                side_by_side = 1 if statistics == "batch" else at_once or passes_at_once(images)
                for done, outputs in enumerate(self._all_samples(images, passes, samples, side_by_side), start=1):
                    for name, accumulator in accumulators.items():
                        accumulator.add(outputs[name])
                    if done % CHECK_EVERY == 0 and precise(accumulators, precision):
                        break
        return {name: accumulator.prediction() for name, accumulator in accumulators.items()}

    def passes(self, temperature: float, generator: torch.Generator | None, converged: float = CONVERGED) -> Passes:
        """Draws for several passes over the same images."""
        check_temperature(temperature)
        if generator is None:
            raise ValueError("sampling gates needs a generator, found none; pass torch.Generator().manual_seed(0)")
        assignments = [layer.assignment for layer in self.grouped_layers()]
        return Passes(
            self.family, assignments, temperature, generator,
            estimator=self.estimator, threshold=self.threshold, tolerance=converged,
        )  # fmt: skip

    def _all_samples(
        self, images: Tensor, passes: Passes, samples: int, side_by_side: int
    ) -> Iterator[dict[str, Tensor]]:
        for first in range(0, samples, CHUNK):
            passes.draw(min(CHUNK, samples - first), len(images) if self.per_example else None)
            yield from self.sampled(images, passes, side_by_side)

    def sampled(self, images: Tensor, passes: Passes, side_by_side: int = 1) -> Iterator[dict[str, Tensor]]:
        """The outputs of each pass that was drawn; what no gate touches is computed once for these images."""
        batch = len(images)
        for first in range(0, passes.drawn, side_by_side):
            count = min(side_by_side, passes.drawn - first)
            passes.start(first, count, batch)
            features = self.backbone(passes.enter(images))
            together = {task.name: self.heads[task.name](self._merged(features, task)) for task in self.tasks}
            for n in range(count):
                yield {
                    # Features that no gate touched are there once for all passes.
                    name: output[n * batch : (n + 1) * batch] if len(output) > batch else output
                    for name, output in together.items()
                }

    @contextmanager
    def evaluating(self, statistics: Statistics) -> Iterator[None]:
        """At evaluation, with norms by their running statistics or those of the batch; then as it was before."""
        if statistics not in ("running", "batch"):
            raise ValueError(f"statistics is 'running' or 'batch', found {statistics!r}; choose one")
        training = {module: module.training for module in self.modules()}
        norms = [module for module in self.modules() if isinstance(module, GroupedNorm)]
        self.eval()
        for norm in norms:
            norm.batch_statistics = statistics == "batch"
        try:
            yield
        finally:
            for norm in norms:
                norm.batch_statistics = False
            for module, mode in training.items():
                module.training = mode


def lift(
    backbone: nn.Module,
    tasks: Sequence[Task],
    heads: Mapping[str, nn.Module] | None = None,
    *,
    method: str = "sfg",
    groups: str | Iterable[Iterable[str]] = TASKS_AND_SHARED,
    init: Initialisation | Tensor = "shared",
    group: Choice = None,
    ungrouped: Ungrouped = "per_stream",
    per_stream: Choice = (),
    estimator: Estimator = "soft",
    per_example: bool = False,
    pooled: bool = False,
    own_banks: bool = False,
    threshold: float = 1e-3,
    tie_sums: bool = True,
    merge: Literal["concat", "sum"] = "concat",
    hidden: int | None = None,
    example: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> GroupedNetwork:
    """Turn a CNN that maps images to features into its grouped form; the given backbone stays as it is.

    heads: a module a task that maps features to the task's output; None: the tasks' own (`hidden` units).
    method: one of `filtergroups.METHODS`. groups: `tasks+shared`, `all_subsets` or a list of task sets.
    init: `uniform`, `shared`, `specific`, `random`, `mask`, or a tensor of probabilities (G, for every kernel).
    group: which convolutions and linear layers are grouped, by name pattern(s) or predicate(name, module); None: all.
    The rest are copied for each stream (`ungrouped="per_stream"`) or shared by the streams (`"shared"`).
    per_stream: modules to leave whole and copy for each stream, whatever they hold.
    threshold: gates at or below it are not computed (0: exact). per_example: a gate for each example, not the batch.
    pooled: a part of p is common to the kernels of a layer, so that they learn together what each group is worth.
    own_banks: until `fix()`, each group trains kernels of its own, so that groups are compared by what they can do and
    not by which came first. tie_sums: layers whose outputs are added share one assignment. merge: how a grouped layer
    or head reads streams that went through modules of their own. example: an image to try the backbone on, if lift
    cannot guess one.
    generator: for init="random"; None: torch's own, as for weights.
    """
    tasks = tuple(tasks)
    chosen = family([task.name for task in tasks], groups)
    how = method_named(method)
    if heads is not None:
        _check_heads(tasks, heads)
    lifted = lift_backbone(
        backbone,
        chosen,
        lambda kernels: assignment_for(how, chosen, kernels, init, generator, pooled=pooled),
        group=group,
        ungrouped=ungrouped,
        per_stream=per_stream,
        tie_sums=tie_sums,
        merge=merge,
        example=example,
    )
    _add_stitches(how, lifted.layers)
    if own_banks and how.kind == "learned":
        for layer in lifted.layers:
            layer.give_banks(len(chosen))
    if heads is None:
        width, space, like = _features(lifted)
        heads = {task.name: task.head(width, space, hidden=hidden).to(like.device, like.dtype) for task in tasks}
    network = GroupedNetwork(
        lifted,
        tasks,
        heads,
        chosen,
        method=method,
        estimator=estimator,
        per_example=per_example,
        threshold=threshold,
        merge_features=merge == "concat",
    )
    return network.train(backbone.training)


def _check_heads(tasks: Sequence[Task], heads: Mapping[str, nn.Module]) -> None:
    names = [task.name for task in tasks]
    if missing := [name for name in names if name not in heads]:
        raise ValueError(f"heads has a module for every task, found none for {missing}; add heads[{missing[0]!r}]")
    if left_over := [name for name in heads if name not in names]:
        raise ValueError(f"heads are for the tasks {names}, found one for {left_over}; drop it or add that task")


def _features(lifted: Lifted) -> tuple[int, int, Tensor]:
    """Channels and spatial axes of the backbone's features, for the tasks' own heads."""
    features = lifted.features
    if not isinstance(features, Streams):
        raise ValueError(
            f"the tasks' own heads read one tensor of features, found {type(features).__name__}; pass heads={{...}}"
        )
    return features.pairs.width, features.axes - 2, features.parts[0]


def _add_stitches(method: Method, layers: Sequence[GroupedConv]) -> None:
    if not method.cross_stitch:
        return
    stitches: dict[Assignment, CrossStitch] = {}
    views: dict[Assignment | TiedRows, LayerStitch] = {}
    for layer in layers:
        assignment = layer.assignment
        base, rows = (assignment.base, assignment.rows) if isinstance(assignment, TiedRows) else (assignment, None)
        if base not in stitches:
            stitches[base] = CrossStitch(base).to(layer.weight.device, layer.weight.dtype)
        if assignment not in views:
            views[assignment] = LayerStitch(stitches[base], rows)
        layer.stitch = views[assignment]
