"""Products of a large float32 matrix with a few columns, by the fastest kernels there are."""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import starmap
from typing import Any

import numpy as np
import torch

from gradmass.spectra.blocks import BLOCK_ENTRIES, Stripes, row_blocks

FULL, LOWER = "ieee", "bf16"
"""What torch calls the precisions of oneDNN's products."""
FLOAT32_ERROR = 1e-4
"""Relative error that tells products of rounded numbers: bf16 makes 2e-3, TF32 3e-4."""


class Gram:
    """``G = W^T W`` of a large W in float32, for what multiplies it with a few columns.

    Args:
        values_MN: W.
        stripes: Threads to do it with.
    """

    def __init__(self, values_MN: torch.Tensor, stripes: Stripes) -> None:
        self._values_MN, self._stripes = values_MN, stripes

    def product(self, block_NB: np.ndarray) -> np.ndarray:
        """``G Q``: products in float32, of a few blocks of rows each; their sum in float64."""
        block = torch.from_numpy(block_NB).float()

        def multiply(blocks: Iterator[torch.Tensor]) -> torch.Tensor:
            total_BN = torch.zeros(block.T.shape)
            for rows in blocks:
                add_product(total_BN, rows, block)
            return total_BN

        return self._sum(multiply, block).T

    def square(self, block_NB: np.ndarray) -> np.ndarray:
        """``Q^T G Q``, at half the cost of ``G Q``: ``W Q`` in float32, the rest in float64."""
        block = torch.from_numpy(block_NB).float()

        def multiply(blocks: Iterator[torch.Tensor]) -> torch.Tensor:
            total_BB = torch.zeros(block.shape[1], block.shape[1], dtype=torch.float64)
            for rows in blocks:
                images = (rows @ block).double()
                total_BB.addmm_(images.T, images)
            return total_BB

        return self._sum(multiply, block)

    def _sum(
        self, multiply: Callable[[Iterator[torch.Tensor]], torch.Tensor], block: torch.Tensor
    ) -> np.ndarray:
        """Sum in float64 of what comes of the blocks of each stripe."""
        num_rows, num_columns = self._values_MN.shape

        def of_stripe(first_row: int, after_last: int) -> torch.Tensor:
            ranges = row_blocks(num_columns, first_row, after_last)
            return multiply(self._values_MN[begin:end] for begin, end in ranges)

        with narrow_products(*block.shape):
            parts = self._stripes.map(of_stripe, num_rows, num_columns)
            total = next(parts).double()
            for part in parts:
                total += part
        return np.asarray(total.numpy())


def add_product(total_BN: torch.Tensor, rows: torch.Tensor, block: torch.Tensor) -> None:
    """Add ``(W^T (W Q))^T`` of some rows of W."""
    # With the wide matrix on the right, the second product is a tenth faster.
    total_BN.addmm_((rows @ block).T, rows)


@contextmanager
def narrow_products(num_columns: int, width: int) -> Iterator[None]:
    """Let torch multiply by oneDNN, if that computes in float32 all the same.

    For matrices as narrow as ours MKL takes half as long again, because it first copies the large
    one, and torch asks oneDNN only where a lower precision is allowed. Only some processors
    have one (AMX); on others oneDNN computes in float32. Which it is, is tried. The setting is the
    process's: no other thread should multiply meanwhile.

    Args:
        num_columns: Of the large matrix.
        width: Of the block that it is multiplied with.
    """
    setting = _setting()
    if setting is None:
        yield
        return
    before = setting.fp32_precision
    try:
        setting.fp32_precision = LOWER if _is_exact(num_columns, width) else FULL
        yield
    finally:
        setting.fp32_precision = before


def _setting() -> Any:
    """Where torch keeps the precision of oneDNN's products; None before torch 2.9."""
    return getattr(torch.backends.mkldnn, "matmul", None)


@functools.cache
def _is_exact(num_columns: int, width: int) -> bool:
    """Whether the lower precision is float32 for the products of a block of rows."""
    if width == 0:
        return False
    generator = torch.Generator().manual_seed(0)
    row = torch.randn(num_columns, generator=generator)
    rows = row.repeat(max(1, BLOCK_ENTRIES // num_columns), 1)
    block = torch.randn(num_columns, width, generator=generator)
    found, setting = [], _setting()
    for precision in (FULL, LOWER):
        setting.fp32_precision = precision
        found.append((rows @ block, (rows @ block).T @ rows))
    return all(starmap(are_float32, zip(*found, strict=True)))


def are_float32(exact: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether a product differs from the float32 one by no more than the order of its sums."""
    return float((other - exact).norm()) <= FLOAT32_ERROR * float(exact.norm())
