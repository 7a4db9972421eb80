"""Eq. 5 against an independent computation in NumPy, term by term."""

import numpy as np
import pytest
import torch

import filtergroups as fg
from tests.backbones import ResNet18
from tests.laws import generator


def tasks():
    return [
        fg.Regression("age", scale=100.0),
        fg.Classification("gender", classes=3),
        fg.ImageRegression("ct", scale=1024.0, offset=1.0),
        fg.Segmentation("organs", classes=4),
    ]


def network():
    small = fg.highresnet([fg.ImageRegression("ct"), fg.Segmentation("organs")], width=0.25).double()
    small.tasks = tuple(tasks())
    return small


def rmse(output, label, scale, offset, mask=None):
    known = ~np.isnan(label) if mask is None else ~np.isnan(label) & (mask > 0)
    error = (output[:, 0] - (label / scale + offset))[known]
    return 0.0 if error.size == 0 else np.sqrt(np.mean(error**2))


def log_softmax(logits):
    shifted = logits - logits.max(1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(1, keepdims=True))


def cross_entropy(output, label):
    log_p = np.moveaxis(log_softmax(output), 1, -1)
    known = label >= 0
    if not known.any():
        return 0.0
    return -np.mean(np.take_along_axis(log_p[known], label[known][:, None], 1))


def dice(output, label, smooth=1e-5):
    p = np.exp(log_softmax(output))
    losses = []
    for example in range(len(output)):
        known = label[example] >= 0
        if not known.any():
            continue
        scores = []
        for c in range(output.shape[1]):
            truth, guess = (label[example] == c)[known], p[example, c][known]
            scores.append((2 * (truth * guess).sum() + smooth) / (truth.sum() + guess.sum() + smooth))
        losses.append(1 - np.mean(scores))
    return np.mean(losses) if losses else 0.0


def outputs_and_labels(missing):
    g = generator(3)
    outputs = {
        "age": torch.randn(6, 1, generator=g, dtype=torch.float64),
        "gender": torch.randn(6, 3, generator=g, dtype=torch.float64),
        "ct": torch.randn(6, 1, 5, 4, generator=g, dtype=torch.float64),
        "organs": torch.randn(6, 4, 5, 4, generator=g, dtype=torch.float64),
    }
    labels = {
        "age": torch.rand(6, generator=g, dtype=torch.float64) * 90,
        "gender": torch.randint(0, 3, (6,), generator=g),
        "ct": torch.randn(6, 5, 4, generator=g, dtype=torch.float64) * 500,
        "organs": torch.randint(0, 4, (6, 5, 4), generator=g),
    }
    masks = {}
    if missing == "some":
        labels["age"][1:3] = float("nan")
        labels["gender"][4] = -1
        labels["ct"][0] = float("nan")
        labels["organs"][2] = -1
        labels["organs"][3, :2] = -7
        masks = {"ct": torch.randint(0, 2, (6, 5, 4), generator=g)}
    if missing == "all":
        labels["age"][:] = float("nan")
        labels["gender"][:] = -1
        labels["ct"][:] = float("nan")
        labels["organs"][:] = -1
    return outputs, labels, masks


