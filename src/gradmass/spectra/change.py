"""A change of one matrix: held in float32, measured while it is read, multiplied in blocks."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce

import numpy as np
import torch

from gradmass.metrics.krylov import Spectrum, krylov_spectrum, start_block
from gradmass.metrics.spectrum import factor_spectrum, gram_spectrum
from gradmass.spectra.blocks import Stripes, row_blocks
from gradmass.spectra.files import StoredTensor
from gradmass.spectra.pairs import Pair
from gradmass.spectra.products import Gram, add_product, narrow_products
from gradmass.types import UsageError

EXACT_SIDE = 256
"""Smaller side up to which the whole Gram matrix is cheaper than a search."""
SAMPLED_ROWS, SAMPLED_STEP = 4096, 8
"""Of a matrix with more rows, every eighth tells how coarse its dtype is."""
MANTISSA_BITS = {torch.bfloat16: 7, torch.float16: 10}
LEAST_NORMAL = {torch.bfloat16: 2.0**-126, torch.float16: 2.0**-14}
SAFE_SCALE = 2.0**30
"""Rows whose norms are within this factor around 1 have squares that float32 holds."""


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
        num_rows, num_columns = self.values_MN.shape
        for start, stop in row_blocks(num_columns, 0, num_rows):
            yield start, self.values_MN[start:stop] / self.scale


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
    reader = _Reader(pair, base, tuned, values_MN, torch.from_numpy(start_NB).float())
    with Stripes() as stripes:
        with narrow_products(*start_NB.shape):
            seen = reduce(_Seen.plus, stripes.map(reader.read, num_rows, num_columns))
        rounding_energy = 0.0 if seen.spacing_energy is None else seen.spacing_energy / 12
        change = Change(values_MN, 1.0, seen.energy, seen.num_changed, rounding_energy, None)
        if seen.num_changed == 0:
            return change
        if not 1 / SAFE_SCALE < seen.largest < SAFE_SCALE:
            change.scale = _rescale(values_MN)
            norms = torch.linalg.vector_norm(values_MN, dim=1)
            change.energy = float(norms.double().square().sum()) / change.scale**2
        if is_searched:
            gram, energy = Gram(values_MN, stripes), change.energy * change.scale**2
            first_NB = seen.first_NB.numpy() if change.scale == 1 else gram.product(start_NB)
            found = krylov_spectrum(
                gram.product, start_NB, first_NB, energy, top=top, square=gram.square
            )
    if not is_matrix:
        return change
    if not is_searched:
        found = _exact(values_MN, top)
    change.spectrum = Spectrum(
        found.squares_K / change.scale**2, found.bounds_K / change.scale**2, found.directions_NK
    )
    return change


def _rescale(values_MN: torch.Tensor) -> float:
    """Multiply by the power of two that puts the largest entry just below 1, and return it."""
    low, high = torch.aminmax(values_MN)
    # 2^127 is the largest power of two in float32.
    scale = 2.0 ** min(127, -math.frexp(max(-float(low), float(high)))[1])
    values_MN *= scale
    return float(scale)


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
        for start, stop in row_blocks(self.right_RN.shape[1], 0, len(self.left_MR)):
            yield start, (self.left_MR[start:stop] @ self.right_RN).float()


def read_factors(pair: FactorPair, *, top: int) -> FactorChange:
    """Measure a change in factors, exactly, without forming their product."""
    left_MR, right_RN = pair.factors()
    num_changed = int(left_MR.any(dim=1).sum()) * int(right_RN.any(dim=0).sum())
    spectrum, energy = factor_spectrum(left_MR.numpy(), right_RN.numpy(), top=top)
    if energy == 0:
        return FactorChange(left_MR, right_RN, 0.0, 0, None)
    return FactorChange(left_MR, right_RN, energy, num_changed, spectrum)


@dataclass(frozen=True)
class _Seen:
    """What is taken of rows while they are read.

    ``spacing_energy`` is the sum of squared spacings of TUNED's dtype, None where it is wider than
    16 bits; ``first_NB`` their part of the first product of the search.
    """

    energy: float
    num_changed: int
    largest: float
    spacing_energy: float | None
    first_NB: torch.Tensor

    def plus(self, other: "_Seen") -> "_Seen":
        """Of the rows of both."""
        return _Seen(
            self.energy + other.energy,
            self.num_changed + other.num_changed,
            max(self.largest, other.largest),
            _sum([self.spacing_energy, other.spacing_energy]),
            self.first_NB + other.first_NB,
        )


def _sum(values: list[float | None]) -> float | None:
    """Sum, or None if any is None."""
    known = [value for value in values if value is not None]
    return math.fsum(known) if len(known) == len(values) else None


@dataclass(frozen=True)
class _Reader:
    """Reads rows of both tensors into the buffer."""

    pair: Pair
    base: torch.Tensor
    tuned: torch.Tensor
    values_MN: torch.Tensor
    start: torch.Tensor

    def read(self, first_row: int, after_last: int) -> _Seen:
        """Subtract a stripe, and take note of it."""
        num_rows, num_columns = self.values_MN.shape
        step = SAMPLED_STEP if num_rows > SAMPLED_ROWS else 1
        energy, num_changed, largest = 0.0, 0, 0.0
        spacings: list[float | None] = []
        first_BN = torch.zeros(self.start.T.shape)
        for begin, end in row_blocks(num_columns, first_row, after_last):
            before, after = self.base[begin:end], self.tuned[begin:end]
            block = _subtract(before, after, self.values_MN[begin:end])
            norms = torch.linalg.vector_norm(block, dim=1)
            norm = float(norms.max())
            if not math.isfinite(norm) and not bool(torch.isfinite(block).all()):
                _refuse_entries(self.pair, before, after, begin)
            energy += float(norms.double().square().sum())
            num_changed += int(np.count_nonzero(block.numpy() != 0))  # a third of torch's time
            largest = max(largest, norm)
            if None not in spacings:  # one block of a wide dtype tells for all
                spacings.append(spacing_energy(after, step))
            add_product(first_BN, block, self.start)
        return _Seen(energy, num_changed, largest, _sum(spacings), first_BN.T.double())


def spacing_energy(rows: torch.Tensor, step: int = 1) -> float | None:
    """Sum of the squared spacings of a 16-bit dtype at the entries of a matrix.

    Float32 rows whose entries all are bf16 numbers were rounded to bf16 before they were stored.

    Args:
        rows: The matrix.
        step: 1, or look at every so manieth row and take the others to be like them.

    Returns:
        The sum; None for wider dtypes, in which rounding hides nothing.
    """
    dtype = torch.bfloat16 if rows.dtype == torch.float32 else rows.dtype
    if dtype not in MANTISSA_BITS:
        return None
    seen = rows[::step].float().contiguous()
    if rows.dtype == torch.float32 and bool((seen.view(torch.int32) & 0xFFFF).any()):
        return None
    powers = (seen.view(torch.int32) & 0x7F800000).view(torch.float32)
    norms = torch.linalg.vector_norm(powers.clamp(min=LEAST_NORMAL[dtype]), dim=1)
    share = len(rows) / len(seen)
    return float(share * norms.double().square().sum() * 4.0 ** -MANTISSA_BITS[dtype])


def _subtract(before: torch.Tensor, after: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    if torch.float64 in (before.dtype, after.dtype):
        return out.copy_(after.double() - before.double())
    return torch.sub(after.float(), before.float(), out=out)


def _exact(values_MN: torch.Tensor, top: int) -> Spectrum:
    """By the Gram matrix of the smaller side in float64."""
    num_rows, num_columns = values_MN.shape
    tall = values_MN if num_rows >= num_columns else values_MN.T
    gram = torch.zeros(tall.shape[1], tall.shape[1], dtype=torch.float64)
    for begin, end in row_blocks(tall.shape[1], 0, len(tall)):
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
