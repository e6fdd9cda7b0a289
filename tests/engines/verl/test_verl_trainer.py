"""verl's trainer through Ray and TransferQueue: what reaches the loss, is measured, and is kept."""

import json
import warnings

import pytest
import torch

from gradmass.types import UsageError
from gradmass.weights import WEIGHTS

pytestmark = [pytest.mark.verl, pytest.mark.filterwarnings("ignore")]
ONE_EACH = [(prompt, session, 0) for prompt in "ab" for session in range(4)]
REWARDS = [1, 0, 0, 0, 1, 1, 0, 1]
FADE = ("gradmass_sync", "gradmass_fade", "+algorithm.gradmass.weight.entropy_form=relative")


def read(queue, batch, name):
    data = queue.kv_batch_get(keys=batch.keys, partition_id="train", select_fields=[name])
    return data[name].to_padded_tensor(0)


def step(trainer, batch, metrics=None, entropy=0.5):
    metrics = {"actor/entropy": entropy} if metrics is None else metrics
    return trainer._compute_advantage(batch, metrics), metrics


def test_fade_is_told_this_step_s_entropy_and_its_masses_are_logged(queue, put, trainer):
    made = trainer(*FADE, "+algorithm.gradmass.weight.ema=0.5")
    weight = WEIGHTS["fade"](entropy_form="relative", ema=0.5)
    state = weight.init()
    for i, entropy in enumerate([0.8, 0.6, 0.05]):
        made.global_steps = i + 1
        batch, metrics = step(made, put(REWARDS, ONE_EACH), entropy=entropy)
        kind = made._gradmass.states[0]["delta"]["entropy_kind"]
        expected_PG, state = weight.update(
            torch.tensor(REWARDS, dtype=torch.float64).reshape(2, 4),
            state,
            num_success=4,
            num_scored=8,
            entropy_nats=entropy,
            entropy_kind=kind,
        )
        found = read(queue, batch, "advantages")[:, 0].double()
        torch.testing.assert_close(found, expected_PG.reshape(-1), rtol=0, atol=1e-6)
        report = weight.report(state)
        assert metrics["weight/alpha"] == pytest.approx(report["alpha"])
        assert metrics["weight/delta"] == pytest.approx(report["delta"])
        assert metrics["entropy/mean_nats"] == entropy
        assert metrics["mass/positive"] == pytest.approx(expected_PG.clamp(min=0).mean().item())
        assert metrics["rollout/solve_rate"] == 0.5
    assert kind.startswith("verl: exact softmax entropy, temperature 1,")
    assert report["delta"] < 1


@pytest.mark.parametrize("is_scaled", [True, False])
def test_verl_s_own_trainer_and_grpo_are_reproduced(queue, put, trainer, is_scaled):
    sessions = [("a", 0, 0), ("b", 1, 0), ("a", 2, 0), ("b", 0, 0), ("b", 3, 0), ("a", 1, 0)]
    rewards = [1, 0, 0, 1, 0, 1]
    plain = trainer("sync", "grpo", f"algorithm.norm_adv_by_std_in_grpo={is_scaled}")
    ours = trainer("gradmass_sync", "gradmass_grpo_std" if is_scaled else "gradmass_grpo")
    theirs, _ = step(plain, put(rewards, sessions))
    found, _ = step(ours, put(rewards, sessions))
    expected = read(queue, theirs, "advantages")
    torch.testing.assert_close(read(queue, found, "advantages"), expected, rtol=0, atol=1e-6)
    assert expected.abs().sum() > 1


def test_a_session_of_several_outputs_counts_once_as_in_verl_s_own_grpo(queue, put, trainer):
    sessions = [("a", 0, 0), ("a", 0, 1), ("a", 0, 2), ("a", 1, 0), ("a", 2, 1), ("a", 2, 0)]
    rewards = [1, 1, 1, 0, 0, 0]
    ours, metrics = step(trainer("gradmass_sync", "gradmass_grpo"), put(rewards, sessions))
    theirs, _ = step(
        trainer("sync", "grpo", "algorithm.norm_adv_by_std_in_grpo=False"), put(rewards, sessions)
    )
    found = read(queue, ours, "advantages")
    torch.testing.assert_close(found, read(queue, theirs, "advantages"), rtol=0, atol=1e-6)
    third = 1 / 3
    expected = torch.tensor([2 * third, 2 * third, 2 * third, -third, -third, -third])
    torch.testing.assert_close(found[:, 0], expected, rtol=0, atol=1e-6)
    assert metrics["rollout/solve_rate"] == pytest.approx(third)


def test_evicted_groups_count_in_the_solve_rate(put, trainer):
    made = trainer(*FADE, "algorithm.filter_groups.enable=True")
    metrics = {"actor/entropy": 0.5, "_dapo_filtered_reward_counts": {0.0: 5, 1.0: 1}}
    step(made, put(REWARDS, ONE_EACH), metrics)
    assert metrics["rollout/solve_rate"] == (4 + 4) / (8 + 24)
    assert metrics["rollout/num_evicted"] == 24
    ema = made._gradmass.states[0]["alpha"]["solve_rate_ema"]
    plain = trainer(*FADE)
    step(plain, put(REWARDS, ONE_EACH))
    assert ema < plain._gradmass.states[0]["alpha"]["solve_rate_ema"] == 0.5