@pytest.mark.parametrize("missing", ["none", "some", "all"])
def test_the_objective_equals_eq_5_term_by_term(missing):
    net = network()
    outputs, labels, masks = outputs_and_labels(missing)
    leaves = {name: output.requires_grad_() for name, output in outputs.items()}
    terms = fg.objective(net, leaves, labels, masks=masks, weight_factor=1e-6, entropy_factor=1e-5)
    out = {name: output.detach().numpy() for name, output in outputs.items()}
    lab = {name: label.numpy() for name, label in labels.items()}
    expected = {
        "age": rmse(out["age"], lab["age"], 100, 0),
        "gender": cross_entropy(out["gender"], lab["gender"]),
        "ct": rmse(out["ct"], lab["ct"], 1024, 1, masks["ct"].numpy() if masks else None),
        "organs": dice(out["organs"], lab["organs"]) + cross_entropy(out["organs"], lab["organs"]),
    }
    for name, value in expected.items():
        assert terms.tasks[name].item() == pytest.approx(value, rel=1e-9, abs=1e-12)
    weights = sum((layer.weight.detach().numpy() ** 2).sum() for layer in net.grouped_layers())
    entropy = 0.0
    for layer in net.grouped_layers():
        p = layer.assignment.probabilities().detach().numpy()
        entropy -= (p * np.log(p)).sum()
    assert terms.weights.item() == pytest.approx(1e-6 * weights)
    assert terms.entropy.item() == pytest.approx(-1e-5 * entropy)
    assert terms.total.item() == pytest.approx(sum(expected.values()) + 1e-6 * weights - 1e-5 * entropy)
    terms.total.backward()
    for name, leaf in leaves.items():
        assert torch.isfinite(leaf.grad).all()
        assert bool((leaf.grad == 0).all()) == (missing == "all"), name


def test_missing_labels_do_not_dilute_their_task():
    task = fg.Regression("age")
    output, label = torch.tensor([[1.0], [5.0]]), torch.tensor([3.0, float("nan")])
    assert task.loss(output, label).item() == pytest.approx(2.0)


def test_tied_kernels_are_one_variable_and_count_once():
    net = fg.lift(ResNet18(width=8), [fg.Regression("age"), fg.Regression("b")])
    terms = fg.objective(net, {n: torch.zeros(1, 1) for n in ("age", "b")}, {n: torch.zeros(1) for n in ("age", "b")})
    expected = -1e-5 * sum(a.entropy().sum().item() for a in net.assignments())
    assert terms.entropy.item() == pytest.approx(expected)
    assert len(net.assignments()) < len(list(net.grouped_layers()))


def test_segmentation_loss_agrees_with_monai():
    from monai.losses import DiceCELoss

    outputs, labels, _ = outputs_and_labels("none")
    reference = DiceCELoss(to_onehot_y=True, softmax=True, smooth_nr=1e-5, smooth_dr=1e-5)
    expected = reference(outputs["organs"], labels["organs"][:, None])
    found = fg.Segmentation("organs", classes=4).loss(outputs["organs"], labels["organs"])
    torch.testing.assert_close(found, expected)


def change(labels, name, value):
    return {**labels, name: value}


@pytest.mark.parametrize(
    ("of", "said"),
    [
        (lambda o, y: (o, change(y, "age", y["age"][:5])), r"'age' have shape \(6,\), found \(5,\)"),
        (lambda o, y: (o, change(y, "gender", y["gender"].float())), "integers"),
        (lambda o, y: (o, change(y, "gender", torch.full((6,), 3))), r"0 … 2 .*found 3"),
        (lambda o, y: (o, change(y, "organs", y["organs"][:, :4])), "'organs' have shape"),
        (lambda o, y: (o, {k: v for k, v in y.items() if k != "ct"}), "labels are given for the tasks"),
        (lambda o, y: (change(o, "gender", o["gender"][:, :2]), y), "head of task 'gender'"),
        (lambda o, y: (o, change(y, "age", torch.zeros(6, dtype=torch.bool))), "real numbers"),
    ],
)
def test_bad_labels_are_refused_in_one_line(of, said):
    outputs, labels, _ = outputs_and_labels("none")
    with pytest.raises(ValueError, match=said) as caught:
        fg.objective(network(), *of(outputs, labels))
    assert "\n" not in str(caught.value)


def test_a_mask_of_another_shape_is_refused():
    outputs, labels, _ = outputs_and_labels("none")
    with pytest.raises(ValueError, match="mask of task 'ct'"):
        fg.objective(network(), outputs, labels, masks={"ct": torch.ones(6, 5)})
    with pytest.raises(ValueError, match="masks are given"):
        fg.objective(network(), outputs, labels, masks={"pet": torch.ones(6, 5)})
