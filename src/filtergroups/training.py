"""The training loop, top to bottom."""

import errno
import gc
import math
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from filtergroups.baselines import METHODS
from filtergroups.build import build_network
from filtergroups.checking import refuse_uneven, refuse_untrainable
from filtergroups.checkpoint import Progress, optimiser_tensors, restore, restore_optimiser, save_checkpoint
from filtergroups.config import Config
from filtergroups.data.load import prepare_data
from filtergroups.finishing import SAMPLES, measure_best, recalibrate_best
from filtergroups.finite import Diverged, check_finite, largest, listed, not_finite, remedy
from filtergroups.groups.objective import Terms, objective
from filtergroups.groups.processes import batch_of_all, rank, rows_of_this_process, world_size
from filtergroups.journal import Journal, shared_parts
from filtergroups.measuring import criteria, measure, measure_plain, plain_answers
from filtergroups.memory import refuse_too_large
from filtergroups.network import Statistics
from filtergroups.origin import data_tensors, settings, versions
from filtergroups.paths import AnyPath, as_path
from filtergroups.progress import Reporter, Silent
from filtergroups.reading import reading
from filtergroups.resuming import From, Wish, going_on, keep, loaded, point_of
from filtergroups.run import Run, RunError, what_and_where
from filtergroups.schedule import (
    generator_for,
    learning_rate_at,
    noise_at,
    probability_factor,
    rising,
    seed_for,
    temperature_at,
)
from filtergroups.signals import Stopped, stop_signals
from filtergroups.speaking import how_to_resume
from filtergroups.starting import hold, seen_alike, take_over
from filtergroups.together import agreeing, asked_anywhere, first_then_others, joined, make_fabric
from filtergroups.weighting import TaskWeights

LOG_EVERY = 20


def train(config: Config | AnyPath, run: AnyPath | None = None, *, report: Reporter | None = None) -> Run:
    """Train a network as a config (or its TOML file) says; everything it writes is in the run folder.

    run: None: runs/NAME for the file NAME.toml, below the current folder.
    """
    config, run = what_and_where(config, run)
    refuse_too_large(config)
    refuse_uneven(config)  # before processes are started
    Run(run).refuse_begun()
    fabric = make_fabric(config.training, run)
    with agreeing():
        if fabric.is_global_zero:
            # Only here does a config say where something is written: whoever trains by it trusts it.
            prepare_data(config, (report or Silent()).preparing)
            Run.create(run, config)
    return _train(Run(run), config, fabric, report or Silent())


def resume(
    run: AnyPath,
    *,
    overrides: Sequence[str] = (),
    accept_changes: bool = False,
    checkpoint: From = "last",
    report: Reporter | None = None,
) -> Run:
    """Go on with a run from its last checkpoint; the result is that of a run never interrupted.

    Data or settings that are not what they were are named and refused, unless accept_changes.
    overrides: settings that hold from now on, such as "training.learning_rate=1e-4" after a loss that diverged.
    checkpoint: "last", or "previous", the one before it.
    """
    opened, wish = Run.open(as_path(run)), Wish(tuple(overrides), accept_changes, checkpoint)
    config = wish.config(opened)
    refuse_too_large(config)
    refuse_uneven(config)
    return _train(opened, config, make_fabric(config.training, opened.path), report or Silent(), wish)


def _train(run: Run, config: Config, fabric: Any, report: Reporter, wish: Wish | None = None) -> Run:
    report = report if fabric.is_global_zero else Silent()
    with ExitStack() as stack, joined(run.path):
        stack.callback(report.stop)

        def prepared() -> Trainer:
            if fabric.is_global_zero:
                stack.enter_context(run.locked())
            return Trainer(run, config, fabric, report, wish or Wish())

        try:
            first_then_others(prepared).fit()
        except OSError as error:
            remedy = "free some space, then resume" if error.errno == errno.ENOSPC else "mend that, then resume"
            raise RunError(f"{error.filename or run.path}: could not write: {error.strerror}; {remedy}") from None
    return run