def test_success_comes_from_the_verdict_and_an_error_is_left_out(queue, put, trainer):
    infos = [
        {"acc": True, "verdict": "right"},
        {"acc": False, "verdict": "error"},
        {"acc": False, "verdict": "wrong"},
        {"acc": False, "verdict": "unparsed"},
    ]
    made = trainer("gradmass_sync", "gradmass_grpo", "+algorithm.gradmass.success=acc")
    batch, metrics = step(made, put([1.25, 0, 0.25, 0], ONE_EACH[:4], infos))
    found = read(queue, batch, "advantages")[:, 0]
    torch.testing.assert_close(found, torch.tensor([0.75, 0, -0.25, -0.5]), rtol=0, atol=1e-6)
    assert metrics["rollout/solve_rate"] == pytest.approx(1 / 3)
    assert metrics["rollout/num_unscorable"] == 1
    with pytest.raises(UsageError, match=r"no such key \(it has none\)"):
        step(made, put([1, 0, 0, 0], ONE_EACH[:4]))


def test_padding_that_verl_adds_to_fill_a_batch_is_not_a_rollout(queue, put, trainer):
    from verl.trainer.ppo.v1 import trainer_base

    made = trainer("gradmass_sync", "gradmass_reinforce")
    batch = put(REWARDS, ONE_EACH)
    fields = {name: torch.zeros(8, 3, dtype=torch.int64) for name in ("prompts", "responses")}
    fields["input_ids"] = torch.zeros(8, 6, dtype=torch.int64)
    from verl.utils.tensordict_utils import get_tensordict

    queue.kv_batch_put(keys=batch.keys, fields=get_tensordict(fields), partition_id="train")
    filled = trainer_base.upsample_batch_to_divisible_size(batch, 5, 0)
    assert len(filled.keys) == 10
    done, metrics = step(made, filled)
    assert read(queue, done, "advantages")[8:].abs().sum() == 0
    assert metrics["rollout/solve_rate"] == 0.5


def test_the_entropy_is_the_token_mean_whatever_the_loss_is_averaged_over(put, trainer):
    mode = "actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-sum"
    made = trainer(*FADE, mode)
    entropies = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8]
    lengths = [2 + row % 3 for row in range(8)]
    mean = sum(e * n for e, n in zip(entropies, lengths, strict=True)) / sum(lengths)
    _, metrics = step(made, put(REWARDS, ONE_EACH, entropies=entropies), {"actor/entropy": 99.0})
    assert metrics["entropy/mean_nats"] == pytest.approx(mean)
    bypass = "algorithm.rollout_correction.bypass_mode=True"
    made = trainer(*FADE, bypass)
    _, metrics = step(made, put(REWARDS, ONE_EACH, entropies=entropies), {})
    assert metrics["entropy/mean_nats"] == pytest.approx(mean)
    assert "sampled tokens" in made._gradmass.states[0]["delta"]["entropy_kind"]
    made = trainer(*FADE, bypass, "actor_rollout_ref.rollout.top_p=0.9")
    with pytest.raises(UsageError, match="bypass_mode measures no entropy"):
        step(made, put(REWARDS, ONE_EACH), {})


def test_a_batch_that_was_not_changed_is_trained_on(put, trainer):
    made = trainer(*FADE)
    batch, metrics = step(made, put(REWARDS, ONE_EACH))
    batch.reorder(list(reversed(range(8))))
    made._update_actor(batch, metrics)
    assert made.actor_rollout_wg.updates == 1


def test_whitened_advantages_never_reach_the_loss(queue, put, trainer):
    from verl.utils.tensordict_utils import get_tensordict
    from verl.workers.utils.padding import response_to_nested

    made = trainer(*FADE)
    batch, metrics = step(made, put(REWARDS, ONE_EACH))
    data = queue.kv_batch_get(
        keys=batch.keys, partition_id="train", select_fields=["advantages", "response_mask"]
    )
    advantages = data["advantages"].to_padded_tensor(0)
    whitened = (advantages - advantages.mean()) / advantages.std()
    fields = {"advantages": response_to_nested(whitened, data["response_mask"])}
    queue.kv_batch_put(keys=batch.keys, fields=get_tensordict(fields), partition_id="train")
    with pytest.raises(UsageError, match="something normalised or changed them after the weight"):
        made._update_actor(batch, metrics)
    assert made.actor_rollout_wg.updates == 0
    with pytest.raises(UsageError, match="that no weight has seen"):
        made._update_actor(put(REWARDS, ONE_EACH), metrics)


def test_with_the_estimator_gone_the_run_stops(put, trainer):
    made = trainer(*FADE)
    made.config.algorithm.adv_estimator = "grpo"
    with pytest.raises(UsageError, match="without the estimator of the weight"):
        step(made, put(REWARDS, ONE_EACH))


