"""Ids of groups, of any kind and in any order, laid out as rows."""

import random

import numpy as np
import pytest
import torch

from gradmass.weights import WEIGHTS
from gradmass.weights.groups import as_integers, layout

EXTREMES = {
    "few bits": [3, 1, 3, 2, 1, 3],
    "negative": [-5, 7, -5, 0, 7, -6],
    "beyond 16 bits": [2**16, 0, 2**16 + 1, 2**16, 1, 0],
    "beyond 48 bits": [2**50, 2**50 + 2**20, 2**50, 3, 2**50 + 2**20, 3],
    "all of 64 bits": [-(2**63), 2**63 - 1, 0, -(2**63), 2**63 - 1, 5],
}


@pytest.mark.parametrize("ids", EXTREMES.values(), ids=EXTREMES)
def test_rows_are_in_the_order_of_integer_ids_and_rollouts_in_their_own(ids):
    slots_PG, position_B = layout(np.array(ids))
    for row, number in zip(slots_PG.tolist(), sorted(set(ids)), strict=True):
        members = [i for i, other in enumerate(ids) if other == number]
        assert row == members + [-1] * (slots_PG.shape[1] - len(members))
    cells = slots_PG.reshape(-1)
    assert [cells[position] for position in position_B] == list(range(len(ids)))


def test_unsigned_ids_beyond_signed_ones():
    slots_PG, _ = layout(np.array([2**64 - 1, 0, 2**64 - 1, 2**63], dtype=np.uint64))
    assert slots_PG.tolist() == [[1, -1], [3, -1], [0, 2]]


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.uint16])
def test_small_integer_types(dtype):
    slots_PG, _ = layout(np.array([100, 3, 100], dtype=dtype))
    assert slots_PG.tolist() == [[1, -1], [0, 2]]


def test_no_ids_make_no_rows():
    slots_PG, position_B = layout([])
    assert slots_PG.shape == (0, 0)
    assert position_B.shape == (0,)


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