class Trainer:
    """One run's network, data and optimiser, and the loop over steps."""

    def __init__(self, run: Run, config: Config, fabric: Any, report: Reporter, wish: Wish) -> None:
        self.run, self.config, self.fabric = run, config, fabric
        self.training = config.training
        self.journal = Journal(run, report, fabric.is_global_zero)
        self.wish, self.point = wish, point_of(run, wish)
        self.data = seen_alike(loaded(config, self.point, report.preparing), config.method)
        self.kept_of_data = data_tensors(self.data)
        refuse_untrainable(config, self.data)
        self.part = self.data.parts["train"]
        self.steps_per_epoch = len(self.part) // self.training.batch_size
        self.steps = self.training.epochs * self.steps_per_epoch
        self.fixed_from = (self.training.epochs - self.training.finetune_epochs) * self.steps_per_epoch
        self.network = build_network(config, self.data)
        self.weights = TaskWeights([task.name for task in self.data.tasks], self.training)
        self.progress = Progress(
            constants=self.data.constants, names=self.data.names, annealed=self.fixed_from,
            plain=plain_answers(self.part, self.data.tasks, self.training.batch_size),
            config=settings(config), versions=versions(),
        )  # fmt: skip
        self._setup()

    def _optimiser(self) -> torch.optim.Optimizer:
        learned = [assignment for assignment in self.network.assignments() if assignment.kind == "learned"]
        probabilities = [parameter for assignment in learned for parameter in assignment.parameters()]
        known = {id(parameter) for parameter in probabilities}
        others = [p for p in [*self.network.parameters(), *self.weights.parameters()] if id(p) not in known]
        rate = self.training.learning_rate
        groups = [{"params": others, "lr": rate, "factor": 1.0, "of_p": False}]
        if probabilities:
            factor = probability_factor(self.config, self.fixed_from)
            groups.append(
                {"params": probabilities, "lr": rate * factor, "factor": factor, "of_p": True, "weight_decay": 0.0}
            )
        kind = torch.optim.AdamW if self.training.optimiser == "adamw" else torch.optim.Adam
        return kind(groups, betas=(0.9, 0.999), weight_decay=self.training.weight_decay)

    def _setup(self) -> None:
        """Restore the checkpoint that the run goes on from, if there is one."""
        self.last_step: int | None = None  # of the last checkpoint, where it is worth keeping once there is a newer one
        if self.point is None:
            take_over(self.network, self.config.method)
            self.optimiser = self._optimiser()
            if self.wish.overrides and self.fabric.is_global_zero:
                keep(self.run, self.config)
        else:
            self._go_on()
        hold(self.network, self.config.method)
        if self.fabric.is_global_zero:
            problem = self.run.forget_after(self.progress.step)
            if problem:
                self.journal.say(problem)
        self.weights.to(self.fabric.device)

    def _go_on(self) -> None:
        assert self.point is not None
        point, changes = going_on(self.run, self.point, self.wish, self.config, self.data)
        plain = self.progress.plain
        self.progress, tensors = replace(point.progress, plain=plain | point.progress.plain), point.tensors
        if self.progress.fixed:
            self.fixed_from = self.progress.annealed  # the last phase has begun when it has begun
        elif self.progress.annealed != self.fixed_from:
            self.progress = replace(self.progress, annealed=self.fixed_from)
        if self.progress.step > self.steps:
            raise RunError(
                f"{self.run.path}: expected a run of more than the {self.progress.step} steps that are done, found "
                f"{self.steps}; raise training.epochs"
            )
        restore(self.network, self.progress, tensors, point.file)
        self.optimiser = self._optimiser()  # of the parameters that a fixed network has
        left_over = len(self.network.assignments()) if self.progress.fixed else 0
        restore_optimiser(self.optimiser, tensors, point.file, left_over=left_over)
        learned = {k.removeprefix("weights/"): v for k, v in tensors.items() if k.startswith("weights/")}
        with reading(point.file, "the tasks' weights of this config", RunError, "use another, or train again"):
            self.weights.load_state_dict(learned)
        for note in point.notes:
            self.journal.say(note)
        if self.fabric.is_global_zero:
            if changes or self.wish.overrides:
                keep(self.run, self.config)
            if changes:
                self.run.forget_results_after(self.progress.step)
            if changes or not point.is_last:
                self._save()  # a later checkpoint is of a future that is done again, perhaps differently
        self.last_step = self.progress.step

    def fit(self) -> None:
        self._set_up_processes()
        start = self.progress.step
        self.validation = self.data.parts.get(self.config.chosen_by)
        if self.validation is not None:
            self.plain = measure_plain(
                self.validation, self.data.tasks, self.progress.plain,
                batch_size=self.training.batch_size, most=self.training.validate_examples,
            )  # fmt: skip
        if start == 0:
            self._describe()
            self.journal.snapshot(self.network, 0)
        self.journal.open(self.steps, start)
        self.waited, self.busy = 0.0, 0.0
        with stop_signals(several=world_size() > 1) as asked:
            for step in range(start, self.steps):
                # Later than that where finetune_epochs was set meanwhile.
                if step >= self.fixed_from and not self.progress.fixed and self.network.is_random:
                    self._fix()
                self._step(step)
                self._after(step + 1)
                if number := asked_anywhere(asked[0] if asked else 0, self.fabric.device):
                    self._check_state(step + 1)
                    self._save()
                    raise Stopped(how_to_resume(self.run.path), step + 1, number)
        self._finish()

    def _set_up_processes(self) -> None:
        # What there was listens, with several processes, to gradients of parameters that are no more.
        self.model: Any = None
        gc.collect()
        self.model, self.fabric_optimiser = self.fabric.setup(self.network, self.optimiser)

    def _describe(self) -> None:
        sizes = {name: len(part) for name, part in self.data.parts.items()}
        parameters = sum(parameter.numel() for parameter in self.network.parameters())
        self.journal.say(
            f"{self.config.method.name} on {self.config.network.name}: {parameters:,} parameters, "
            f"{', '.join(f'{count} {name}' for name, count in sizes.items())} examples, {self.steps} steps"
        )
        if not self.network.is_random and not METHODS[self.config.method.name].cross_stitch:
            self.journal.say(f"every kernel is fixed in its group from the start; {self.network.liveness()}")
        if self.training.cost_factor:
            model = self.network.cost_model(self.part.batch([0]).images.shape[1:])
            for line in model.described(self.training.cost_target):
                self.journal.say(line)

    def _indices(self, step: int) -> list[int]:
        epoch, place = divmod(step, self.steps_per_epoch)
        order = torch.randperm(len(self.part), generator=generator_for(self.config.seed, epoch, "order"))
        size = self.training.batch_size
        return order[place * size : (place + 1) * size].tolist()

    def _step(self, step: int) -> None:
        began = time.perf_counter()
        seed = self.config.seed
        # Every process makes the whole batch and takes its part, so that draws do not depend on their number.
        batch = self.part.batch(self._indices(step), generator_for(seed, step, "augmentation")).to(self.fabric.device)
        images = batch.images[rows_of_this_process(len(batch.images) // world_size())]
        loaded = time.perf_counter()
        began_at = self.fixed_from if self.progress.fixed and self.training.rewind else 0
        factor = learning_rate_at(step - began_at, self.steps - began_at, self.training)
        for group in self.optimiser.param_groups:
            pace = rising(step, self.fixed_from) if group["of_p"] and self.config.has_own_banks else factor
            group["lr"] = self.training.learning_rate * group["factor"] * pace
        torch.manual_seed(seed_for(seed, step, f"dropout/{rank()}"))
        temperature = temperature_at(step, self.fixed_from, self.config.annealing)
        self.model.train()
        outputs = self.model(
            images, temperature=temperature, generator=generator_for(seed, step, "gates"),
            noise=noise_at(step, self.fixed_from, self.config.annealing),
        )  # fmt: skip
        # The loss is that of the whole batch on every process: a root of a mean is not the mean of roots.
        outputs = {name: batch_of_all(output.float()) for name, output in outputs.items()}
        terms = objective(
            self.network, outputs, batch.labels, masks=batch.masks,
            weight_factor=self.training.weight_factor, entropy_factor=self.training.entropy_factor,
            # Once every kernel is fixed the cost is what it is.
            cost_factor=0.0 if self.progress.fixed else self.training.cost_factor,
            cost_target=self.training.cost_target, image_shape=images.shape[1:],
        )  # fmt: skip
        total = self.weights(terms.tasks) + terms.weights + terms.entropy
        if terms.cost is not None:
            total = total + terms.cost
        self._check_loss(terms, total, step)
        self.fabric_optimiser.zero_grad(set_to_none=True)
        self.fabric.backward(total)
        if self.training.clip_norm:
            self.fabric.clip_gradients(self.model, self.fabric_optimiser, max_norm=self.training.clip_norm)
        self.fabric_optimiser.step()
        self.waited += loaded - began
        self.busy += time.perf_counter() - began
        if step % LOG_EVERY == 0:
            self._log(step + 1, terms, temperature, factor, images.shape[1:])

    def _check_loss(self, terms: Terms, total: Tensor, step: int) -> None:
        """Every term is in the total, which is the one number that a step waits for."""
        if math.isfinite(total.item()):
            return
        named = {f"task '{name}'": loss for name, loss in terms.tasks.items()}
        named |= {"the kernels' norm": terms.weights, "the entropy of p": terms.entropy}
        found = {name: loss.item() for name, loss in named.items() if not math.isfinite(loss.item())}
        name, value = next(iter(found.items()), ("all tasks together", total.item()))
        names = not_finite(self.network, self.weights, self.optimiser)
        where = f"NaN or infinity in {listed(names)}" if names else largest(self.network)
        raise Diverged(f"the loss of {name} became {value} at step {step}: {where}; {self._kept()}; {remedy(names)}")

    def _check_state(self, done: int) -> None:
        """Before anything is measured or written: nothing that is not finite replaces what was."""
        what = f"step {done}: expected finite numbers to keep"
        check_finite(self.network, self.weights, self.optimiser, what=what, kept=self._kept())

    def _kept(self) -> str:
        slower = f"`{how_to_resume(self.run.path)} --set training.learning_rate={self.training.learning_rate / 10:g}`"
        if not self.run.checkpoint("last").exists():
            return f"nothing is saved yet: {slower} begins anew"
        return f"the last checkpoint is kept: {slower} goes on from it"

    def _log(self, step: int, terms: Terms, temperature: float, factor: float, image_shape: Sequence[int]) -> None:
        losses = {name: loss.item() for name, loss in terms.tasks.items()}
        entry: dict[str, Any] = {
            "step": step, "kind": "train", "epoch": (step - 1) // self.steps_per_epoch, "losses": losses,
            "weights": terms.weights.item(), "learning_rate": self.training.learning_rate * factor,
            **self._costs(terms, image_shape),
        }  # fmt: skip
        method = METHODS[self.config.method.name]
        if method.kind != "fixed":  # only gates that are drawn have a temperature, and only p an entropy
            entry |= {"entropy": terms.entropy.item(), "temperature": temperature}
        if not method.cross_stitch:  # whose kernels are in no group
            entry["shared"] = shared_parts(self.network)
        self.journal.training(entry)

    def _costs(self, terms: Terms, image_shape: Sequence[int]) -> dict[str, float]:
        """The cost's term, and multiplications as shares of the plain network's: the mean over p, and the mode's."""
        if not self.training.cost_factor:
            return {}
        plain = self.network.cost_model(image_shape).plain
        return {
            "cost": 0.0 if terms.cost is None else terms.cost.item(),
            "expected_cost": self.network.expected_multiplications(image_shape).item() / plain,
            "mode_cost": self.network.multiplications(image_shape) / plain,
        }

    def _after(self, done: int) -> None:
        """What happens after some steps: validation, snapshots, checkpoints."""
        epoch_ends = done % self.steps_per_epoch == 0
        every = self.training.validate_every
        validates = (done % every == 0 if every else epoch_ends) or done == self.steps
        saves = done % self.training.checkpoint_every == 0 or done == self.steps
        if validates or saves or epoch_ends:
            self._check_state(done)
        if validates:
            self._validate(done)
        if epoch_ends:
            self.journal.snapshot(self.network, done)
        self.progress = replace(self.progress, step=done)
        if saves:
            self._save()

    def _validate(self, done: int) -> None:
        if self.validation is None:
            return
        # A batch of patches says little of a volume's statistics, by which volumes are predicted.
        norms: Statistics = "running" if self.config.chosen_by in self.data.volumes else "batch"
        samples = SAMPLES if self.network.is_random else 0
        results = measure(
            self.network, self.validation, batch_size=self.training.batch_size, samples=samples,
            seed=self.config.seed,  # that of `evaluate`, so that both say the same of a checkpoint
            temperature=temperature_at(done, self.fixed_from, self.config.annealing),
            statistics=norms, most=self.training.validate_examples, device=self.fabric.device,
        )  # fmt: skip
        left = criteria(self.data.tasks, results, self.plain)
        self.journal.validation(done, self.config.chosen_by, results, left, norms, samples)
        self._keep_best(done, left)

    def _keep_best(self, done: int, left: dict[str, float]) -> None:
        # The last phase is what gets shipped: its network replaces sampled ones whatever they reached.
        best = dict(self.progress.best)
        for name, value in left.items():
            if value < best.get(name, math.inf):
                best[name] = value
                progress = replace(self.progress, step=done, best=best)
                if self.fabric.is_global_zero:
                    save_checkpoint(
                        self.run.checkpoint("best" if name == "combined" else f"best-{name}"), self.network, progress
                    )
        self.progress = replace(self.progress, best=best)

    def _fix(self) -> None:
        """The last phase: every kernel stays in one group, and the best so far counts no more."""
        # Weights that begin anew know nothing of single kernels: what was learned is how many each group gets.
        by_mean = self.training.rewind or self.config.has_own_banks
        self.network.fix("proportions" if by_mean else "mode")
        self.progress = replace(self.progress, fixed=True, best={})
        where = "each group has its part of them" if by_mean else "in its most probable group"
        self.journal.say(f"every kernel is now fixed: {where}; {self.network.liveness()}")
        if self.training.rewind:
            self._begin_anew()
        self._change_optimiser()
        self._set_up_processes()

    def _change_optimiser(self) -> None:
        """An optimiser of the parameters that are left, with its state of those that go on."""
        known = self.optimiser.state
        self.optimiser = self._optimiser()
        for group in self.optimiser.param_groups:
            for parameter in group["params"] if not self.training.rewind else ():
                if parameter in known:
                    self.optimiser.state[parameter] = known[parameter]

    def _begin_anew(self) -> None:
        """Weights, norms and optimiser as they were at the first step: what noisy gates made of them is forgotten."""
        first = build_network(self.config, self.data)
        for fresh, learned in zip(first.assignments(), self.network.assignments(), strict=True):
            fresh.fix(learned.mode())
        first.join_banks()
        self.network.load_state_dict(first.state_dict())
        self.weights.load_state_dict(TaskWeights([task.name for task in self.data.tasks], self.training).state_dict())
        self.journal.say("the weights begin anew, with the groups that were learned")

    def _save(self) -> None:
        if self.fabric.is_global_zero:
            learned = {f"weights/{name}": value for name, value in self.weights.state_dict().items()}
            extra = {**optimiser_tensors(self.optimiser), **learned, **self.kept_of_data}
            # Never twice the same: a signal may come right after a step that was saved.
            newer = self.last_step is not None and self.last_step != self.progress.step
            before = self.run.checkpoint("previous") if newer else None
            save_checkpoint(self.run.checkpoint("last"), self.network, self.progress, extra, before=before)
        self.last_step = self.progress.step

    def _finish(self) -> None:
        # Without a part that chooses, the best is the end, also where a training goes on for longer.
        chosen = self.validation is not None and self.run.checkpoint("best").exists()
        if self.fabric.is_global_zero and not chosen:
            save_checkpoint(self.run.checkpoint("best"), self.network, self.progress)
        if self.fabric.is_global_zero:
            for step in (recalibrate_best, measure_best):
                step(self.run, self.config, self.data, self.fabric.device, self.journal)
        self.journal.close(self.steps)
        if self.busy:
            self.journal.say(
                f"done: {self.busy:.0f} s of training, {self.waited / self.busy:.1%} of it waiting for data"
            )
