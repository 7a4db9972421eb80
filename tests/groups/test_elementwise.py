"""The CPU's own PReLU and max pooling against torch's."""

import pytest
import torch
from torch.nn import functional as F

from filtergroups.groups.elementwise import max_pool2d, one_slope
from tests.laws import generator


def gradients_of(function, *inputs, upstream):
    leaves = [x.clone().requires_grad_() for x in inputs]
    result = function(*leaves)
    return result, torch.autograd.grad(result, leaves, upstream)


@pytest.mark.parametrize("slope", [0.25, -0.3, 0.0, 1.0, 2.0, 1e-5])
@pytest.mark.parametrize("in_place", [False, True])
def test_one_slope_is_prelu(slope, in_place):
    features = torch.randn(3, 4, 5, 5, generator=generator(), dtype=torch.float64)
    features[0, 0, 0, 0] = 0
    upstream = torch.randn(3, 4, 5, 5, generator=generator(1), dtype=torch.float64)
    slopes = torch.tensor([slope], dtype=torch.float64)
    # The clone stands for a norm's fresh result, which may be overwritten.
    found, found_grads = gradients_of(lambda x, a: one_slope(x * 1, a, in_place), features, slopes, upstream=upstream)
    expected, expected_grads = gradients_of(F.prelu, features, slopes, upstream=upstream)
    torch.testing.assert_close(found, expected)
    for a, b in zip(found_grads, expected_grads, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("shape", [(2, 3, 8, 6), (2, 3, 7, 6), (1, 1, 2, 2)])
def test_max_pooling_is_torch_s_with_its_ties(shape):
    # Few distinct values: most windows have ties, and of equal values torch gives the first the gradient.
    features = torch.randint(0, 3, shape, generator=generator()).double()
    upstream = torch.randn(F.max_pool2d(features, 2).shape, generator=generator(1), dtype=torch.float64)
    found, (found_grad,) = gradients_of(lambda x: max_pool2d(x, 2), features, upstream=upstream)
    expected, (expected_grad,) = gradients_of(lambda x: F.max_pool2d(x, 2), features, upstream=upstream)
    assert torch.equal(found, expected)
    assert torch.equal(found_grad, expected_grad)


def test_other_pooling_goes_to_torch():
    features = torch.randn(2, 3, 9, 9)
    assert torch.equal(max_pool2d(features, 3, 2, 1), F.max_pool2d(features, 3, 2, 1))
    assert torch.equal(max_pool2d(features, 2, ceil_mode=True), F.max_pool2d(features, 2, ceil_mode=True))
