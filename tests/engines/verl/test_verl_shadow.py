"""Shadow mode in verl's trainer: what is measured, and that nothing of it reaches the run."""

import threading
import warnings

import pytest
import torch

from gradmass.types import UsageError

pytestmark = [pytest.mark.verl, pytest.mark.filterwarnings("ignore")]
SESSIONS = [(prompt, session, 0) for prompt in "ab" for session in range(4)]
REWARDS = [1, 0, 0, 0, 1, 1, 0, 1]
SHADOW = ("gradmass_sync", "grpo", "+algorithm.gradmass.mode=shadow")
FADE = (*SHADOW, "+algorithm.gradmass.weight=fade")
WEIGHT = """
from gradmass.weights import WEIGHTS

class Broken(WEIGHTS["grpo"]):
    def observe(self, groups, state, signals):
        if groups.rewards_PG.shape[1] == 4:
            raise LookupError("not in my table")
        return state
"""


def read(queue, batch, name):
    data = queue.kv_batch_get(keys=batch.keys, partition_id="train", select_fields=[name])
    return data[name].to_padded_tensor(0)


def step(trainer, batch, entropy=0.5):
    metrics = {"actor/entropy": entropy}
    return trainer._compute_advantage(batch, metrics), metrics


def test_shadow_mode_changes_nothing_and_measures_every_weight(queue, put, trainer):
    weights = '+algorithm.gradmass.weight=["fade:entropy_form=relative","maxrl"]'
    made = trainer(*SHADOW, weights)
    plain = trainer("sync", "grpo")
    ours, metrics = step(made, put(REWARDS, SESSIONS))
    theirs, plain_metrics = step(plain, put(REWARDS, SESSIONS))
    for name in ("advantages", "returns"):
        assert torch.equal(read(queue, ours, name), read(queue, theirs, name))
    host = read(queue, theirs, "advantages")[:, 0]
    assert metrics["mass/positive"] == pytest.approx(host.clamp(min=0).mean().item())
    assert metrics["mass/negative"] == pytest.approx(-host.clamp(max=0).mean().item())
    assert {"shadow/fade/weight/alpha", "shadow/fade/weight/delta"} <= metrics.keys()
    for name in ("fade", "maxrl"):
        assert metrics[f"shadow/{name}/mass/positive"] > 0
    assert plain_metrics.items() <= metrics.items()
    made._update_actor(ours, metrics)


def test_what_cannot_be_measured_is_refused_at_the_first_batch_and_told_once_later(put, trainer):
    made = trainer(*FADE)
    with pytest.raises(UsageError, match="neither 0 nor 1"):
        step(made, put([0.5] * 8, SESSIONS))
    step(made, put(REWARDS, SESSIONS))
    with pytest.warns(UserWarning, match="nothing was measured of a batch: reward 0.5"):
        _, metrics = step(made, put([0.5] * 8, SESSIONS))
    assert metrics["shadow/unmeasured"] == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        step(made, put([0.5] * 8, SESSIONS))


def test_shadow_mode_says_so_when_verl_no_longer_calls_what_it_watches(put, trainer, monkeypatch):
    made = trainer(*FADE)
    base = type(made).__mro__[2]
    monkeypatch.setattr(base, "_compute_advantage", lambda self, batch, metrics: batch)
    with pytest.raises(UsageError, match="without compute_advantage_for_multi_trajectories"):
        step(made, put(REWARDS, SESSIONS))


def test_a_weight_with_an_error_of_its_own_changes_nothing(queue, put, trainer, tmp_path):
    (tmp_path / "mine.py").write_text(WEIGHT)
    made = trainer(*SHADOW, f'+algorithm.gradmass.weight=["{tmp_path}/mine.py:Broken","maxrl"]')
    told = r"shadow weight Broken is off .*: LookupError: not in my table \(.*mine\.py:7\)"
    with pytest.warns(UserWarning, match=told):
        ours, metrics = step(made, put(REWARDS, SESSIONS))
    theirs, _ = step(trainer("sync", "grpo"), put(REWARDS, SESSIONS))
    for name in ("advantages", "returns"):
        assert torch.equal(read(queue, ours, name), read(queue, theirs, name))
    assert metrics["shadow/Broken/off"] == 1
    assert metrics["shadow/maxrl/mass/positive"] > 0
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        _, metrics = step(made, put(REWARDS, SESSIONS))
    assert metrics["shadow/Broken/off"] == 1
    made._update_actor(ours, metrics)
    made._save_checkpoint()


def test_a_queue_that_fails_the_shadow_alone_leaves_the_run_alone(
    queue, put, trainer, monkeypatch, tmp_path
):
    def fail(*_, **__):
        raise TimeoutError("no answer from storage unit 1")

    made = trainer(*FADE)
    monkeypatch.setattr("gradmass.engines.verl_trainer.results_of", fail)
    with pytest.warns(UserWarning, match="nothing was measured of a batch: TimeoutError"):
        ours, metrics = step(made, put(REWARDS, SESSIONS))
    theirs, _ = step(trainer("sync", "grpo"), put(REWARDS, SESSIONS))
    assert torch.equal(read(queue, ours, "advantages"), read(queue, theirs, "advantages"))
    assert metrics["shadow/unmeasured"] == 1
    monkeypatch.setattr("gradmass.engines.verl_trainer.write_state", fail)
    with pytest.warns(UserWarning, match="has no state of the weights: TimeoutError"):
        made._save_checkpoint()
    assert made.actor_rollout_wg.saved
    acting = trainer("gradmass_sync", "gradmass_fade")
    with pytest.raises(TimeoutError):
        step(acting, put(REWARDS, SESSIONS))


def together(*calls):
    """Call in a thread each; what they returned."""
    found = [None] * len(calls)

    def keep(i, call):
        found[i] = call()

    threads = [threading.Thread(target=keep, args=item) for item in enumerate(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return found


def test_two_trainers_in_the_midst_of_a_step_see_each_its_own(put, trainer, monkeypatch):
    from verl.trainer.ppo.v1 import trainer_base

    own, both = trainer_base.compute_advantage_for_multi_trajectories, threading.Barrier(2)

    def at_once(*args, **kwargs):
        both.wait(60)
        data = own(*args, **kwargs)
        both.wait(60)
        return data

    monkeypatch.setattr(trainer_base, "compute_advantage_for_multi_trajectories", at_once)
    batches = [put(rewards, SESSIONS) for rewards in (REWARDS, [1, 0, 0, 0, 0, 0, 0, 0])]
    trainers = [trainer(*FADE) for _ in batches]
    calls = [lambda i=i: step(trainers[i], batches[i])[1] for i in range(2)]
    rates = [metrics["rollout/solve_rate"] for metrics in together(*calls)]
    assert rates == [4 / 8, 1 / 8]


def test_a_trainer_that_leaves_first_takes_nothing_from_the_other(monkeypatch):
    from verl.trainer.ppo.v1 import trainer_base

    from gradmass.engines.verl_trainer import WATCHED, watching

    monkeypatch.setattr(trainer_base, WATCHED, lambda data: data)
    is_in, is_out = threading.Event(), threading.Event()

    def first():
        with watching() as seen:
            is_in.wait(60)
            getattr(trainer_base, WATCHED)("first")
        is_out.set()
        return seen

    def second():
        with watching() as seen:
            is_in.set()
            is_out.wait(60)
            getattr(trainer_base, WATCHED)("second")
        return seen

    assert together(first, second) == [["first"], ["second"]]
    assert getattr(trainer_base, WATCHED)("unseen") == "unseen"
