"""What a comparison says: of each matrix, of each kind of module, and what cannot be told."""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from gradmass.metrics.krylov import SHARE_TOLERANCE, VALUE_TOLERANCE
from gradmass.metrics.rank import is_hidden

VECTORS = "vectors (norms, biases)"


@dataclass(frozen=True)
class Measured:
    """The change of one matrix or vector.

    Args:
        name: Of the tensor, with the number of the expert where there is one.
        shape: Its sides.
        energy: Squared Frobenius norm of the change.
        rounding_energy: What rounding to a 16-bit dtype adds to it.
        num_changed: Entries that changed.
        squares_K: Squared singular values, descending; empty for a vector.
        share_error: By how much r_1 can be too low.
        value_error: By how much, relatively, a singular value can be too low.
        noise: r_1 of noise.
        rank: What the rank cannot exceed, for an adapter.
        dtype: In which TUNED is stored.
    """

    name: str
    shape: tuple[int, ...]
    energy: float
    rounding_energy: float
    num_changed: int
    squares_K: tuple[float, ...]
    share_error: float
    value_error: float
    noise: float
    rank: int | None
    dtype: str

    @property
    def is_matrix(self) -> bool:
        """Whether it has singular values besides its norm."""
        return len(self.shape) > 1

    @property
    def num_entries(self) -> int:
        """Number of parameters."""
        return math.prod(self.shape)

    @property
    def module(self) -> str:
        """Name without the numbers of layers and experts."""
        if not self.is_matrix:
            return VECTORS
        name = re.sub(r"(?<=[.\[])\d+(?=[.\]]|$)", "*", self.name)
        return name.removesuffix(".weight")


@dataclass(frozen=True)
class Comparison:
    """Two checkpoints side by side.

    Args:
        base: The model before.
        tuned: The model after.
        measured: Each matrix and vector.
        num_parameters: Of the model, as far as it was selected.
        reading_notes: What was not compared as one would expect.
    """

    base: str
    tuned: str
    measured: Sequence[Measured]
    num_parameters: int
    reading_notes: Sequence[str] = field(default_factory=list)

    @property
    def energy(self) -> float:
        """Squared norm of the whole change."""
        return sum(row.energy for row in self.measured)

    def entry(self) -> dict[str, Any]:
        """Plain JSON."""
        matrices = [row for row in self.measured if row.is_matrix]
        groups = self._groups(self.measured)
        return {
            "base": self.base,
            "tuned": self.tuned,
            "matrices": [
                {"name": row.name, "shape": list(row.shape), **self._shares([row])}
                for row in matrices
            ],
            "modules": [
                {"name": name, "num_tensors": len(rows), **self._shares(rows)}
                for name, rows in groups.items()
            ],
            "notes": self.notes(),
        }

    def notes(self) -> list[str]:
        """What has to be known beside the numbers."""
        notes = list(self.reading_notes)
        groups = self._groups([row for row in self.measured if row.is_matrix])
        same = {name: [row for row in rows if not row.energy] for name, rows in groups.items()}
        unchanged = [_which(name, same[name], groups[name]) for name in groups if same[name]]
        if unchanged:
            notes.append(f"no change in {', '.join(unchanged)}")
        for say in (_hidden, _uncertain):
            notes += [note for name, rows in groups.items() if (note := say(name, rows))]
        capped = [row for row in self.measured if row.rank is not None and row.energy]
        if capped:
            notes.append(
                f"an adapter of rank {_range(capped, lambda row: row.rank or 0, '{}')}: no change "
                "has a rank above that, and r_1 is at least one over it, by construction; "
                "r_1_noise is that of random factors"
            )
        return notes

    @staticmethod
    def _groups(rows: Sequence[Measured]) -> dict[str, list[Measured]]:
        groups: dict[str, list[Measured]] = {}
        for row in rows:
            groups.setdefault(row.module, []).append(row)
        return groups

    def _shares(self, rows: Sequence[Measured]) -> dict[str, Any]:
        """Of one matrix, or of several as the blocks of one change.

        Together ``sigma_k^2`` is the sum of theirs, so that r_1 is their mean by energy.
        """
        energy = sum(row.energy for row in rows)
        squares_K = [
            sum(row.squares_K[k] for row in rows if k < len(row.squares_K))
            for k in range(max(len(row.squares_K) for row in rows))
        ]
        weights = [row.energy / energy if energy else 1 / len(rows) for row in rows]
        is_told = (
            bool(squares_K)
            and rows[0].is_matrix
            and not is_hidden(energy, sum(row.rounding_energy for row in rows))
        )
        share = min(1.0, squares_K[0] / energy) if is_told else None
        num_entries = sum(row.num_entries for row in rows)
        noises = [weight * row.noise for weight, row in zip(weights, rows, strict=True)]
        return {
            "r_1": share,
            "r_1_noise": sum(noises) if rows[0].is_matrix else None,
            "stable_rank": None if share is None else 1 / share,
            "energy_share": energy / self.energy,
            "parameter_share": num_entries / self.num_parameters,
            "singular_values": [math.sqrt(square) for square in squares_K],
            "changed_fraction": sum(row.num_changed for row in rows) / num_entries,
        }


def _hidden(name: str, rows: Sequence[Measured]) -> str:
    hidden = [row for row in rows if row.energy and is_hidden(row.energy, row.rounding_energy)]
    if not hidden:
        return ""
    shares = _range(hidden, lambda row: row.rounding_energy / row.energy, "{:.2g}")
    return (
        f"cannot tell r_1 of {_which(name, hidden, rows)}: rounding to {hidden[0].dtype} can carry "
        f"{shares} times the energy of the stored change, in which "
        f"{_range(hidden, lambda row: row.num_changed / row.num_entries, '{:.2%}')} of the entries "
        f"differ and r_1 is {_range(hidden, lambda row: row.squares_K[0] / row.energy, '{:.3f}')}; "
        "compare float32 weights, or checkpoints further apart"
    )


def _uncertain(name: str, rows: Sequence[Measured]) -> str:
    wide = [
        row
        for row in rows
        if row.share_error > SHARE_TOLERANCE or row.value_error > VALUE_TOLERANCE
    ]
    if not wide:
        return ""
    return (
        f"flat spectrum in {_which(name, wide, rows)}: singular values can be up to "
        f"{_range(wide, lambda row: row.value_error, '{:.1%}')} higher, r_1 up to "
        f"{_range(wide, lambda row: row.share_error, '{:.1e}')}"
    )


def _which(name: str, some: Sequence[Measured], rows: Sequence[Measured]) -> str:
    if len(some) == 1:
        return some[0].name
    number = "all" if len(some) == len(rows) else f"{len(some)} of the"
    return f"{number} {len(rows)} {name}"


def _range(rows: Sequence[Measured], value: Callable[[Measured], float], form: str) -> str:
    values = [value(row) for row in rows]
    low, high = form.format(min(values)), form.format(max(values))
    return low if low == high else f"{low} to {high}"
