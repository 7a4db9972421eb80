"""How the passes of a task combine, and what its metrics measure."""

import pytest
import torch

import filtergroups as fg
from tests.laws import generator


def passes(shape, count=7):
    return torch.randn(count, *shape, generator=generator(), dtype=torch.float64)


def accumulated(task, outputs):
    accumulator = task.accumulator()
    for output in outputs:
        accumulator.add(output)
    return accumulator.prediction()


def test_real_passes_combine_to_mean_and_standard_deviation_in_the_label_s_units():
    outputs = passes((5, 1))
    found = accumulated(fg.Regression("age", scale=100.0, offset=2.0), outputs)
    torch.testing.assert_close(found.value, (outputs.mean(0)[:, 0] - 2) * 100)
    torch.testing.assert_close(found.spread, outputs.std(0)[:, 0] * 100)


@pytest.mark.parametrize("shape", [(5, 3), (2, 3, 4, 4)])
def test_class_passes_combine_to_the_mode_with_its_entropies(shape):
    outputs = passes(shape)
    task = fg.Classification("c", classes=3) if len(shape) == 2 else fg.Segmentation("c", classes=3)
    found = accumulated(task, outputs)
    votes = torch.nn.functional.one_hot(outputs.argmax(2), 3).sum(0)
    assert torch.equal(votes.gather(-1, found.value.unsqueeze(-1)).squeeze(-1), votes.amax(-1))
    p = outputs.softmax(2)
    torch.testing.assert_close(found.probabilities, p.mean(0))
    entropy = torch.distributions.Categorical(probs=p.mean(0).movedim(1, -1)).entropy()
    torch.testing.assert_close(found.spread, entropy)
    each = torch.distributions.Categorical(probs=p.movedim(2, -1)).entropy().mean(0)
    torch.testing.assert_close(found.mutual_information, entropy - each)


def test_one_pass_has_no_disagreement():
    real = accumulated(fg.Regression("age"), passes((5, 1), 1))
    assert torch.equal(real.spread, torch.zeros_like(real.spread))
    classes = accumulated(fg.Classification("c", classes=3), passes((5, 3), 1))
    torch.testing.assert_close(classes.mutual_information, torch.zeros(5, dtype=torch.float64))


def measure(task, prediction, label, mask=None):
    metrics = task.metrics()
    for metric in metrics.values():
        metric.update(*task.measured(prediction, label, mask))
    return {name: metric.compute() for name, metric in metrics.items()}


def test_metrics_leave_missing_labels_out():
    value = torch.tensor([10.0, 20.0, 30.0])
    age = measure(fg.Regression("age"), fg.Prediction(value, value), torch.tensor([12.0, float("nan"), 34.0]))
    assert age["mae"].item() == pytest.approx(3.0)
    classes = fg.Prediction(torch.tensor([0, 1, 1, 0]), value)
    gender = measure(fg.Classification("g"), classes, torch.tensor([0, 1, 0, -1]))
    assert gender["accuracy"].item() == pytest.approx(2 / 3)


def test_image_metrics():
    truth = torch.rand(2, 8, 8, generator=generator()) * 100
    prediction = fg.Prediction(truth + 2, truth)
    mask = torch.ones(2, 8, 8)
    mask[:, :4] = 0
    found = measure(fg.ImageRegression("ct", peak=100.0), prediction, truth, mask)
    assert found["psnr"].item() == pytest.approx(20 * torch.log10(torch.tensor(100 / 2.0)).item(), rel=1e-4)
    labels = torch.tensor([[[0, 1], [1, 2]]])
    guess = torch.tensor([[[0, 1], [2, 2]]])
    dice = measure(fg.Segmentation("o", classes=3), fg.Prediction(guess, guess), labels)["dice"]
    torch.testing.assert_close(dice, torch.tensor([1.0, 2 / 3, 2 / 3]))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: fg.Classification("c", classes=1), "at least 2 classes"),
        (lambda: fg.Regression("r", scale=0), "is not 0"),
        (lambda: fg.vgg11([fg.Regression("a"), fg.Regression("a")]), "more than once"),
        (lambda: fg.vgg11([]), "at least one task"),
    ],
)
def test_bad_tasks_are_refused(make, said):
    with pytest.raises(ValueError, match=said):
        make()
