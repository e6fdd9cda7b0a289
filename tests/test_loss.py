"""The clipped loss against its definition, case by case, one token at a time."""

import math
import random

import pytest
import torch

from gradmass.training.loss import policy_loss

NUM_CASES = 40


# The oracle. Written by cases, as PPO is explained, without min and clip: a weight above 0 pushes a
# token up until its ratio passes 1 + clip_high, one below 0 pushes it down until 1 - clip_low.


def is_clipped(ratio, weight, clip_low, clip_high):
    if weight > 0:
        return ratio > 1 + clip_high
    if weight < 0:
        return ratio < 1 - clip_low
    return False


def literal_loss(case):
    """(value, clip share, mean KL) in plain Python."""
    total, num_clipped, num_weighted, kls = 0.0, 0, 0, []
    for i, weight in enumerate(case["weights"]):
        for t, is_answer in enumerate(case["mask"][i]):
            if not is_answer:
                continue
            ratio = math.exp(case["logprobs"][i][t] - case["behaviour"][i][t])
            clipped = is_clipped(ratio, weight, case["clip_low"], case["clip_high"])
            bound = 1 + case["clip_high"] if weight > 0 else 1 - case["clip_low"]
            total -= (bound if clipped else ratio) * weight
            num_weighted += weight != 0
            num_clipped += clipped
            if case["reference"] is not None:
                gap = case["reference"][i][t] - case["logprobs"][i][t]
                kls.append(math.exp(gap) - 1 - gap)
    total += case["kl_coef"] * sum(kls)
    kl_nats = sum(kls) / len(kls) if kls else 0.0
    return total / case["denominator"], num_clipped / max(1, num_weighted), kl_nats


def literal_gradient(case):
    """Derivative of the value by each log-probability."""
    rows = []
    for i, weight in enumerate(case["weights"]):
        row = []
        for t, is_answer in enumerate(case["mask"][i]):
            slope = 0.0
            if is_answer:
                ratio = math.exp(case["logprobs"][i][t] - case["behaviour"][i][t])
                if not is_clipped(ratio, weight, case["clip_low"], case["clip_high"]):
                    slope -= ratio * weight
                if case["reference"] is not None:
                    gap = case["reference"][i][t] - case["logprobs"][i][t]
                    slope += case["kl_coef"] * (1 - math.exp(gap))
            row.append(slope / case["denominator"])
        rows.append(row)
    return rows


def random_case(seed):
    rng = random.Random(seed)
    num_rows, num_tokens = rng.randint(1, 5), rng.randint(1, 6)

    def matrix(draw):
        return [[draw() for _ in range(num_tokens)] for _ in range(num_rows)]

    spread = rng.choice([0.05, 0.5, 4.0])  # ratios near 1, around the clips, far outside them
    logprobs = matrix(lambda: -rng.expovariate(1.0))
    return {
        "logprobs": logprobs,
        "behaviour": [[x + rng.gauss(0, spread) for x in row] for row in logprobs],
        "reference": matrix(lambda: -rng.expovariate(1.0)) if rng.random() < 0.5 else None,
        "weights": [rng.choice([0.0, 1.0, -1.0, rng.gauss(0, 2)]) for _ in range(num_rows)],
        # The first token of an answer is always there.
        "mask": [[t < rng.randint(1, num_tokens) for t in range(num_tokens)] for _ in logprobs],
        "denominator": rng.choice([1.0, float(num_rows * num_tokens), 7.5]),
        "clip_low": rng.choice([0.0, 0.1, 0.2, 1.0]),
        "clip_high": rng.choice([0.0, 0.05, 0.28, 3.0]),
        "kl_coef": rng.choice([0.0, 0.01, 2.0]),
    }


def run(case, dtype=torch.float64, weights_dtype=None):
    """The loss of a case, and its gradient by the log-probabilities."""
    logprobs = torch.tensor(case["logprobs"], dtype=dtype, requires_grad=True)
    reference = case["reference"]
    loss = policy_loss(
        logprobs,
        torch.tensor(case["behaviour"], dtype=dtype),
        torch.tensor(case["weights"], dtype=weights_dtype or dtype),
        torch.tensor(case["mask"]),
        denominator_N=torch.full((len(case["weights"]),), case["denominator"], dtype=torch.float64),
        clip_low=case["clip_low"],
        clip_high=case["clip_high"],
        reference_logprobs_NT=None if reference is None else torch.tensor(reference, dtype=dtype),
        kl_coef=case["kl_coef"],
    )
    loss.value.backward()
    return loss, logprobs.grad


