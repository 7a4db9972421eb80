"""Learn which convolution kernels tasks share, and which they keep to themselves.

tasks = [fg.Regression("age", scale=100), fg.Classification("gender", classes=2)]
net = fg.vgg11(tasks)                              # or fg.highresnet(tasks), or fg.lift(your_cnn, tasks)
outputs = net(images, temperature=fg.anneal(step), generator=g)
fg.objective(net, outputs, labels).total.backward()
net.predict(images, samples=50, generator=g)       # per task: value, spread

fg.train("my.toml")                                # what the command line does, in one call each: into runs/my
fg.calibrate("runs/my")
fg.evaluate("runs/my")
fg.predict("runs/my", "images", "predictions.csv") # files or folders, one or several
fg.export("runs/my")                               # a small plain network: runs/my/model.onnx
fg.report("runs/my", "report.html")                # see what was learned
fg.figures("runs/my", "figures", format="pdf")     # the same for a paper
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from filtergroups.baselines import METHODS
    from filtergroups.calibrating import calibrate
    from filtergroups.compaction.build import compact
    from filtergroups.compaction.files import load_compact, save_compact
    from filtergroups.config_file import load_config
    from filtergroups.evaluation import evaluate
    from filtergroups.exporting import export
    from filtergroups.groups.annealing import anneal
    from filtergroups.groups.assignment import Assignment
    from filtergroups.groups.objective import objective
    from filtergroups.groups.routing import Family, family
    from filtergroups.groups.streams import CannotLift
    from filtergroups.inference import predict
    from filtergroups.network import GroupedNetwork, lift
    from filtergroups.networks.highresnet import highresnet
    from filtergroups.networks.vgg import vgg11
    from filtergroups.paper_figures import figures
    from filtergroups.reporting import report
    from filtergroups.reproduction.runner import reproduce
    from filtergroups.tasks import Classification, ImageRegression, Prediction, Regression, Segmentation
    from filtergroups.training import resume, train

__version__ = "0.1.0"
__all__ = [
    "METHODS",
    "Assignment",
    "CannotLift",
    "Classification",
    "Family",
    "GroupedNetwork",
    "ImageRegression",
    "Prediction",
    "Regression",
    "Segmentation",
    "anneal",
    "calibrate",
    "compact",
    "evaluate",
    "export",
    "family",
    "figures",
    "highresnet",
    "lift",
    "load_compact",
    "load_config",
    "objective",
    "predict",
    "report",
    "reproduce",
    "resume",
    "save_compact",
    "train",
    "vgg11",
]

# Where each name lives: it is imported when it is first used, so that the command line answers at once.
_HOMES = {
    "baselines": ("METHODS",),
    "calibrating": ("calibrate",),
    "compaction.build": ("compact",),
    "compaction.files": ("load_compact", "save_compact"),
    "config_file": ("load_config",),
    "evaluation": ("evaluate",),
    "exporting": ("export",),
    "groups.annealing": ("anneal",),
    "groups.assignment": ("Assignment",),
    "groups.objective": ("objective",),
    "groups.routing": ("Family", "family"),
    "groups.streams": ("CannotLift",),
    "inference": ("predict",),
    "network": ("GroupedNetwork", "lift"),
    "networks.highresnet": ("highresnet",),
    "networks.vgg": ("vgg11",),
    "paper_figures": ("figures",),
    "reporting": ("report",),
    "reproduction.runner": ("reproduce",),
    "tasks": ("Classification", "ImageRegression", "Prediction", "Regression", "Segmentation"),
    "training": ("resume", "train"),
}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    for home, names in _HOMES.items():
        if name in names:
            value = getattr(import_module(f"filtergroups.{home}"), name)
            globals()[name] = value
            return value
    raise AttributeError(f"module 'filtergroups' has no attribute '{name}'")


def __dir__() -> list[str]:
    return __all__
