"""What is measured of one matrix: against exact decompositions, whatever its shape and dtype."""

import math
import subprocess
import sys

import pytest
import torch
from safetensors.torch import save_file

from gradmass.metrics.rank import MAX_ROUNDING_SHARE
from gradmass.spectra.change import spacing_energy
from gradmass.types import UsageError


def noise(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def exact(before, after):
    """Singular values, r_1 and energy by a float64 decomposition."""
    delta = (after.double() - before.double()).reshape(after.shape[0], -1)
    values = torch.linalg.svdvals(delta)
    return values, float(values[0] ** 2 / values.square().sum()), float(values.square().sum())


SHAPES = [(1, 1), (1, 40), (40, 1), (5, 5), (7, 300), (300, 7), (300, 520), (520, 300), (5000, 3)]


@pytest.mark.parametrize("shape", SHAPES)
def test_matrices_of_any_shape_have_the_values_of_their_decomposition(compared, shape):
    before, after = noise(*shape), noise(*shape, seed=1)
    row = compared(before, after)
    values, share, _ = exact(before, after)
    assert row["shape"] == list(shape)
    assert row["r_1"] == pytest.approx(share, abs=1e-3)
    assert row["stable_rank"] == pytest.approx(1 / row["r_1"])
    num = min(8, *shape)
    assert row["singular_values"] == pytest.approx(values[:num].tolist(), rel=1e-2)
    assert (row["energy_share"], row["parameter_share"]) == (1.0, 1.0)
    assert row["changed_fraction"] == 1.0


@pytest.mark.parametrize("shape", [(300, 520), (12, 60)])
def test_orientation_does_not_matter(compared, shape):
    before, after = noise(*shape), noise(*shape, seed=1) * torch.logspace(0, -3, shape[1])
    row, turned = compared(before, after), compared(before.T, after.T)
    assert turned["r_1"] == pytest.approx(row["r_1"], abs=1e-4)
    assert turned["singular_values"] == pytest.approx(row["singular_values"], rel=1e-2)
    assert turned["r_1_noise"] == row["r_1_noise"]


@pytest.mark.parametrize("side", [20, 300])
def test_a_change_of_rank_one_has_one_value_and_r1_one(compared, side):
    before = torch.zeros(side, side)
    row = compared(before, torch.outer(noise(side), noise(side, seed=1)))
    assert row["r_1"] == pytest.approx(1.0, abs=1e-6)
    norms = float(noise(side).norm() * noise(side, seed=1).norm())
    assert row["singular_values"] == pytest.approx([norms], rel=1e-5)


@pytest.mark.parametrize("scale", [1e-30, 1e-25, 1e18, 1e30])
def test_neither_tiny_nor_huge_changes_leave_float32(compared, scale):
    before, after = torch.zeros(400, 300), scale * noise(400, 300)
    row = compared(before, after)
    values, share, _ = exact(before, after)
    assert row["r_1"] == pytest.approx(share, rel=1e-2)
    assert row["singular_values"] == pytest.approx(values[:8].tolist(), rel=1e-2)


def test_a_convolution_is_a_matrix_with_a_row_for_each_filter(compared):
    before, after = noise(12, 4, 3, 3), noise(12, 4, 3, 3, seed=1)
    row = compared(before, after)
    assert row["shape"] == [12, 36]
    assert row["singular_values"] == pytest.approx(exact(before, after)[0][:8].tolist(), rel=1e-6)


def test_experts_in_one_tensor_are_matrices_of_their_own(pair, entry_of):
    name = "model.layers.3.mlp.experts.down_proj"
    before, after = noise(3, 6, 5), noise(3, 6, 5, seed=1)
    entry = entry_of(*pair({name: before}, {name: after}))
    assert [row["name"] for row in entry["matrices"]] == [f"{name}[{i}]" for i in range(3)]
    for i, row in enumerate(entry["matrices"]):
        assert row["r_1"] == pytest.approx(exact(before[i], after[i])[1], rel=1e-6)
    (module,) = entry["modules"]
    assert module["name"] == "model.layers.*.mlp.experts.down_proj[*]"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_half_precision_is_subtracted_in_float32(compared, dtype):
    before, after = noise(30, 20).to(dtype), (noise(30, 20) + 0.5 * noise(30, 20, seed=1)).to(dtype)
    row = compared(before, after)
    assert row["r_1"] == pytest.approx(exact(before, after)[1], rel=1e-5)


def test_the_identity_in_bf16_has_values_of_one(compared):
    row = compared(torch.zeros(3, 3).bfloat16(), torch.eye(3).bfloat16())
    assert row["singular_values"] == pytest.approx([1.0, 1.0, 1.0])


def test_a_zero_change_is_no_change_and_has_no_direction(pair, entry_of):
    same, other = torch.ones(3, 4), noise(5, 5)
    entry = entry_of(*pair({"a": same, "b": other}, {"a": same, "b": other + 1}))
    row = next(row for row in entry["matrices"] if row["name"] == "a")
    assert (row["r_1"], row["stable_rank"], row["singular_values"]) == (None, None, [])
    assert (row["energy_share"], row["changed_fraction"]) == (0.0, 0.0)
    assert "no change in a" in entry["notes"]


PEAK = """
import sys
from pathlib import Path
from gradmass.spectra.compare import compare

def peak():
    (line,) = [line for line in open("/proc/self/status") if line.startswith("VmHWM")]
    return 1024 * int(line.split()[1])

started = peak()
compare(*map(Path, sys.argv[1:]), modules=None, top=8, split=None, progress=lambda *told: None)
print(peak() - started)
"""


@pytest.mark.slow
def test_one_matrix_is_in_memory_at_a_time(tmp_path):
    shape, peaks = (4000, 2500), []
    for num_tensors in (2, 8):
        pair = [tmp_path / f"{name}-{num_tensors}.safetensors" for name in ("base", "tuned")]
        for seed, file in enumerate(pair):
            tensor = noise(*shape, seed=seed).bfloat16()
            save_file({f"{i}.weight": tensor.clone() for i in range(num_tensors)}, file)
        command = [sys.executable, "-c", PEAK, *map(str, pair)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        peaks.append(int(done.stdout))
    in_float32 = 4 * shape[0] * shape[1]
    few, many = peaks
    assert in_float32 < few < 3 * in_float32 + 2**30
    # Six more tensors would be 240 MB in float32, and 240 MB in the two files.
    assert many - few < in_float32


# Rounding


def bf16_pair(scale, side=256):
    """A rank-one update of weights that are then stored in bf16."""
    generator = torch.Generator().manual_seed(0)
    before = (0.02 * torch.randn(side, side, generator=generator)).bfloat16()
    update = torch.randn(side, 1, generator=generator) @ torch.randn(1, side, generator=generator)
    return before, (before.double() + scale * update.double()).bfloat16()


@pytest.mark.parametrize(("scale", "changed"), [(1e-6, 0.0096), (1e-5, 0.093)])
def test_bf16_that_hides_a_rank_one_update_cannot_tell_r1(pair, entry_of, scale, changed):
    entry = entry_of(*pair(*({"w": t} for t in bf16_pair(scale))))
    (row,) = entry["matrices"]
    assert (row["r_1"], row["stable_rank"]) == (None, None)
    assert row["changed_fraction"] == pytest.approx(changed, rel=0.2)
    assert len(row["singular_values"]) == 8
    (note,) = entry["notes"]
    assert note.startswith("cannot tell r_1 of w: rounding to bfloat16 can carry")
    assert f"{row['changed_fraction']:.2%} of the entries" in note
    assert [row["r_1"] for row in entry["modules"]] == [None]


@pytest.mark.parametrize("scale", [2e-4, 4e-4, 1e-3])
def test_bf16_that_shows_a_rank_one_update_tells_r1(compared, scale):
    row = compared(*bf16_pair(scale))
    assert 0.93 < row["r_1"] <= 1.0
    assert row["changed_fraction"] < 0.95


def test_float32_that_holds_bf16_numbers_was_rounded_and_float32_was_not(compared):
    before, after = bf16_pair(1e-5)
    assert compared(before.float(), after.float())["r_1"] is None
    exact_after = before.float() + 1e-5 * torch.outer(noise(256), noise(256, seed=1))
    assert compared(before, exact_after)["r_1"] == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize(("dtype", "bits", "least"), [("bfloat16", 7, -126), ("float16", 10, -14)])
def test_spacings_are_those_of_the_power_of_two_below_an_entry(dtype, bits, least):
    numbers = [1.0, 1.99, 2.0, -3.5, 0.013, 700.0, 1e-7, 0.0]
    tensor = torch.tensor([numbers]).to(getattr(torch, dtype))
    expected = 0.0
    for number in tensor[0].tolist():
        exponent = least if number == 0 else max(math.frexp(number)[1] - 1, least)
        expected += (2.0 ** (exponent - bits)) ** 2
    assert spacing_energy(tensor) == pytest.approx(expected, rel=1e-6)
    assert spacing_energy(tensor.repeat(8, 1), step=8) == pytest.approx(8 * expected, rel=1e-6)
    assert MAX_ROUNDING_SHARE == 0.1


def test_the_numbers_do_not_depend_on_the_threads(compared):
    before, after = noise(40_000, 400).bfloat16(), noise(40_000, 400, seed=1).bfloat16()
    rows = []
    for num_threads in (1, 2, 3):
        torch.set_num_threads(num_threads)
        try:
            rows.append(compared(before, after))
            assert torch.get_num_threads() == num_threads
        finally:
            torch.set_num_threads(1)
    assert rows[0] == rows[1] == rows[2]


# What is refused


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("side", ["base", "tuned"])
def test_an_entry_that_is_no_number_is_named_with_its_file(pair, entry_of, bad, side):
    tensors = {"base": {"w": noise(9000, 300)}, "tuned": {"w": noise(9000, 300, seed=1)}}
    tensors[side]["w"][8500, 7] = bad
    with pytest.raises(UsageError) as caught:
        entry_of(*pair(tensors["base"], tensors["tuned"]))
    shown = f"w in .*{side}.safetensors holds {bad} \\(row 8500, column 7\\)"
    caught.match(shown)


def test_identical_checkpoints_are_an_error(pair, entry_of):
    with pytest.raises(UsageError, match="hold the same weights: none of the 2 tensors"):
        entry_of(*pair(*[{"a": noise(3, 4), "b": noise(5)}] * 2))


def test_zeros_of_either_sign_are_no_change(compared):
    before, after = torch.zeros(40, 30), torch.zeros(40, 30)
    after[::2] = -0.0
    after[0, 0] = 1.0
    assert compared(before, after)["changed_fraction"] == pytest.approx(1 / 1200)