def one_token(log_ratio, weight, clip_low=0.2, clip_high=0.2):
    return {
        "logprobs": [[log_ratio - 3.0]],
        "behaviour": [[-3.0]],
        "reference": None,
        "weights": [weight],
        "mask": [[True]],
        "denominator": 1.0,
        "clip_low": clip_low,
        "clip_high": clip_high,
        "kl_coef": 0.0,
    }


def test_the_random_cases_reach_both_clips_and_no_clip():
    found = set()
    for seed in range(NUM_CASES):
        case = random_case(seed)
        for i, weight in enumerate(case["weights"]):
            for new, old, is_answer in zip(
                case["logprobs"][i], case["behaviour"][i], case["mask"][i], strict=True
            ):
                ratio = math.exp(new - old)
                side = (ratio > 1 + case["clip_high"]) - (ratio < 1 - case["clip_low"])
                found.add((is_answer, (weight > 0) - (weight < 0), side))
    assert found == {(m, w, s) for m in (True, False) for w in (-1, 0, 1) for s in (-1, 0, 1)}


@pytest.mark.parametrize("seed", range(NUM_CASES))
def test_value_clip_share_and_kl_equal_the_literal_sums(seed):
    case = random_case(seed)
    loss, _ = run(case)
    value, clip_share, kl_nats = literal_loss(case)
    assert loss.value.item() == pytest.approx(value, rel=1e-12, abs=1e-13)
    assert loss.clip_share == pytest.approx(clip_share, rel=1e-15)
    assert loss.kl_nats == pytest.approx(kl_nats, rel=1e-12, abs=1e-13)


@pytest.mark.parametrize("seed", range(NUM_CASES))
def test_what_is_kept_of_a_rollout_is_what_its_tokens_have_in_the_gradient(seed):
    case = random_case(seed)
    loss, _ = run(case)
    for i, weight in enumerate(case["weights"]):
        ratios = [
            math.exp(new - old)
            for new, old, is_answer in zip(
                case["logprobs"][i], case["behaviour"][i], case["mask"][i], strict=True
            )
            if is_answer
        ]
        gone = [is_clipped(r, weight, case["clip_low"], case["clip_high"]) for r in ratios]
        kept = [r for r, is_gone in zip(ratios, gone, strict=True) if weight and not is_gone]
        length = max(1, len(ratios))
        assert float(loss.kept_N[i]) == pytest.approx(sum(kept) / length, rel=1e-12)
        assert float(loss.clipped_N[i]) == pytest.approx(sum(gone) / length, rel=1e-12)


def test_a_ratio_that_overflows_and_is_clipped_is_kept_as_nothing():
    loss, _ = run(one_token(2000.0, 1.0))
    assert (float(loss.kept_N[0]), float(loss.clipped_N[0])) == (0.0, 1.0)
    loss, _ = run(one_token(2000.0, 0.0))
    assert (float(loss.kept_N[0]), float(loss.clipped_N[0])) == (0.0, 0.0)


