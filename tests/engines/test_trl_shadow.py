"""Shadow mode in TRL: what is measured, and that nothing a weight does stops the run."""

import json
import math
import warnings

import pytest
import torch

from gradmass.engines.state import read_state
from gradmass.types import UsageError
from gradmass.weights import WEIGHTS

pytestmark = [
    pytest.mark.trl,
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


def fade():
    return WEIGHTS["fade"](entropy_form="relative")


class Broken(WEIGHTS["grpo"]):
    name = "broken"

    def formula(self, groups, state, signals):
        return groups.centred_PG / (groups.rewards_PG.size < 4 or len([]) / len([]))


class Unsaved(WEIGHTS["grpo"]):
    name = "unsaved"

    def init(self):
        return {"seen": 0}

    def observe(self, groups, state, signals):
        return {"seen": {1, 2}}


def values(trainer, name, mode="train"):
    return trainer._metrics[mode][name]


def test_a_shadow_weight_that_fails_later_is_switched_off_and_the_run_goes_on(make, score):
    trainer = make([1, 0, 0, 0], 4, [fade(), WEIGHTS["grpo"]()], mode="shadow", success="scripted")
    score(trainer, 4, 4)
    trainer.reward_funcs[0].rewards = [1.5, 0, 0, 0]
    with pytest.warns(UserWarning, match="shadow weight fade is off from here on: reward 1.5"):
        score(trainer, 4, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        score(trainer, 4, 4)
    assert len(values(trainer, "shadow/fade/mass/positive")) == 1
    assert len(values(trainer, "shadow/grpo/mass/positive")) == 3
    assert values(trainer, "shadow/fade/off") == [1, 1]
    assert values(trainer, "shadow/grpo/off") == []


@pytest.mark.parametrize(
    ("weight", "told"),
    [
        (Broken(), r"broken is off .*: ZeroDivisionError: .* \(.*test_trl_shadow\.py:\d+\)"),
        (Unsaved(), "unsaved is off .*: TypeError: Object of type set is not JSON serializable"),
    ],
)
def test_a_shadow_weight_with_an_error_of_its_own_changes_nothing(make, score, weight, told):
    plain = make([1, 0, 0, 0], 4)
    trainer = make([1, 0, 0, 0], 4, [weight, WEIGHTS["grpo"]()], mode="shadow")
    with pytest.warns(UserWarning, match=f"shadow weight {told}") as caught:
        found = [score(trainer, 4, 4)["advantages"] for _ in range(3)]
    assert len([w for w in caught if "is off from here on" in str(w.message)]) == 1
    expected = [score(plain, 4, 4)["advantages"] for _ in range(3)]
    assert all(map(torch.equal, found, expected))
    assert values(trainer, f"shadow/{weight.name}/off") == [1, 1, 1]
    assert len(values(trainer, "shadow/grpo/mass/positive")) == 3
    json.dumps(trainer._gradmass.state_dict())


def test_a_whole_run_outlives_its_shadow(make, tmp_path):
    config = {"max_steps": 2, "save_strategy": "steps", "save_steps": 1, "save_only_model": False}
    weights = [Broken(), fade()]
    trainer = make([1, 0, 0, 0], 4, weights, mode="shadow", config=config)
    with pytest.warns(UserWarning, match="shadow weight broken is off"):
        trainer.train()
    off = [row["shadow/broken/off"] for row in trainer.state.log_history if "loss" in row]
    assert off == [1, 1]
    saved = read_state(tmp_path / "run" / "checkpoint-2")
    assert [entry["spec"] for entry in saved["weights"]][1] == "fade"


def test_a_state_that_cannot_be_written_leaves_the_checkpoint_alone(make, monkeypatch, tmp_path):
    def full(folder, saved):
        raise OSError("No space left on device")

    monkeypatch.setattr("gradmass.engines.trl_mixin.write_state", full)
    config = {"max_steps": 1, "save_strategy": "steps", "save_steps": 1}
    trainer = make([1, 0, 0, 0], 4, fade(), mode="shadow", config=config)
    with pytest.warns(UserWarning, match="has no state of the weights: OSError: No space left"):
        trainer.train()
    assert (tmp_path / "run" / "checkpoint-1" / "model.safetensors").exists()
    with pytest.raises(OSError, match="No space left"):
        make([1, 0, 0, 0], 4, fade(), config=config).train()


def test_what_cannot_be_measured_is_refused_at_the_first_batch_and_told_once_later(make, score):
    with pytest.raises(UsageError, match=r"0\.5 is neither 0 nor 1"):
        score(make([0.5, 0, 0, 0], 4, fade(), mode="shadow"), 4, 4)
    trainer = make([1, 0, 0, 0], 4, fade(), mode="shadow")
    score(trainer, 4, 4)
    trainer.reward_funcs[0].rewards = [0.5, 0, 0, 0]
    with pytest.warns(UserWarning, match="nothing was measured of a batch: reward 0.5"):
        score(trainer, 4, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        score(trainer, 4, 4)
    assert values(trainer, "shadow/unmeasured") == [1, 1]
    assert len(values(trainer, "mass/positive")) == 1


def test_an_update_that_cannot_be_measured_is_trained_on(make, monkeypatch):
    from gradmass.engines.trl_window import Window

    config = {"max_steps": 3}
    plain = make([1, 0, 0, 0], 4, config=config)
    plain.train()
    trainer = make([1, 0, 0, 0], 4, fade(), mode="shadow", config=config)
    add = Window.add

    def fail_later(self, *args):
        if trainer.state.global_step == 1:
            raise RuntimeError("no kernel image")
        return add(self, *args)

    monkeypatch.setattr(Window, "add", fail_later)
    told = "neither entropy nor clipping was measured of an update: RuntimeError: no kernel image"
    with pytest.warns(UserWarning, match=told):
        trainer.train()
    rows = [row for row in trainer.state.log_history if "loss" in row]
    assert [row.get("shadow/unmeasured") for row in rows] == [None, 1, None]
    pairs = zip(trainer.model.parameters(), plain.model.parameters(), strict=True)
    assert all(torch.equal(ours, theirs) for ours, theirs in pairs)


def test_the_same_error_of_the_weight_that_acts_stops_the_run(make, score):
    with pytest.raises(ZeroDivisionError):
        score(make([1, 0, 0, 0], 4, Broken()), 4, 4)


def test_two_shadow_weights_of_one_name_are_told_apart(make, score):
    weights = [fade(), WEIGHTS["fade"](alpha_max=2.0)]
    trainer = make([1, 0, 0, 0], 4, weights, mode="shadow")
    score(trainer, 4, 4)
    assert len(values(trainer, "shadow/fade/mass/positive")) == 1
    assert len(values(trainer, "shadow/fade_2/mass/positive")) == 1
    host = values(trainer, "mass/positive")[0]
    std = math.sqrt(3 * 0.25**2 / 3 + 0.75**2 / 3)
    assert host == pytest.approx(0.75 / (std + 1e-4) / 4, rel=1e-5)
