"""Learn which convolution kernels tasks share, and which they keep to themselves.

tasks = [fg.Regression("age", scale=100), fg.Classification("gender", classes=2)]
net = fg.vgg11(tasks)                              # or fg.highresnet(tasks), or fg.lift(your_cnn, tasks)
outputs = net(images, temperature=fg.anneal(step), generator=g)
fg.objective(net, outputs, labels).total.backward()
net.predict(images, samples=50, generator=g)       # per task: value, spread
"""

from filtergroups.baselines import METHODS
from filtergroups.groups.annealing import anneal
from filtergroups.groups.assignment import Assignment
from filtergroups.groups.objective import objective
from filtergroups.groups.routing import Family, family
from filtergroups.groups.streams import CannotLift
from filtergroups.network import GroupedNetwork, lift
from filtergroups.networks.highresnet import highresnet
from filtergroups.networks.vgg import vgg11
from filtergroups.tasks import Classification, ImageRegression, Prediction, Regression, Segmentation

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
    "family",
    "highresnet",
    "lift",
    "objective",
    "vgg11",
]