@pytest.mark.parametrize("seed", range(NUM_CASES))
def test_gradient_equals_the_derivative_by_cases(seed):
    case = random_case(seed)
    _, gradient = run(case)
    expected = torch.tensor(literal_gradient(case), dtype=torch.float64)
    torch.testing.assert_close(gradient, expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("seed", range(0, NUM_CASES, 5))
def test_gradient_equals_finite_differences_of_the_literal_loss(seed):
    case, width = random_case(seed), 1e-6
    _, gradient = run(case)
    for i, row in enumerate(case["logprobs"]):
        for t, here in enumerate(row):
            values = []
            for shift in (width, -width):
                row[t] = here + shift
                values.append(literal_loss(case)[0])
            row[t] = here
            slope = (values[0] - values[1]) / (2 * width)
            assert gradient[i, t].item() == pytest.approx(slope, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize(
    ("log_ratio", "weight", "value", "slope"),
    [
        # Twice as likely, weight above 0: capped at 1.28. Below 0: pushed down in full.
        (math.log(2), 1.5, -1.28 * 1.5, 0.0),
        (math.log(2), -1.5, 2 * 1.5, 2 * 1.5),
        # Half as likely, weight below 0: capped at 0.9. Above 0: pulled up in full.
        (math.log(0.5), -1.5, 0.9 * 1.5, 0.0),
        (math.log(0.5), 1.5, -0.5 * 1.5, -0.5 * 1.5),
    ],
)
def test_each_clip_acts_on_its_own_side(log_ratio, weight, value, slope):
    loss, gradient = run(one_token(log_ratio, weight, clip_low=0.1, clip_high=0.28))
    assert loss.value.item() == pytest.approx(value)
    assert gradient.item() == pytest.approx(slope)
    assert loss.clip_share == (slope == 0)


@pytest.mark.parametrize("clip", [0.0, 0.2])
@pytest.mark.parametrize("weight", [0.7, -0.7])
def test_on_policy_the_gradient_is_the_weight_whatever_the_clip(clip, weight):
    loss, gradient = run(one_token(0.0, weight, clip_low=clip, clip_high=clip))
    assert gradient.item() == pytest.approx(-weight)
    assert loss.clip_share == 0


@pytest.mark.parametrize("garbage", [math.inf, -math.inf, math.nan, 1e30, -1e30, 500.0])
@pytest.mark.parametrize("where", ["logprobs", "behaviour", "reference"])
@pytest.mark.parametrize("weight", [1.0, -1.0, 0.0])
def test_what_stands_at_padding_reaches_neither_value_nor_gradient(garbage, where, weight):
    clean = one_token(0.1, weight) | {"reference": [[-2.0]], "kl_coef": 0.3}
    padded = clean | {key: [[*clean[key][0], -1.0]] for key in ("logprobs", "behaviour")}
    padded |= {"reference": [[-2.0, -1.0]], "mask": [[True, False]]}
    padded[where] = [[padded[where][0][0], garbage]]
    loss, gradient = run(padded)
    clean_loss, clean_gradient = run(clean)
    assert loss.value.item() == clean_loss.value.item()
    assert loss.clip_share == clean_loss.clip_share
    assert loss.kl_nats == clean_loss.kl_nats
    assert gradient.tolist() == [[clean_gradient.item(), 0.0]]


def test_a_ratio_that_overflows_is_clipped_in_value_where_the_weight_is_positive():
    loss, _ = run(one_token(200.0, 2.0), dtype=torch.float32)
    assert loss.value.item() == pytest.approx(-2.4)
    assert loss.clip_share == 1


def test_without_weights_nothing_is_pushed_and_nothing_counts_as_clipped():
    case = random_case(3) | {"weights": [0.0] * len(random_case(3)["weights"]), "kl_coef": 0.0}
    loss, gradient = run(case)
    assert loss.value.item() == 0
    assert loss.clip_share == 0
    assert torch.equal(gradient, torch.zeros_like(gradient))


def test_tokens_of_weight_zero_do_not_dilute_the_clip_share():
    # Two tokens of weight 1, one of them clipped; two of weight 0; two of padding, beyond the clip.
    case = one_token(0.0, 1.0) | {
        "logprobs": [[1.0, 0.0, 9.0], [1.0, 1.0, 9.0]],
        "behaviour": [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]],
        "weights": [1.0, 0.0],
        "mask": [[True, True, False]] * 2,
    }
    assert run(case)[0].clip_share == 0.5


def test_without_a_reference_there_is_no_kl():
    loss, _ = run(one_token(0.1, 1.0) | {"kl_coef": 5.0})
    assert loss.kl_nats == 0.0
    assert loss.value.item() == pytest.approx(-math.exp(0.1))


def test_the_kl_pulls_towards_the_reference_even_without_a_weight():
    case = one_token(0.0, 0.0) | {"reference": [[-2.0]], "kl_coef": 1.0}  # the policy is at -3
    loss, gradient = run(case)
    assert loss.kl_nats == pytest.approx(math.e - 2)
    assert loss.value.item() == pytest.approx(math.e - 2)
    assert gradient.item() == pytest.approx(1 - math.e)  # below 0: descent makes it more likely


@pytest.mark.parametrize("weights_dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_weights_of_any_dtype_give_a_loss_of_the_policy_s_dtype(weights_dtype):
    case = one_token(0.1, -0.75)  # exact in each of them
    loss, gradient = run(case, dtype=torch.float32, weights_dtype=weights_dtype)
    assert loss.value.dtype == gradient.dtype == torch.float32
    assert loss.value.item() == pytest.approx(0.75 * math.exp(0.1), rel=1e-6)
