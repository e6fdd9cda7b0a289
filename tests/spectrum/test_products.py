"""Products of a large matrix with a few columns: in float32, whichever kernels make them."""

import numpy as np
import pytest
import torch

from gradmass.spectra import products
from gradmass.spectra.blocks import Stripes
from gradmass.spectra.products import Gram, are_float32, narrow_products


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize("shape", [(700, 300), (5000, 2048), (3, 5), (40, 300_000)])
def test_products_are_those_of_the_matrix_to_float32(shape):
    matrix, block = drawn(*shape), drawn(shape[1], 4, seed=1).double().numpy()
    images = matrix.double().numpy() @ block
    with Stripes() as stripes:
        gram = Gram(matrix, stripes)
        product, square = gram.product(block), gram.square(block)
    for found, exact in (
        (product, matrix.double().numpy().T @ images),
        (square, images.T @ images),
    ):
        assert np.linalg.norm(found - exact) < 2e-6 * np.linalg.norm(exact)


def test_products_do_not_depend_on_the_number_of_threads(threads):
    matrix, block = drawn(9000, 2048), drawn(2048, 16, seed=1).double().numpy()
    found = []
    for num_threads in (1, 2):
        threads(num_threads)
        with Stripes() as stripes:
            assert torch.get_num_threads() == 1
            gram = Gram(matrix, stripes)
            found.append((gram.product(block), gram.square(block)))
        assert torch.get_num_threads() == num_threads
    for one, two in zip(*found, strict=True):
        assert np.array_equal(one, two)


def test_products_of_rounded_numbers_are_told_from_float32():
    rows, block = drawn(512, 600), drawn(600, 16, seed=1)
    exact = rows @ block
    in_halves = rows[:, :300] @ block[:300] + rows[:, 300:] @ block[300:]
    assert are_float32(exact, in_halves)
    assert not are_float32(exact, rows.bfloat16().float() @ block.bfloat16().float())
    truncated = [(t.view(torch.int32) & ~0x1FFF).view(torch.float32) for t in (rows, block)]
    assert not are_float32(exact, truncated[0] @ truncated[1])  # TF32
    assert not are_float32(exact, exact.bfloat16().float())


@pytest.mark.parametrize(("is_exact", "precision"), [(True, "bf16"), (False, "ieee")])
def test_a_lower_precision_is_allowed_only_where_it_is_none(monkeypatch, is_exact, precision):
    monkeypatch.setattr(products, "_is_exact", lambda num_columns, width: is_exact)
    with narrow_products(300, 4):
        assert torch.backends.mkldnn.matmul.fp32_precision == precision


@pytest.mark.parametrize("own", ["none", "bf16", "ieee"])
def test_products_are_float32_whatever_the_process_allows(own):
    setting = torch.backends.mkldnn.matmul
    matrix, block = drawn(700, 300), drawn(300, 4, seed=1).double().numpy()
    setting.fp32_precision = own
    try:
        with Stripes() as stripes:
            found = Gram(matrix, stripes).product(block)
        assert setting.fp32_precision == own
    finally:
        setting.fp32_precision = "none"
    exact = matrix.double().numpy().T @ (matrix.double().numpy() @ block)
    assert np.linalg.norm(found - exact) < 2e-6 * np.linalg.norm(exact)


def test_the_precision_of_torch_is_as_before_even_after_an_error():
    before = torch.backends.mkldnn.matmul.fp32_precision
    rows, block = drawn(512, 600), drawn(600, 16, seed=1)
    with narrow_products(600, 16):
        found = rows @ block
    assert are_float32((rows.double() @ block.double()).float(), found)
    with pytest.raises(ZeroDivisionError), narrow_products(600, 16):
        raise ZeroDivisionError
    assert torch.backends.mkldnn.matmul.fp32_precision == before
