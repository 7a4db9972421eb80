"""Tasks whose right sharing is known: a teacher network with planted groups labels generated images.

The teacher is a grouped network whose kernels were put in groups by a seed, more of them shared in the first layers
than in the last. Its outputs are the tasks' labels, pixel by pixel. A student has the same kernels but does not know
the groups: p starts at .2/.6/.2 and is learned. With the teacher's weights the planted groups are the only ones that
give its outputs, so the student's most probable groups can be counted right or wrong.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from filtergroups.groups.annealing import anneal
from filtergroups.network import GroupedNetwork, lift
from filtergroups.progress import Reporter
from filtergroups.schedule import generator_for
from filtergroups.tasks import ImageRegression

SHARED = (0.7, 0.5, 0.3)  # of the kernels of each layer
SIZE, HELD_OUT = 12, 256
DEFAULTS = {
    "tasks": 2, "groups": "tasks+shared", "per_example": True, "estimator": "soft", "weights": "known",
    "widths": [16, 24, 32], "steps": 1200, "batch": 32, "rate": 0.03, "weight_rate": 1e-3, "init": "shared",
}  # fmt: skip


class Backbone(nn.Module):
    """3×3 convolution, norm and ReLU, a layer a width, at full resolution."""

    def __init__(self, widths: list[int]) -> None:
        super().__init__()
        channels, layers = 3, list[nn.Module]()
        for width in widths:
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
            channels = width
        self.layers = nn.Sequential(*layers)

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.layers(images)
        return features


def planted_run(job: dict[str, Any], report: Reporter) -> dict[str, Any]:
    """Plant, learn and compare; the outcome of one row and seed."""
    options = {**DEFAULTS, **job["options"]}
    seed = job["seed"]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        teacher, groups = planted_teacher(options, generator_for(seed, 0, "planted groups"))
        student = student_of(teacher, options)
    before = [assignment.probabilities().detach().mean(0).tolist() for assignment in student.assignments()]
    learn(student, teacher, options, seed, report)
    return {
        "values": compared(student, teacher, groups, seed, counted=options["weights"] != "fresh"),
        "parameters": sum(parameter.numel() for parameter in student.parameters()),
        "proportions": {
            "groups": list(student.family.names),
            "layers": [layer.name for layer in student.grouped_layers()],
            "start": before,
            "learned": [a.probabilities().detach().mean(0).tolist() for a in student.assignments()],
            "mode": [_shares(a.mode(), len(student.family)).tolist() for a in student.assignments()],
        },
    }


def planted_teacher(options: dict[str, Any], generator: torch.Generator) -> tuple[GroupedNetwork, list[Tensor]]:
    """A network with groups drawn by a generator, and these groups by layer."""
    tasks = [ImageRegression(f"task_{n}") for n in range(options["tasks"])]
    backbone = Backbone(options["widths"])
    for module in backbone.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight)
    teacher = lift(backbone, tasks, groups=options["groups"])
    for head in teacher.heads.modules():
        if isinstance(head, nn.Conv2d):
            # Neither task may be nearly blind to a kernel: whether it shares it could then not be told.
            sign = torch.sign(torch.randn(head.weight.shape))
            head.weight.data = sign * (0.5 + torch.rand(head.weight.shape))
    planted = []
    for assignment, shared in zip(teacher.assignments(), SHARED, strict=True):
        share = torch.full((len(teacher.family),), (1 - shared) / (len(teacher.family) - 1))
        share[teacher.family.full] = shared
        groups = torch.multinomial(share, assignment.kernels, replacement=True, generator=generator)
        assignment.fix(groups)
        planted.append(groups)
    return teacher, planted


def student_of(teacher: GroupedNetwork, options: dict[str, Any]) -> GroupedNetwork:
    """A network of the same form that does not know the groups; its weights are the teacher's, or fresh."""
    student = lift(
        Backbone(options["widths"]), teacher.tasks, groups=options["groups"], init=options["init"],
        estimator=options["estimator"], per_example=options["per_example"], threshold=0.0,
    )  # fmt: skip
    if options["weights"] != "fresh":
        own = student.state_dict()
        taught = teacher.state_dict()
        student.load_state_dict({name: own[name] if name.endswith("rho") else taught[name] for name in own})
    return student


def images(count: int, generator: torch.Generator) -> Tensor:
    """Noise of two scales."""
    fine = torch.randn(count, 3, SIZE, SIZE, generator=generator)
    coarse = torch.randn(count, 3, SIZE // 4, SIZE // 4, generator=generator)
    return 0.7 * fine + F.interpolate(coarse, scale_factor=4)


def labels(teacher: GroupedNetwork, batch: Tensor) -> dict[str, Tensor]:
    """What the teacher says, by the norms of the batch, as the student sees it."""
    return {name: found.value for name, found in teacher.predict(batch, 0, statistics="batch").items()}


def learn(student: GroupedNetwork, teacher: GroupedNetwork, options: dict[str, Any], seed: int, told: Reporter) -> None:
    """Learn p (and the weights, where they are not known) from the teacher's answers to new images."""
    rhos = [assignment.rho for assignment in student.assignments()]
    known = {id(rho) for rho in rhos}
    weights = [parameter for parameter in student.parameters() if id(parameter) not in known]
    rates: list[dict[str, Any]] = [{"params": rhos, "lr": options["rate"]}]
    if options["weights"] == "known":
        for weight in weights:
            weight.requires_grad_(False)
    else:
        rates.append({"params": weights, "lr": options["weight_rate"]})
    optimiser = torch.optim.Adam(rates)
    scales = {name: y.std() for name, y in labels(teacher, images(HELD_OUT, generator_for(seed, 0, "scale"))).items()}
    steps = options["steps"]
    student.train()
    for step in range(steps):
        batch = images(options["batch"], generator_for(seed, step, "images"))
        truth = labels(teacher, batch)
        temperature = anneal(step, start=1.0, floor=0.1, rate=math.log(10) / max(steps / 2, 1))
        outputs = student(batch, temperature=temperature, generator=generator_for(seed, step, "gates"))
        losses = [((outputs[name].squeeze(1) - truth[name]) / scales[name]).square().mean() for name in truth]
        optimiser.zero_grad()
        torch.stack(losses).sum().backward()
        optimiser.step()
        told.preparing("learning what was planted", step + 1, steps)


def compared(
    student: GroupedNetwork, teacher: GroupedNetwork, planted: list[Tensor], seed: int, *, counted: bool
) -> dict[str, float]:
    """How much was recovered: kernels in their planted group, proportions by layer, and the teacher's answers.

    counted: kernels of fresh weights are not the teacher's, so that only proportions can be compared.
    """
    found = [assignment.mode() for assignment in student.assignments()]
    count = len(student.family)
    far = [
        (_shares(mine, count) - _shares(right, count)).abs().mean() for mine, right in zip(found, planted, strict=True)
    ]
    batch = images(HELD_OUT, generator_for(seed, 0, "held out"))
    truth = labels(teacher, batch)
    answers = labels(student, batch)
    left = [((answers[name] - truth[name]).square().mean() / truth[name].var()).item() for name in truth]
    values = {"planted.distance": torch.stack(far).mean().item(), "planted.unexplained": sum(left) / len(left)}
    if counted:
        right = torch.cat([mine == theirs for mine, theirs in zip(found, planted, strict=True)])
        values["planted.recovered"] = right.float().mean().item()
    return values


def _shares(groups: Tensor, count: int) -> Tensor:
    return torch.bincount(groups, minlength=count) / len(groups)
