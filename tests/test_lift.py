"""Any backbone becomes grouped, keeps its weights, or is refused by name."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

import filtergroups as fg
from filtergroups.groups.layer import DepthwiseConv, GroupedConv, PerStream
from tests.backbones import BACKBONES, MobileNet, ResNet18, plain_net
from tests.laws import fix_at_random, generator, randomise

TASKS = [fg.Regression("age"), fg.Classification("gender", classes=2)]
KEEP = {"age": nn.Identity(), "gender": nn.Identity()}


def warmed_up(backbone, shape):
    """As if pretrained: norms have statistics and parameters of their own."""
    randomise(backbone)
    backbone.train()
    for seed in range(3):
        backbone(torch.randn(shape, generator=generator(seed)))
    return backbone


@pytest.mark.parametrize("name", BACKBONES)
@pytest.mark.parametrize("training", [False, True])
def test_everything_shared_is_the_plain_backbone(name, training):
    make, shape = BACKBONES[name]
    backbone = warmed_up(make(), shape).double()
    for module in backbone.modules():
        if isinstance(module, nn.Dropout2d):
            module.p = 0.0
    backbone.train(training)
    network = fg.lift(backbone, TASKS, heads=KEEP, method="hard_sharing")
    batch = torch.randn(shape, generator=generator(8), dtype=torch.float64)
    expected = backbone(batch)
    for output in network(batch).values() if not training else [network(batch)["age"]]:
        torch.testing.assert_close(output, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("make", [lambda o: fg.vgg11(TASKS, width=0.25, **o), lambda o: fg.highresnet(
    [fg.ImageRegression("age"), fg.Segmentation("gender")], width=0.5, **o)], ids=["vgg11", "highresnet"])  # fmt: skip
def test_the_paper_s_networks_all_shared_are_their_plain_backbones(make):
    from filtergroups.networks.highresnet import HighResNet
    from filtergroups.networks.vgg import VGG11

    network = make({"method": "hard_sharing"}).double()
    is_vgg = network.spatial_dims == 2 and network.channels == 3
    plain = (VGG11(3, 0.25) if is_vgg else HighResNet(2, 1, 0.5)).double()
    shared = network.family.full
    # The state of the shared stream, under the plain network's names.
    state = {}
    for key, value in network.backbone.state_dict().items():
        if "assignment" in key or "merge" in key:
            continue
        if ".streams." in key:
            before, after = key.split(".streams.")
            if after.startswith(f"{shared}."):
                state[f"{before}.{after.split('.', 1)[1]}"] = value
        else:
            by_group = (
                key in {k for k, v in network.backbone.state_dict().items()}
                and value.ndim
                and (plain.state_dict()[key].shape != value.shape)
            )
            state[key] = value[shared] if by_group else value
    plain.load_state_dict(state)
    batch = torch.randn(2, network.channels, 32, 32, dtype=torch.float64)
    features = plain(batch)
    for task, output in network(batch).items():
        torch.testing.assert_close(output, network.heads[task](features), rtol=1e-10, atol=1e-10)


def test_one_task_method_is_separate_networks_of_half_width():
    network = fg.vgg11(TASKS, width=0.25, method="one_task", hidden=7).double()
    randomise(network)
    from filtergroups.networks.vgg import VGG11

    batch = torch.randn(3, 3, 32, 32, dtype=torch.float64)
    found = network(batch)
    for group, task in enumerate(("age", "gender")):
        half = VGG11(3, 0.125).double()
        previous = slice(None)
        for plain, grouped in zip(half.layers, network.backbone.layers, strict=True):
            if isinstance(plain, nn.Conv2d):
                count = grouped.kernels // 2
                own = slice(group * count, (group + 1) * count)
                plain.weight.data.copy_(grouped.weight[own, previous])
                plain.bias.data.copy_(grouped.bias[own])
                previous = own
            elif isinstance(plain, nn.BatchNorm2d):
                plain.weight.data.copy_(grouped.weight[group, own])
                plain.bias.data.copy_(grouped.bias[group, own])
            elif isinstance(plain, nn.PReLU):
                plain.weight.data.copy_(grouped.weight[group])
        head = network.heads[task]
        hidden = F.linear(half(batch), head[0].weight[:, own], head[0].bias)
        torch.testing.assert_close(found[task], head[2](head[1](hidden)), rtol=1e-10, atol=1e-10)


def test_layers_come_in_network_order_with_names_groups_and_probabilities():
    network = fg.lift(ResNet18(width=8), TASKS)
    names = [layer.name for layer in network.grouped_layers()]
    assert names[:4] == ["conv1", "layers.0.conv1", "layers.0.conv2", "layers.1.conv1"]
    assert len(names) == 20
    for layer in network.grouped_layers():
        assert layer.assignment.groups == ("age", "gender", "shared")
        assert layer.assignment.probabilities().shape == (layer.kernels, 3)


def test_layers_that_are_added_share_one_assignment():
    network = fg.lift(ResNet18(width=8), TASKS)
    of = {layer.name: layer.assignment for layer in network.grouped_layers()}
    assert of["conv1"] is of["layers.0.conv2"] is of["layers.1.conv2"]
    assert of["layers.2.conv2"] is of["layers.2.downsample.0"] is of["layers.3.conv2"]
    assert of["layers.0.conv1"] is not of["conv1"]
    assert len(network.assignments()) == 12
    untied = fg.lift(ResNet18(width=8), TASKS, tie_sums=False)
    assert len(untied.assignments()) == 20


def test_the_given_backbone_and_the_global_random_state_stay_as_they_were():
    backbone = ResNet18(width=8)
    before = copy.deepcopy(backbone.state_dict())
    state = torch.get_rng_state()
    fg.lift(backbone, TASKS, heads=KEEP)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[key]) for key, value in backbone.state_dict().items())
    assert isinstance(backbone.conv1, nn.Conv2d)


def test_chosen_convolutions_are_grouped_and_the_rest_copied_or_shared():
    for ungrouped, copies in (("per_stream", 3), ("shared", 1)):
        network = fg.lift(ResNet18(width=8), TASKS, group=["conv1", "layers.*.conv1"], ungrouped=ungrouped)
        assert [layer.name for layer in network.grouped_layers()][:3] == ["conv1", "layers.0.conv1", "layers.1.conv1"]
        others = [module for module in network.modules() if isinstance(module, PerStream)]
        assert len(others) == 11
        assert all(len(module.streams) == copies for module in others)
        outputs = network(torch.randn(2, 3, 64, 64), temperature=0.1, generator=generator())
        sum(output.sum() for output in outputs.values()).backward()
    by_predicate = fg.lift(ResNet18(width=8), TASKS, group=lambda name, module: module.kernel_size == (3, 3))
    assert all(layer.weight.shape[-1] == 3 for layer in by_predicate.grouped_layers())


def test_a_module_left_whole_runs_on_each_stream():
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.weigh = nn.Conv2d(8, 1, 1)

        def forward(self, x):
            return x * self.weigh(x).softmax(1).flatten(2).softmax(2).reshape(x.shape[0], 1, *x.shape[2:])

    backbone = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), Attention(), nn.Conv2d(8, 4, 1)).eval()
    with pytest.raises(fg.CannotLift, match=r"module '2' \(Attention\).*per_stream"):
        fg.lift(backbone, TASKS)
    network = fg.lift(backbone, TASKS, per_stream="2", heads=KEEP, method="hard_sharing")
    batch = torch.randn(2, 3, 16, 16)
    torch.testing.assert_close(network(batch)["age"], backbone(batch))
    sampled = fg.lift(backbone, TASKS, per_stream="2")
    sampled(batch, temperature=0.5, generator=generator())


def test_streams_of_their_own_modules_merge_by_concatenation_that_starts_as_the_sum():
    tasks = [fg.ImageRegression("ct"), fg.Segmentation("organs")]
    network = fg.highresnet(tasks, width=0.5).double().eval()
    merges = [layer.merge for layer in network.grouped_layers()]
    assert [merge is not None for merge in merges] == [False, True, True, True, False]
    assert set(merges[1].weights) == {"ct", "organs"}
    batch = torch.randn(2, 1, 12, 12, dtype=torch.float64)
    concatenated = network(batch, temperature=0.5, generator=generator())
    for layer in network.grouped_layers():
        layer.merge = None
    summed = network(batch, temperature=0.5, generator=generator())
    for task in tasks:
        torch.testing.assert_close(concatenated[task.name], summed[task.name])


def test_depthwise_convolutions_belong_to_the_group_of_their_channel():
    network = fg.lift(MobileNet(), TASKS)
    assert isinstance(network.backbone.depthwise, DepthwiseConv)
    assert [layer.name for layer in network.grouped_layers()] == ["stem", "squeeze", "excite", "pointwise"]
    of = {layer.name: layer.assignment for layer in network.grouped_layers()}
    assert of["stem"] is of["excite"], "channels that are multiplied share their assignment"


def test_flattened_features_read_by_a_linear_layer():
    backbone = nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1), nn.ReLU(), nn.MaxPool2d(16), nn.Flatten(), nn.Linear(6 * 16, 5)
    ).eval()
    network = fg.lift(backbone, TASKS, heads=KEEP, method="hard_sharing")
    batch = torch.randn(2, 1, 64, 64)
    torch.testing.assert_close(network(batch)["age"], backbone(batch))
    fix_at_random(fg.lift(backbone, TASKS))
    sampled = fg.lift(backbone, TASKS)
    assert sampled(batch, temperature=0.1, generator=generator())["age"].shape == (2, 1)


def test_channel_padding_split_and_slices_keep_their_kernels():
    class Juggler(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(4, 12, 1), nn.Conv2d(12, 5, 1)

        def forward(self, x):
            one, two = self.a(x).chunk(2, dim=1)
            wide = self.b(one * 2 - two / 3)
            wide = wide + F.pad(two, (0, 0, 0, 0, 3, 5))
            return self.c(torch.cat([wide[:, :7], 1 - wide[:, 7:]], 1).view(x.shape[0], 12, *x.shape[2:]))

    backbone = Juggler().double().eval()
    network = fg.lift(backbone, TASKS, heads=KEEP, method="hard_sharing")
    batch = torch.randn(2, 1, 8, 8, dtype=torch.float64)
    torch.testing.assert_close(network(batch)["age"], backbone(batch))
    network = fg.lift(backbone, TASKS, heads=KEEP)
    a, b, _ = network.grouped_layers()
    # The 8 kernels of a are tied in pairs (first and second half), and the second half to b's kernels 3 to 6.
    p = a.assignment.probabilities()
    assert torch.equal(p[:4], p[4:])
    assert len(network.assignments()) == 2
    with torch.no_grad():
        network.assignments()[0].rho.copy_(torch.randn(network.assignments()[0].rho.shape))
    assert torch.equal(a.assignment.probabilities()[4:], b.assignment.probabilities()[3:7])


def test_several_feature_maps_reach_their_heads_in_the_structure_they_have():
    class Pyramid(nn.Module):
        def __init__(self):
            super().__init__()
            self.fine, self.coarse = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 6, 3, 2, 1)

        def forward(self, x):
            fine = self.fine(x).relu()
            return {"fine": fine, "coarse": [self.coarse(fine)]}

    class Head(nn.Module):
        def forward(self, features):
            return features["fine"].mean((1, 2, 3)) + features["coarse"][0].mean((1, 2, 3))

    network = fg.lift(Pyramid(), TASKS, heads={"age": Head(), "gender": Head()})
    assert network(torch.randn(2, 1, 16, 16), temperature=1.0, generator=generator())["age"].shape == (2,)
    with pytest.raises(ValueError, match="pass heads"):
        fg.lift(Pyramid(), TASKS)


class Functional(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.weight = nn.Parameter(torch.randn(4, 4, 1, 1))

    def forward(self, x):
        return F.conv2d(self.conv(x), self.weight)


class OwnForward(nn.Conv2d):
    def forward(self, x):
        return super().forward(x) + 1


class MovesChannels(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.norm = nn.LayerNorm(4)

    def forward(self, x):
        return self.norm(self.conv(x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Shuffles(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x):
        y = self.conv(x)
        return y.view(y.shape[0], 2, 2, *y.shape[2:]).transpose(1, 2).flatten(1, 2)


class Throws(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x):
        if x.shape[-1] % 11:
            raise RuntimeError("needs multiples of 11")
        return self.conv(x)


def hooked():
    net = nn.Sequential(nn.Conv2d(3, 4, 3))
    net[0].register_forward_hook(lambda *_: None)
    return net


@pytest.mark.parametrize(
    ("backbone", "said"),
    [
        (Functional, r"\(Functional\): torch's function 'conv2d'.*nn.Conv"),
        (lambda: nn.Sequential(OwnForward(3, 4, 3)), r"module '0' \(OwnForward\)"),
        (MovesChannels, r"module 'norm' \(LayerNorm\).*per_stream"),
        (Shuffles, r"\(Shuffles\).*moves channels"),
        (lambda: nn.Sequential(nn.Conv2d(3, 6, 3), nn.Conv2d(6, 6, 3, groups=3)), r"module '1'.*groups=3.*per_stream"),
        (lambda: nn.Sequential(parametrizations.weight_norm(nn.Conv2d(3, 4, 3))), "parametrised"),
        (hooked, "hooks"),
        (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.SyncBatchNorm(4)), "SyncBatchNorm"),
        (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.Softmax(dim=1)), r"module '1' \(Softmax\).*mixes groups"),
        (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.LocalResponseNorm(2)), r"module '1' \(LocalResponseNorm\)"),
        (lambda: nn.Linear(3, 4), "lift takes a CNN"),
        (Throws, "needs multiples of 11.*example"),
    ],
)
def test_what_cannot_be_lifted_is_named_with_the_remedy(backbone, said):
    with pytest.raises(fg.CannotLift, match=said) as caught:
        fg.lift(backbone(), TASKS)
    assert "\n" not in str(caught.value)


def test_an_example_helps_where_lift_cannot_guess_one():
    network = fg.lift(Throws(), TASKS, example=torch.randn(1, 3, 22, 22))
    assert next(network.grouped_layers()).name == "conv"


def test_a_forward_that_streams_cannot_follow_silently_is_refused():
    class Reads(nn.Module):
        """Uses the number of values in a way that streams have no rule for."""

        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)
            self.calls = 0

        def forward(self, x):
            self.calls += 1
            y = self.conv(x)
            return y * (2.0 if type(y) is torch.Tensor else 3.0)

    with pytest.raises(fg.CannotLift, match="does not give what the plain one gives"):
        fg.lift(Reads(), TASKS)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"heads": {"age": nn.Identity()}}, r"none for \['gender'\]"),
        ({"heads": {**KEEP, "race": nn.Identity()}}, r"found one for \['race'\]"),
        ({"method": "soft_sharing"}, "'soft_sharing'"),
        ({"group": "nothing.*"}, "matches no module"),
        ({"per_stream": ["nothing"]}, "matches no module"),
        ({"ungrouped": "copied"}, "'copied'"),
        ({"merge": "max"}, "'max'"),
        ({"threshold": 0.5}, "threshold"),
        ({"init": "even"}, "'even'"),
        ({"init": torch.tensor([0.5, 0.5])}, "3 groups"),
        ({"init": torch.tensor([0.5, 0.5, 0.5])}, "sums to 1"),
        ({"groups": [{"age", "gender"}], "method": "one_task"}, "group of its own"),
    ],
)
def test_bad_options_are_refused_in_one_line(options, said):
    with pytest.raises(ValueError, match=said) as caught:
        fg.lift(plain_net(), TASKS, **options)
    assert "\n" not in str(caught.value)


def test_a_pixel_task_on_pooled_features_is_refused():
    with pytest.raises(ValueError, match="predicts every pixel"):
        fg.lift(plain_net(), [fg.Segmentation("organs")])


@pytest.mark.parametrize(
    ("images", "said"),
    [
        (torch.randn(2, 1, 32, 32), "3 channels"),
        (torch.randn(3, 32, 32), "2 spatial axes"),
        (torch.zeros(2, 3, 32, 32, dtype=torch.uint8), "floating point"),
    ],
)
def test_bad_images_are_refused_in_one_line(images, said):
    with pytest.raises(ValueError, match=said) as caught:
        fg.lift(plain_net(), TASKS)(images, temperature=1.0, generator=generator())
    assert "\n" not in str(caught.value)


def test_a_pass_without_what_it_needs_says_so():
    network = fg.lift(plain_net(), TASKS)
    batch = torch.randn(2, 3, 32, 32)
    with pytest.raises(ValueError, match="temperature and generator"):
        network(batch)
    with pytest.raises(ValueError, match="needs a generator"):
        network(batch, temperature=1.0)
    with pytest.raises(ValueError, match="above 0"):
        network(batch, temperature=0.0, generator=generator())
    with pytest.raises(TypeError, match="reads streams"):
        network.backbone(batch)


@pytest.mark.parametrize("method", fg.METHODS)
@pytest.mark.parametrize("name", BACKBONES)
def test_every_method_trains_every_backbone(method, name):
    make, shape = BACKBONES[name]
    network = fg.lift(make(), TASKS, heads={"age": nn.Flatten(), "gender": nn.Flatten()}, method=method)
    outputs = network(torch.randn(shape), temperature=0.2, generator=generator())
    sum(output.square().mean() for output in outputs.values()).backward()
    layers = list(network.grouped_layers())
    assert all(isinstance(layer, GroupedConv) for layer in layers)
    assert sum(layer.weight.grad is not None and bool((layer.weight.grad != 0).any()) for layer in layers) == len(
        layers
    )
    if method == "sfg":
        assert all(a.rho.grad is not None and torch.isfinite(a.rho.grad).all() for a in network.assignments())
    if method == "cross_stitch":
        mixes = [p for n, p in network.named_parameters() if n.endswith("alpha")]
        assert len(mixes) == len(network.assignments())
        assert all(p.grad is not None for p in mixes)
