"""A change of one matrix: held in float32, measured while it is read, multiplied in blocks."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from gradmass.metrics.krylov import Spectrum, krylov_spectrum, start_block
from gradmass.metrics.spectrum import factor_spectrum, gram_spectrum
from gradmass.spectra.files import StoredTensor
from gradmass.spectra.pairs import Pair
from gradmass.types import UsageError

BLOCK_ENTRIES = 2**20
"""Entries taken at once: 4 MB in float32, which two products can share in a cache."""
EXACT_SIDE = 256
"""Smaller side up to which the whole Gram matrix is cheaper than a search."""
SAMPLED_STEP = 8
"""Of a tall matrix, every eighth row tells how coarse its dtype is."""
MANTISSA_BITS = {torch.bfloat16: 7, torch.float16: 10}
LEAST_NORMAL = {torch.bfloat16: 2.0**-126, torch.float16: 2.0**-14}
SAFE_SCALE = 2.0**30
"""Entries within a factor of this around 1 have squares that float32 holds."""


@dataclass
class Change:
    """TUNED minus BASE in one matrix.

    Args:
        values_MN: In float32, times ``scale``; a view of a buffer that the next change reuses.
        scale: 1, but for changes whose squares would leave float32.
        energy: Squared Frobenius norm.
        num_changed: Entries that differ.
        rounding_energy: What rounding TUNED to its 16-bit dtype adds, ``spacing^2 / 12`` an entry;
            0 for wider dtypes.
        spectrum: Its first singular values; None for a vector, or where nothing changed.
    """

    values_MN: torch.Tensor
    scale: float
    energy: float
    num_changed: int
    rounding_energy: float
    spectrum: Spectrum | None

    def blocks(self) -> Iterator[tuple[int, torch.Tensor]]:
        """First row and change of consecutive rows."""
        for start, stop in row_blocks(*self.values_MN.shape):
            yield start, self.values_MN[start:stop] / self.scale


def row_blocks(num_rows: int, num_columns: int) -> Iterator[tuple[int, int]]:
    """Consecutive ranges of rows of a matrix, of ``BLOCK_ENTRIES`` entries or one row."""
    step = max(1, BLOCK_ENTRIES // num_columns)
    for start in range(0, num_rows, step):
        yield start, min(start + step, num_rows)


def read_change(pair: Pair, buffer: torch.Tensor, *, top: int) -> Change:
    """Read a pair once, subtract in float32, and find the first singular values.

    Args:
        pair: What to compare.
        buffer: Float32, at least as long as the matrix has entries; overwritten.
        top: Singular values wanted.

    Raises:
        UsageError: A NaN or infinite entry.
    """
    base, tuned = pair.map()
    num_rows, num_columns = base.shape
    values_MN = buffer[: num_rows * num_columns].view(num_rows, num_columns)
    top = min(top, num_rows, num_columns)
    is_matrix = len(pair.shape) == 2
    is_searched = is_matrix and min(num_rows, num_columns) > max(EXACT_SIDE, 4 * top)
    start_NB = start_block(num_columns, top) if is_searched else np.zeros((num_columns, 0))
    start = torch.from_numpy(start_NB).float()
    first = torch.zeros(start.shape, dtype=torch.float64)
    coarseness = _Coarseness(pair.tuned.dtype, step=SAMPLED_STEP if num_rows > 4096 else 1)
    energy, num_changed, largest = 0.0, 0, 0.0
    for begin, end in row_blocks(num_rows, num_columns):
        before, after = base[begin:end], tuned[begin:end]
        block = _subtract(before, after, values_MN[begin:end])
        low, high = torch.aminmax(block)
        if not (math.isfinite(low) and math.isfinite(high)):
            _refuse_entries(pair, before, after, begin)
        largest = max(largest, -float(low), float(high))
        norms = torch.linalg.vector_norm(block, dim=1)
        energy += float(norms.double().square().sum())
        num_changed += int(torch.count_nonzero(block))
        coarseness.see(after)
        if is_searched:
            first += _block_product(block, start)
    change = Change(values_MN, 1.0, energy, num_changed, coarseness.energy, None)
    if num_changed == 0:
        return change
    is_extreme = not 1 / SAFE_SCALE < largest < SAFE_SCALE
    if is_extreme:
        change.scale = 2.0 ** -math.frexp(largest)[1]
        values_MN *= change.scale
        energy = sum(float(values_MN[i:j].double().square().sum()) for i, j in _rows(values_MN))
        change.energy = energy / change.scale**2
    if is_searched:
        first_NB = _product(values_MN, start_NB) if is_extreme else first.numpy()
        found = krylov_spectrum(
            lambda block_NB: _product(values_MN, block_NB), start_NB, first_NB, energy, top=top
        )
    elif is_matrix:
        found = _exact(values_MN, top)
    else:
        return change
    change.spectrum = Spectrum(
        found.squares_K / change.scale**2, found.bounds_K / change.scale**2, found.directions_NK
    )
    return change


@dataclass(frozen=True)
class FactorPair:
    """A change that is stored as two thin factors: what LoRA adds to a matrix.

    Args:
        name: Of the matrix, as it is reported.
        base: The matrix that it adds to.
        left: B of a linear layer, ``[m, r]``; of an embedding A, transposed when read.
        right: A, ``[r, n]``.
        scale: What their product is multiplied by.
        is_transposed: Whether the stored matrix is the transpose of B A.
    """

    name: str
    base: StoredTensor
    left: StoredTensor
    right: StoredTensor
    scale: float
    is_transposed: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """Sides of the matrix that it adds to."""
        return self.base.shape

    @property
    def rank(self) -> int:
        """What the rank of the change cannot exceed."""
        return self.right.shape[0]

    @property
    def num_bytes(self) -> int:
        """What has to be read."""
        return self.left.num_bytes + self.right.num_bytes

    def factors(self) -> tuple[torch.Tensor, torch.Tensor]:
        """L and R in float64, so that the change of the stored matrix is L R.

        Raises:
            UsageError: A NaN or infinite entry.
        """
        factors = []
        for stored in (self.left, self.right):
            tensor = stored.map().double()
            if not bool(torch.isfinite(tensor).all()):
                _refuse_tensor(stored, tensor, 0)
            factors.append(tensor)
        left, right = factors[0] * self.scale, factors[1]
        return (right.T, left.T) if self.is_transposed else (left, right)


@dataclass(frozen=True)
class FactorChange:
    """A change in factors, measured; the fields are those of ``Change``.

    ``num_changed`` counts the entries that the product can reach: rows of L that are not 0 times
    columns of R that are not 0.
    """

    left_MR: torch.Tensor
    right_RN: torch.Tensor
    energy: float
    num_changed: int
    spectrum: Spectrum | None
    rounding_energy: float = 0.0

    def blocks(self) -> Iterator[tuple[int, torch.Tensor]]:
        """First row and change of consecutive rows."""
        for start, stop in row_blocks(len(self.left_MR), self.right_RN.shape[1]):
            yield start, (self.left_MR[start:stop] @ self.right_RN).float()


def read_factors(pair: FactorPair, *, top: int) -> FactorChange:
    """Measure a change in factors, exactly, without forming their product."""
    left_MR, right_RN = pair.factors()
    num_changed = int(left_MR.any(dim=1).sum()) * int(right_RN.any(dim=0).sum())
    spectrum, energy = factor_spectrum(left_MR.numpy(), right_RN.numpy(), top=top)
    if energy == 0:
        return FactorChange(left_MR, right_RN, 0.0, 0, None)
    return FactorChange(left_MR, right_RN, energy, num_changed, spectrum)


class _Coarseness:
    """Sums ``spacing^2 / 12`` over the entries of TUNED, for 16-bit dtypes.

    A float32 file whose entries all are bf16 numbers was rounded to bf16 before it was written.
    """

    def __init__(self, dtype: torch.dtype, step: int) -> None:
        self._dtype = torch.bfloat16 if dtype == torch.float32 else dtype
        self._may_be_wide = dtype == torch.float32
        self._step = step
        self._sum = 0.0

    def see(self, rows: torch.Tensor) -> None:
        """Take note of the next rows."""
        if self._dtype not in MANTISSA_BITS:
            return
        seen = rows[:: self._step].float().contiguous()
        if self._may_be_wide and bool((seen.view(torch.int32) & 0xFFFF).any()):
            self._dtype = torch.float32
            self._sum = 0.0
            return
        powers = (seen.view(torch.int32) & 0x7F800000).view(torch.float32)
        norms = torch.linalg.vector_norm(powers.clamp(min=LEAST_NORMAL[self._dtype]), dim=1)
        share = len(rows) / len(seen)
        self._sum += share * float(norms.double().square().sum())

    @property
    def energy(self) -> float:
        """Of rounding."""
        if self._dtype not in MANTISSA_BITS:
            return 0.0
        return float(self._sum * 4.0 ** -MANTISSA_BITS[self._dtype] / 12)


def _subtract(before: torch.Tensor, after: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    if torch.float64 in (before.dtype, after.dtype):
        return out.copy_(after.double() - before.double())
    return torch.sub(after.float(), before.float(), out=out)


def _rows(values_MN: torch.Tensor) -> Iterator[tuple[int, int]]:
    return row_blocks(*values_MN.shape)


def _product(values_MN: torch.Tensor, block_NB: np.ndarray) -> np.ndarray:
    """``W^T (W Q)`` block by block: float32 products, float64 sums."""
    block = torch.from_numpy(block_NB).float()
    total = torch.zeros(block.shape, dtype=torch.float64)
    for begin, end in _rows(values_MN):
        total += _block_product(values_MN[begin:end], block)
    return np.asarray(total.numpy())


def _block_product(rows: torch.Tensor, block: torch.Tensor) -> torch.Tensor:
    # With the wide matrix on the right, the second product is a tenth faster.
    return ((rows @ block).T.contiguous() @ rows).T.double()


def _exact(values_MN: torch.Tensor, top: int) -> Spectrum:
    """By the Gram matrix of the smaller side in float64."""
    num_rows, num_columns = values_MN.shape
    tall = values_MN if num_rows >= num_columns else values_MN.T
    gram = torch.zeros(tall.shape[1], tall.shape[1], dtype=torch.float64)
    for begin, end in row_blocks(*tall.shape):
        rows = tall[begin:end].double()
        gram += rows.T @ rows
    found = gram_spectrum(gram.numpy(), top=top)
    if num_rows >= num_columns:
        return found
    # These are left directions; W^T takes them to the right ones.
    images_NK = (values_MN.T.double() @ torch.from_numpy(found.directions_NK.copy())).numpy()
    norms_K = np.linalg.norm(images_NK, axis=0)
    return Spectrum(
        found.squares_K, found.bounds_K, images_NK / np.where(norms_K > 0, norms_K, 1.0)
    )


def _refuse_entries(pair: Pair, before: torch.Tensor, after: torch.Tensor, first_row: int) -> None:
    for stored, rows in ((pair.base, before), (pair.tuned, after)):
        if not bool(torch.isfinite(rows).all()):
            _refuse_tensor(stored, rows, first_row)
    raise UsageError(f"the change of {pair.name} exceeds the range of float32")


def _refuse_tensor(stored: StoredTensor, rows: torch.Tensor, first_row: int) -> None:
    row, column = (~torch.isfinite(rows)).nonzero()[0].tolist()
    raise UsageError(
        f"{stored.name} in {stored.file} holds {float(rows[row, column])} (row {first_row + row}, "
        f"column {column})"
    )
