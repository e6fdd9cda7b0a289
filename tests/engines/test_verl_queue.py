"""What verl's trainers take out of the queue's answers: by hand."""

import gc

import numpy as np
import pytest
import torch

from gradmass.engines import verl_queue
from gradmass.engines.verl_batch import read_results
from gradmass.engines.verl_queue import is_cut_from, results_of, uncollected
from gradmass.rewards import Outcome

WHOLE = torch.tensor([[1.0, 1.0, 0.0], [2.0, 0.0, 0.0], [-1.0, -1.0, -1.0]])


def jagged(*rows):
    return torch.nested.as_nested_tensor([torch.tensor(row) for row in rows], layout=torch.jagged)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([[1.0, 1.0], [2.0], [-1.0, -1.0, -1.0]], True),
        ([[1.0, 1.0, 0.0], [2.0, 0.0], [-1.0, -1.0, -1.0]], True),
        ([[1.0, 1.0], [2.0], [-1.0, -1.0]], False),  # an end that is not 0 was cut off
        ([[1.0], [2.0], [-1.0, -1.0, -1.0]], False),
        ([[1.0, 1.0], [2.5], [-1.0, -1.0, -1.0]], False),
        ([[1.0, 1.0], [2.0, 0.5], [-1.0, -1.0, -1.0]], False),
        ([[1.0, 1.0], [2.0], [-1.0, -1.0, -1.0, 0.5]], False),
        ([[1.0, 1.0], [-1.0, -1.0, -1.0], [2.0]], False),
    ],
)
def test_rows_cut_from_a_matrix_are_told_from_others(rows, expected):
    assert is_cut_from(jagged(*rows), WHOLE) is expected
    width = max(map(len, rows))
    dense = torch.tensor([row + [0.0] * (width - len(row)) for row in rows])
    assert is_cut_from(dense, WHOLE) is expected


@pytest.mark.parametrize("was_on", [True, False])
def test_the_collector_is_left_as_it_was_found(was_on):
    def fetch():
        with uncollected():
            assert not gc.isenabled()
            raise KeyError

    try:
        (gc.enable if was_on else gc.disable)()
        with pytest.raises(KeyError):
            fetch()
        assert gc.isenabled() is was_on
    finally:
        gc.enable()


def test_fetches_that_overlap_leave_the_collector_to_the_last():
    first, second = uncollected(), uncollected()
    try:
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        assert not gc.isenabled()
        third = uncollected()
        third.__enter__()
        second.__exit__(None, None, None)
        assert not gc.isenabled()
        third.__exit__(None, None, None)
        assert gc.isenabled()
    finally:
        gc.enable()


class Rows:
    keys = ("a_0_0", "a_1_0", "a_2_0")


@pytest.mark.parametrize(
    ("columns", "is_error", "values"),
    [
        ({}, [0, 0, 0], None),
        ({"extra_fields": [{}, None, {"reward_extra_info": None}]}, [0, 0, 0], None),
        (
            {
                "extra_fields": [
                    {"reward_extra_info": {"verdict": v, "acc": a}}
                    for v, a in (("error", 1), (Outcome.ERROR, None), ("wrong", 0.5))
                ]
            },
            [1, 1, 0],
            [1, np.nan, 0.5],
        ),
        # A reward model on the trainer's own GPUs writes columns; the rollouts' own come first.
        (
            {
                "extra_fields": [{"reward_extra_info": {"acc": 3}}, {}, {}],
                "acc": torch.tensor([0.0, 1.0, 0.25]),
                "verdict": ["right", "error", None],
            },
            [0, 1, 0],
            [3, 1, 0.25],
        ),
    ],
)
def test_results_are_read_from_rollouts_and_columns(monkeypatch, columns, is_error, values):
    monkeypatch.setattr(verl_queue, "columns", lambda batch, *names: dict(columns))
    found = results_of(Rows(), None if values is None else "acc")
    assert found.is_error_B.tolist() == [bool(e) for e in is_error]
    if values is None:
        assert found.values_B is None
    else:
        np.testing.assert_array_equal(found.values_B, values)


def test_a_key_that_is_missing_is_told_from_one_that_is_none():
    found = read_results([{"acc": None}, {"score": 1}, {"acc": 2}], "acc")
    assert found.is_missing_B.tolist() == [False, True, False]
    assert found.known == "acc, score"
