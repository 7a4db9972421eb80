"""Networks of MONAI, unmodified, become grouped and keep their weights."""

import warnings

import pytest
import torch
from torch import nn

import filtergroups as fg
from tests import laws
from tests.laws import generator
from tests.test_cost import counted

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # MONAI's imports warn of other packages' future
    from monai.networks import nets

TASKS = [fg.ImageRegression("ct"), fg.Segmentation("organs", classes=3)]

# name -> (network, shape of its images, grouped layers, distinct assignments)
NETWORKS = {
    "ResNet": (lambda: nets.resnet18(spatial_dims=2, n_input_channels=3, num_classes=8), (2, 3, 64, 64), 21, 13),
    "ResNet-zero-padded": (
        lambda: nets.ResNet(
            "basic", [1, 1, 1, 1], [8, 16, 16, 16], spatial_dims=2, n_input_channels=1, num_classes=4, shortcut_type="A"
        ),
        (2, 1, 32, 32),
        10,
        6,
    ),
    "ResNet-3d": (
        lambda: nets.ResNet(
            "bottleneck", [1, 1, 1, 1], [4, 8, 8, 8], spatial_dims=3, n_input_channels=1, num_classes=4
        ),
        (2, 1, 32, 32, 32),
        18,
        14,
    ),
    "BasicUNet": (lambda: nets.BasicUNet(2, 1, 8, features=(8, 8, 16, 16, 32, 8)), (2, 1, 32, 32), 23, 23),
    "BasicUNet-3d": (lambda: nets.BasicUNet(3, 1, 8, features=(4, 4, 8, 8, 8, 4)), (2, 1, 32, 32, 32), 23, 23),
    "UNet": (lambda: nets.UNet(2, 1, 8, (8, 16, 32), (2, 2), num_res_units=2), (2, 1, 32, 32), 13, 8),
    "SegResNet": (lambda: nets.SegResNet(2, init_filters=8, in_channels=1, out_channels=8), (2, 1, 32, 32), 32, 17),
    "DenseNet": (
        lambda: nets.DenseNet(2, 3, 8, init_features=8, growth_rate=4, block_config=(2, 2)), (2, 3, 32, 32), 11, 11),
    "HighResNet": (lambda: nets.HighResNet(2, 1, 8), (2, 1, 16, 16), 21, 12),
    "SEResNet": (
        lambda: nets.SENet(
            2, 3, "se_resnet_bottleneck", [1, 1, 1, 1], groups=1, reduction=16, dropout_prob=None, num_classes=8
        ),
        (2, 3, 64, 64),
        28,
        20,
    ),
    "EfficientNet": (
        lambda: nets.EfficientNetBN("efficientnet-b0", pretrained=False, spatial_dims=2, in_channels=3, num_classes=8),
        (2, 3, 64, 64), 66, 41),
    "DynUNet": (lambda: nets.DynUNet(2, 1, 8, [3, 3, 3], [1, 2, 2], [2, 2]), (2, 1, 32, 32), 13, 13),
}  # fmt: skip


def flat_heads():
    return {task.name: nn.Flatten() for task in TASKS}


@pytest.fixture(params=NETWORKS)
def case(request):
    make, shape, layers, assignments = NETWORKS[request.param]
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make(), shape, layers, assignments


def test_everything_shared_is_the_plain_network(case):
    plain, shape, _, _ = case
    plain = plain.double().eval()
    network = fg.lift(plain, TASKS, heads=flat_heads(), method="hard_sharing")
    batch = torch.randn(shape, generator=generator(), dtype=torch.float64)
    torch.testing.assert_close(network(batch)["ct"], plain(batch).flatten(1), rtol=1e-10, atol=1e-10)


def test_layers_are_found_and_sums_tied(case):
    plain, _, layers, assignments = case
    network = fg.lift(plain, TASKS, heads=flat_heads())
    assert len(list(network.grouped_layers())) == layers
    assert len(network.assignments()) == assignments


def test_laws_hold(case):
    plain, shape, _, _ = case
    network = fg.lift(plain.double(), TASKS, heads=flat_heads())
    network.eval()  # dropout would hide the law
    batch = torch.randn(shape, generator=generator(), dtype=torch.float64)
    laws.assert_same_seed_same_outputs(network, batch)
    laws.fix_at_random(network)
    laws.assert_task_loss_leaves_strangers_untouched(network, batch)
    laws.assert_output_ignores_strangers(network, batch)


def test_it_trains(case):
    plain, shape, _, _ = case
    network = fg.lift(plain, TASKS, heads=flat_heads()).train()
    for temperature in (1.0, 0.1):
        network.zero_grad()
        outputs = network(torch.randn(shape), temperature=temperature, generator=generator())
        sum(output.square().mean() for output in outputs.values()).backward()
        found = [p.grad for p in network.parameters() if p.grad is not None]
        assert found
        assert all(torch.isfinite(gradient).all() for gradient in found)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: nets.VNet(2, 1, 8), r"module 'in_tr' \(InputTransition\).*'repeat'.*per_stream"),
        (lambda: nets.AttentionUnet(2, 1, 8, (8, 16), (2,)), r"\(AttentionBlock\).*per_stream"),
    ],
)
def test_what_cannot_be_lifted_is_named(make, said):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plain = make()
    with pytest.raises(fg.CannotLift, match=said):
        fg.lift(plain, TASKS)


@pytest.mark.parametrize("tie_sums", [True, False])
@pytest.mark.parametrize("name", ["ResNet-zero-padded", "UNet", "DenseNet", "EfficientNet"])
def test_multiplications_are_those_of_a_pass(name, tie_sums):
    make, shape, *_ = NETWORKS[name]
    heads = {task.name: nn.Identity() for task in TASKS}
    network = fg.lift(make(), TASKS, heads, example=torch.randn(shape), tie_sums=tie_sums)
    laws.fix_at_random(network)
    assert network.multiplications(shape[1:]) == counted(network, shape[1:])