def test_one_other_number_on_one_token_never_reaches_the_loss(queue, put, trainer):
    from verl.utils.tensordict_utils import get_tensordict
    from verl.workers.utils.padding import response_to_nested

    made = trainer(*FADE)
    batch, metrics = step(made, put(REWARDS, ONE_EACH))
    data = queue.kv_batch_get(
        keys=batch.keys, partition_id="train", select_fields=["advantages", "response_mask"]
    )
    for row, token in ((0, 0), (7, 1), (4, 1)):
        advantages = data["advantages"].to_padded_tensor(0)
        advantages[row, token] = 0.0
        fields = {"advantages": response_to_nested(advantages, data["response_mask"])}
        queue.kv_batch_put(keys=batch.keys, fields=get_tensordict(fields), partition_id="train")
        with pytest.raises(UsageError, match="something normalised or changed them"):
            made._update_actor(batch, metrics)
    assert made.actor_rollout_wg.updates == 0


@pytest.mark.filterwarnings("error:.*initial state:UserWarning")
def test_a_resumed_run_goes_on_as_if_it_had_not_stopped(put, trainer, tmp_path):
    def go(made, first, last):
        for i in range(first, last + 1):
            made.global_steps = i
            step(made, put(REWARDS, ONE_EACH), entropy=1 / i)

    whole = trainer(*FADE)
    go(whole, 1, 6)
    stopped = trainer(*FADE)
    go(stopped, 1, 3)
    stopped._save_checkpoint()
    folder = tmp_path / "checkpoints" / "global_step_3"
    assert json.loads((folder / "gradmass_state.json").read_text())["weights"]
    resumed = trainer(*FADE)
    resumed._load_checkpoint()
    assert resumed.global_steps == 3
    assert resumed._gradmass.states == stopped._gradmass.states
    go(resumed, 4, 6)
    assert resumed._gradmass.states == whole._gradmass.states
    other = trainer("gradmass_sync", "gradmass_grpo")
    with pytest.raises(UsageError, match="was saved by fade"):
        other._load_checkpoint()
    (folder / "gradmass_state.json").write_text("{")
    with pytest.raises(UsageError, match="is damaged"):
        trainer(*FADE)._load_checkpoint()
    (folder / "gradmass_state.json").unlink()
    with pytest.warns(UserWarning, match="the weight starts from its initial state"):
        trainer(*FADE)._load_checkpoint()


def test_the_callback_keeps_the_state_of_an_estimator_alone(put, trainer, tmp_path):
    from verl.trainer.ppo.core_algos import get_adv_estimator_fn

    alone = (
        "sync",
        "gradmass_fade",
        "+algorithm.gradmass.weight.delta_schedule=constant",
        "trainer.checkpoint_callback_class=gradmass.engines.verl_estimators.SaveState",
    )
    estimator = get_adv_estimator_fn("gradmass_fade")
    estimator._alone = None
    made = trainer(*alone)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        step(made, put([1, 0, 0, 0, 0, 0, 0, 0], ONE_EACH))
    states = estimator._alone[1].states
    assert states[0]["alpha"]["solve_rate_ema"] < 0.5
    made._save_checkpoint()
    estimator._alone = None
    trainer(*alone)
    assert estimator._alone[1].states == states
    estimator._alone, estimator.is_kept = None, False


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["algorithm.use_kl_in_reward=True"], "algorithm.use_kl_in_reward = True: it takes the KL"),
        (["actor_rollout_ref.rollout.n=1"], "rollout.n = 1: weight fade needs groups of at least"),
        (
            ["algorithm.filter_groups.enable=True", "algorithm.filter_groups.metric=seq_reward"],
            "metric = 'seq_reward' does not say which of the evicted groups succeeded",
        ),
        (["+algorithm.gradmass.succes=acc"], "unknown key 'algorithm.gradmass.succes'; did you"),
        (["algorithm.adv_estimator=grpo"], "mode 'weight' needs an estimator gradmass_NAME"),
    ],
)
def test_a_run_that_does_not_fit_does_not_start(trainer, overrides, message):
    with pytest.raises(UsageError, match=message):
        trainer("gradmass_sync", "gradmass_fade", *overrides)


def test_what_verl_does_to_a_weight_is_said_at_the_start(trainer):
    with pytest.warns(UserWarning, match="what verl does to a weight: .*loss_agg_mode") as caught:
        trainer("gradmass_sync", "gradmass_fade")
    assert not [w for w in caught if "never tried" in str(w.message)]


def test_verl_s_own_parts_see_the_name_they_know(trainer):
    made = trainer("gradmass_sync", "gradmass_fade")
    assert made.trainer_mode == made.config.trainer.v1.trainer_mode == "sync"
    assert type(made.replay_buffer).__name__ == "ReplayBuffer"
    made = trainer("gradmass_colocate_async", "gradmass_fade")
    assert type(made.replay_buffer).__name__ == "ReplayBufferAsync"
