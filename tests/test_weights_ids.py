"""Ids of groups, of any kind and in any order, laid out as rows."""

import random

import numpy as np
import pytest
import torch

from gradmass.weights import WEIGHTS
from gradmass.weights.groups import as_integers, consecutive, layout

EXTREMES = {
    "few bits": [3, 1, 3, 2, 1, 3],
    "negative": [-5, 7, -5, 0, 7, -6],
    "beyond 16 bits": [2**16, 0, 2**16 + 1, 2**16, 1, 0],
    "beyond 48 bits": [2**50, 2**50 + 2**20, 2**50, 3, 2**50 + 2**20, 3],
    "all of 64 bits": [-(2**63), 2**63 - 1, 0, -(2**63), 2**63 - 1, 5],
}


@pytest.mark.parametrize("ids", EXTREMES.values(), ids=EXTREMES)
def test_rows_are_in_the_order_of_integer_ids_and_rollouts_in_their_own(ids):
    rows = layout(np.array(ids))
    for row, number in zip(rows.slots_PG.tolist(), sorted(set(ids)), strict=True):
        members = [i for i, other in enumerate(ids) if other == number]
        assert row == members + [-1] * (rows.slots_PG.shape[1] - len(members))
    cells = rows.slots_PG.reshape(-1)
    assert [cells[position] for position in rows.position_B] == list(range(len(ids)))


@pytest.mark.parametrize(
    ("ids", "matrix"),
    [
        ("aabbcc", [[0, 1], [2, 3], [4, 5]]),  # in order already
        ("abcabc", [[0, 3], [1, 4], [2, 5]]),
        ("aabbbc", [[0, 1, None], [2, 3, 4], [5, None, None]]),  # in order, and padded
        ("a", [[0]]),
        ("", []),
    ],
)
def test_values_go_into_rows_and_back(ids, matrix):
    rows, values_B = layout(ids), np.arange(float(len(ids)))
    found = [
        [value if is_filled else None for value, is_filled in zip(*row, strict=True)]
        for row in zip(rows.rows(values_B).tolist(), rows.is_filled_PG.tolist(), strict=True)
    ]
    assert found == matrix
    assert rows.flat(rows.rows(values_B)).tolist() == values_B.tolist()


@pytest.mark.parametrize("num_rollouts", [8, 7, 1, 0])
def test_consecutive_groups_are_those_of_their_ids(num_rollouts):
    found, expected = consecutive(num_rollouts, 4), layout([i // 4 for i in range(num_rollouts)])
    assert found.slots_PG.tolist() == expected.slots_PG.tolist()
    assert found.position_B.tolist() == expected.position_B.tolist()


def test_unsigned_ids_beyond_signed_ones():
    rows = layout(np.array([2**64 - 1, 0, 2**64 - 1, 2**63], dtype=np.uint64))
    assert rows.slots_PG.tolist() == [[1, -1], [3, -1], [0, 2]]


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.uint16])
def test_small_integer_types(dtype):
    rows = layout(np.array([100, 3, 100], dtype=dtype))
    assert rows.slots_PG.tolist() == [[1, -1], [0, 2]]


def test_no_ids_make_no_rows():
    rows = layout([])
    assert rows.slots_PG.shape == (0, 0)
    assert rows.position_B.shape == (0,)


def test_ids_are_numbered_by_first_sight():
    assert as_integers(["b", "a", "b", "c"]).tolist() == [0, 1, 0, 2]
    assert as_integers(("x", 1, "x", None)).tolist() == [0, 1, 0, 2]
    tensors = [torch.tensor(number) for number in (7, 5, 7)]
    assert as_integers(tensors).tolist() == [0, 1, 0]
    assert as_integers(np.array(["b", "a", "b"])).tolist() == [0, 1, 0]


def test_a_large_shuffled_batch_is_weighed_like_its_matrix():
    rng, rewards_PG = random.Random(0), np.random.default_rng(0).random((3000, 4))
    cells = [(p, g) for p in range(3000) for g in range(4)]
    rng.shuffle(cells)
    expected, _ = WEIGHTS["grpo_std"]().update(rewards_PG, {})
    for ids in (np.array([1000 * p for p, _ in cells]), [f"prompt {p}" for p, _ in cells]):
        rewards_B = np.array([rewards_PG[cell] for cell in cells])
        weights_B, _ = WEIGHTS["grpo_std"]().weigh(rewards_B, ids)
        assert weights_B == pytest.approx([expected[cell] for cell in cells], rel=1e-12)
