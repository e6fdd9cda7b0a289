"""Spectra of changes against full decompositions and planted ones, and what rounding hides."""

import math

import numpy as np
import pytest
import scipy.linalg
import torch

from gradmass.metrics.rank import rounding_of, spectrum_of, top1_share
from gradmass.types import UsageError


def planted(values, shape, seed=0):
    """A matrix with the given singular values and random singular vectors."""
    rng = np.random.default_rng(seed)
    left = np.linalg.qr(rng.normal(size=(shape[0], len(values))))[0]
    right = np.linalg.qr(rng.normal(size=(shape[1], len(values))))[0]
    return left @ np.diag(values) @ right.T


@pytest.mark.parametrize("shape", [(1, 1), (1, 7), (7, 1), (20, 64), (64, 20), (30, 30)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_spectrum_is_that_of_the_full_decomposition(shape, dtype):
    matrix = np.random.default_rng(0).normal(size=shape).astype(dtype)
    sigma = scipy.linalg.svd(matrix.astype(np.float64), compute_uv=False)
    found = spectrum_of(matrix)
    energy = math.fsum(s * s for s in sigma)
    shares = [s / math.fsum(sigma) for s in sigma]
    assert found.norm == pytest.approx(math.sqrt(energy), rel=1e-12)
    assert found.top1_share == pytest.approx(sigma[0] ** 2 / energy, rel=1e-12)
    assert found.stable_rank == pytest.approx(energy / sigma[0] ** 2, rel=1e-12)
    entropy = -math.fsum(x * math.log(x) for x in shares)
    assert found.effective_rank == pytest.approx(math.exp(entropy), rel=1e-6)
    assert found.singular_values == pytest.approx(sigma[:8], rel=1e-9)


@pytest.mark.parametrize(
    ("values", "r_1", "stable", "effective"),
    [
        ([1.0] * 5, 0.2, 5.0, 5.0),
        ([3.0], 1.0, 1.0, 1.0),
        ([10.0, 1.0, 1.0], 100 / 102, 1.02, None),
        ([1 / k for k in range(1, 13)], 1 / math.fsum(1 / k**2 for k in range(1, 13)), None, None),
    ],
    ids=["flat", "rank one", "spiked", "power law"],
)
@pytest.mark.parametrize("scale", [1e-8, 1.0, 1e6])
def test_planted_spectra_are_found(values, r_1, stable, effective, scale):
    matrix = scale * planted(values, (40, 15))
    found = spectrum_of(matrix)
    assert found.top1_share == pytest.approx(r_1, rel=1e-9)
    assert top1_share(matrix) == pytest.approx(r_1, rel=1e-9)
    assert found.singular_values[: len(values)] == pytest.approx(
        [scale * v for v in values[:8]], rel=1e-9
    )
    if stable is not None:
        assert found.stable_rank == pytest.approx(stable, rel=1e-9)
    if effective is not None:
        assert found.effective_rank == pytest.approx(effective, rel=1e-5)


def test_no_change_has_no_ranks():
    found = spectrum_of(np.zeros((3, 4)))
    assert (found.norm, found.top1_share, found.stable_rank, found.effective_rank) == (
        0.0,
        None,
        None,
        None,
    )
    assert found.singular_values == (0.0, 0.0, 0.0)
    with pytest.raises(UsageError, match="top must be at least 1, got 0"):
        spectrum_of(np.eye(3), top=0)
    with pytest.raises(UsageError, match="got nan at row 0, column 0"):
        spectrum_of(np.array([[math.nan]]))


@pytest.mark.parametrize(
    ("size", "r_1", "changed", "is_hidden"),
    [
        (1e-6, 0.112, 0.0096, True),
        (1e-5, 0.42, 0.092, True),
        (1e-4, 0.93, 0.51, True),
        (3e-4, 0.99, 0.79, False),
    ],
)
def test_a_rank_one_change_looks_like_noise_where_bfloat16_swallows_it(
    size, r_1, changed, is_hidden
):
    torch.manual_seed(0)
    before = (0.02 * torch.randn(256, 256)).bfloat16()
    change = size * torch.randn(256, 1) @ torch.randn(1, 256)
    after = (before.float() + change).bfloat16().float().numpy()
    before = before.float().numpy()
    found = rounding_of(before, after)
    assert top1_share(after - before) == pytest.approx(r_1, abs=0.03)
    assert found.changed_fraction == pytest.approx(changed, rel=0.1)
    assert found.hides_rank == is_hidden
    if is_hidden:
        assert found.noise_share > 0.1


def test_the_noise_of_rounding_is_what_rounding_adds():
    # A change much larger than the spacing: the error is uniform within half of it.
    rng = np.random.default_rng(0)
    before = torch.as_tensor(rng.normal(size=(300, 300))).bfloat16().double().numpy()
    change = rng.normal(size=(300, 300))
    after = torch.as_tensor(before + change).bfloat16().double().numpy()
    error = np.sum((after - before - change) ** 2)
    assert rounding_of(before, after).noise_energy == pytest.approx(error, rel=0.05)


@pytest.mark.parametrize(
    ("dtype", "bits"), [(torch.bfloat16, 8), (torch.float16, 11), (torch.float32, 24)]
)
def test_the_spacing_is_that_of_the_type(dtype, bits):
    one = torch.tensor([[1.0]], dtype=dtype)
    spacing = float(torch.finfo(dtype).eps)
    found = rounding_of(one.double().numpy(), one.double().numpy(), bits)
    assert found.noise_energy == pytest.approx(spacing**2 / 12, rel=1e-12)


def test_equal_weights_hide_everything_and_shapes_must_agree():
    same = rounding_of(np.ones((3, 4)), np.ones((3, 4)))
    assert (same.changed_fraction, same.noise_share, same.hides_rank) == (0.0, None, True)
    with pytest.raises(UsageError, match=r"got \(1, 1\) and \(1, 2\)"):
        rounding_of(np.ones((1, 1)), np.ones((1, 2)))
    with pytest.raises(UsageError, match="at least 2, got 1"):
        rounding_of(np.ones((1, 1)), np.ones((1, 1)), 1)
