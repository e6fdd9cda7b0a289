"""What the hooks do at the edges: evaluation, rows no one scored, a loss given other numbers."""

import json

import pytest
import torch

from gradmass.types import UsageError
from gradmass.weights import WEIGHTS

pytestmark = [
    pytest.mark.trl,
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
MIXED = [1, 0, 0, 0, 1, 1, 0, 1]


def fade():
    return WEIGHTS["fade"](entropy_form="relative")


def values(trainer, name, mode="train"):
    return trainer._metrics[mode][name]


# Groups, verdicts, evaluation.


def test_rows_that_no_one_scored_are_out_of_the_baseline(make, score):
    trainer = make([1, 0, None, 0, None, None, None, None], 4, "grpo")
    assert score(trainer, 8, 4)["advantages"].tolist() == pytest.approx(
        [2 / 3, -1 / 3, 0, -1 / 3, 0, 0, 0, 0]
    )
    assert values(trainer, "rollout/num_unscorable") == [5]
    assert values(trainer, "rollout/solve_rate") == pytest.approx([1 / 3])
    shares = [values(trainer, f"groups/{name}")[0] for name in ("all_right", "all_wrong", "mixed")]
    assert shares == [0, 0, 1]
    assert values(trainer, "mass/positive") == pytest.approx([2 / 3 / 8])


def test_a_batch_that_no_one_scored_stops_the_run(make, score):
    with pytest.raises(UsageError, match="none of the 4 rollouts is scored"):
        score(make([None] * 4, 4, "grpo"), 4, 4)


def test_evaluation_weighs_by_the_state_and_leaves_it_alone(make, score):
    trainer = make(MIXED, 4, fade())
    score(trainer, 8, 4)
    before = json.dumps(trainer._gradmass.states)
    output = score(trainer, 8, 4, is_training=False)
    assert json.dumps(trainer._gradmass.states) == before
    assert output["advantages"].abs().sum() > 0
    assert len(values(trainer, "mass/positive", "eval")) == 1
    assert len(values(trainer, "mass/positive")) == 1


def test_trl_evaluates_with_a_weight(make):
    trainer = make(MIXED, 4, fade(), config={"per_device_eval_batch_size": 8})
    found = trainer.evaluate()
    assert found["eval_mass/positive"] > 0
    assert trainer._gradmass.states == [fade().init()]


def test_success_is_the_verdict_and_not_the_shaped_reward(make, score, scripted):
    funcs = [scripted([1.1, 0.1, 0, None], "graded"), scripted([0.5, 0.5, 0, 0.5], "style")]
    config = {"per_device_train_batch_size": 4, "reward_weights": [0.5, 0.5]}
    trainer = make(funcs, 4, fade(), config=config, success="graded")
    output = score(trainer, 4, 4)
    assert values(trainer, "rollout/solve_rate") == pytest.approx([1 / 3])
    assert output["advantages"][3] == 0  # not judged, whatever its style
    assert output["advantages"][0] > 0 > output["advantages"][1]


def test_a_shaped_reward_without_a_verdict_is_refused(make, score):
    trainer = make([1, 0, 0.5, 0], 4, "grpo")
    with pytest.raises(UsageError, match=r"reward 0\.5 is neither 0 nor 1.*success='scripted'"):
        score(trainer, 4, 4)


@pytest.mark.parametrize("least", [0.1, 0.3, 0.7, 0.9, 1.1])
def test_the_least_reward_of_a_success_is_one_in_trl_s_precision_too(make, score, least):
    trainer = make([least, 0, 0, 0], 4, "grpo", success="scripted", success_at=least)
    score(trainer, 4, 4)
    assert values(trainer, "rollout/solve_rate") == [0.25]


def test_a_verdict_may_begin_below_one(make, score):
    trainer = make([0.9, 0.2, 0, 0.6], 4, "grpo", success="scripted", success_at=0.5)
    score(trainer, 4, 4)
    assert values(trainer, "rollout/solve_rate") == [0.5]


def test_a_reward_function_of_another_length_is_named(make, score):
    trainer = make([1, 0, 0, 0], 4, "grpo")
    trainer.reward_funcs[0].rewards = [1, 0]
    with pytest.raises(ValueError, match="'scripted' returned 2 rewards, but 4 were expected"):
        score(trainer, 4, 4)


def test_rows_of_one_group_with_different_prompts_are_refused(make):
    trainer = make(MIXED, 4, "grpo")
    trainer.model.train()
    inputs = [dict(trainer.train_dataset[i // 3]) for i in range(8)]
    with pytest.raises(UsageError, match=r"rows 0 and 3 .* different prompts.*4 times"):
        trainer._generate_and_score_completions(inputs)


# The watchdog.


def with_base(change):
    from trl import GRPOTrainer

    return type("Theirs", (GRPOTrainer,), change)


def test_advantages_changed_after_the_weight_stop_the_run_before_an_update(make):
    trainer = make(MIXED, 4, "grpo")
    cls = type(trainer)

    class Whitened(cls):
        def _generate_and_score_completions(self, inputs):
            output = super()._generate_and_score_completions(inputs)
            advantages = output["advantages"]
            output["advantages"] = (advantages - advantages.mean()) / advantages.std()
            return output

    trainer.__class__ = Whitened
    before = [p.clone() for p in trainer.model.parameters()]
    with pytest.raises(UsageError, match=r"not the weights that were written.*no update was made"):
        trainer.train()
    for old, new in zip(before, trainer.model.parameters(), strict=True):
        assert torch.equal(old, new)


def test_advantages_changed_within_the_loss_stop_the_run(make):
    trainer = make(MIXED, 4, "grpo")

    class Halved(type(trainer)):
        def _compute_loss(self, model, inputs):
            inputs = {**inputs, "advantages": inputs["advantages"] / 2}
            return super()._compute_loss(model, inputs)

    trainer.__class__ = Halved
    with pytest.raises(UsageError, match="not the weights that were written"):
        trainer.train()


def test_advantages_for_each_token_are_refused(make):
    trainer = make(MIXED, 4, "grpo")

    class Broadcast(type(trainer)):
        def _generate_and_score_completions(self, inputs):
            output = super()._generate_and_score_completions(inputs)
            output["advantages"] = output["advantages"][:, None] * output["completion_mask"]
            return output

    trainer.__class__ = Broadcast
    with pytest.raises(UsageError, match=r"advantages of shape \(8, \d\) reached the loss"):
        trainer.train()


def test_without_the_hook_the_run_stops(make, monkeypatch):
    from gradmass.engines.trl_mixin import WeightMixin

    monkeypatch.delattr(WeightMixin, "_generate_and_score_completions")
    trainer = make(MIXED, 4, "grpo")
    with pytest.raises(UsageError, match="a batch that no weight has seen"):
        trainer.train()


def test_a_trainer_that_scores_without_calculate_rewards_is_refused(make, score):
    def own_way(self, inputs):
        return {"advantages": torch.zeros(len(inputs))}

    base = with_base({"_generate_and_score_completions": own_way})
    trainer = make(MIXED, 4, "grpo", base=base)
    with pytest.raises(UsageError, match="without _calculate_rewards"):
        score(trainer, 8, 4)


# Entropy.


def test_the_entropy_is_of_all_tokens_of_the_window(make):
    config = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4, "max_steps": 1}
    trainer = make(MIXED, 4, fade(), config={**config, "max_completion_length": 12})
    seen = []
    base = type(trainer).__mro__[2]
    original = base._get_per_token_logps_and_entropies

    def look(self, *args, **kwargs):
        found = original(self, *args, **kwargs)
        seen.append(found[1].double())
        return found

    masks = []

    def keep(self, model, inputs):
        masks.append(inputs["completion_mask"])
        return base_loss(self, model, inputs)

    base_loss = base._compute_loss
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(base, "_get_per_token_logps_and_entropies", look)
        patch.setattr(base, "_compute_loss", keep)
        trainer.train()
    assert len(seen) == 4
    total, count = 0.0, 0
    for entropies, mask in zip(seen, masks, strict=True):
        for row, kept in zip(entropies.tolist(), mask.tolist(), strict=True):
            total += sum(h for h, k in zip(row, kept, strict=True) if k)
            count += sum(kept)
    assert trainer._gradmass_entropy["nats"] == pytest.approx(total / count, rel=1e-6)
    assert trainer._gradmass_entropy["step"] == 0
    assert "exact softmax entropy, temperature 1" in trainer._gradmass_entropy["kind"]


def observe(trainer, **inputs):
    trainer._gradmass_observe(
        {"advantages": torch.tensor([0.5]), **{k: torch.tensor(v) for k, v in inputs.items()}}
    )


def test_a_token_that_either_mask_leaves_out_counts_nowhere(make):
    trainer = make([1, 0, 0, 0], 4, "grpo")
    trainer._gradmass_entropies = torch.ones(1, 4)
    observe(trainer, completion_mask=[[0, 0, 0, 0]], tool_mask=[[1, 0, 1, 0]])
    assert trainer._gradmass_entropy is None
    trainer._gradmass_entropies = torch.tensor([[9.0, 1.0, 9.0, 2.0]])
    observe(trainer, completion_mask=[[1, 1, 0, 1]], tool_mask=[[0, 1, 1, 1]])
    assert trainer._gradmass_entropy["nats"] == 1.5


def test_a_fused_loss_gives_the_entropy_of_its_sampled_tokens(make):
    trainer = make([1, 0, 0, 0], 4, fade())
    observe(trainer, completion_mask=[[1, 1, 0]], old_per_token_logps=[[-1.0, -0.5, -7.0]])
    assert trainer._gradmass_entropy["nats"] == 0.75
    assert "minus the log-probability of the sampled tokens" in trainer._gradmass_entropy["kind"]
    trainer.top_p = 0.9
    with pytest.raises(UsageError, match=r"not the policy's with top_p = 0\.9"):
        observe(trainer, completion_mask=[[1, 1, 0]], old_per_token_logps=[[-1.0, -0.5, -7.0]])


def test_a_loss_without_any_entropy_is_refused_for_a_weight_that_follows_it(make):
    with pytest.raises(UsageError, match=r"measures no entropy.*delta_schedule='constant'"):
        observe(make([1, 0, 0, 0], 4, fade()), completion_mask=[[1, 1, 0]])
    observe(make([1, 0, 0, 0], 4, "grpo"), completion_mask=[[1, 1, 0]])


def test_clipping_is_logged_as_a_share_of_the_tokens_of_each_sign(make):
    config = {"num_iterations": 3, "max_steps": 3, "learning_rate": 0.05, "epsilon": 0.01}
    trainer = make(MIXED, 4, "grpo", config=config)
    trainer.train()
    row = trainer.state.log_history[2]
    assert row["clip_ratio/low_mean"] > 0
    assert row["clip_ratio/high_mean"] > 0
    # Shares of one sign's tokens, weighted by how many there are, make TRL's share of all.
    assert row["clip/positive"] > row["clip_ratio/high_mean"]
    assert row["clip/negative"] > row["clip_ratio/low_mean"]
    assert row["clip/positive"] <= 1
    assert row["clip/negative"] <= 1
    share = row["clip_ratio/high_mean"] / row["clip/positive"]
    others = row["clip_ratio/low_mean"] / row["clip/negative"]
    assert share + others == pytest.approx(1)


# Start and restart.


@pytest.mark.parametrize(
    ("weight", "arguments", "message"),
    [
        ("grpo", {"mode": "watch"}, "mode must be 'weight' or 'shadow', got 'watch'"),
        ("grpo", {"success": "accuracy"}, "success = 'accuracy' is no reward function: scripted"),
        ("remax", {}, "needs the signal 'greedy_rewards_P'"),
        (WEIGHTS["pkpo_s"](k=5), {}, "num_generations = 4: .* needs groups of at least 5"),
        (
            "grpo",
            {"config": {"multi_objective_aggregation": "normalize_then_sum"}},
            "multi_objective_aggregation = 'normalize_then_sum': .*sum_then_normalize",
        ),
    ],
)
def test_what_does_not_fit_is_refused_at_the_start(make, weight, arguments, message):
    with pytest.raises(UsageError, match=message):
        make([1, 0, 0, 0], 4, weight, **arguments)


def test_what_trl_does_to_a_weight_is_said_at_the_start(make):
    with pytest.warns(UserWarning, match="loss_type = 'dapo'.*long answers weigh more.*dr_grpo"):
        make([1, 0, 0, 0], 4, "grpo", config={"loss_type": "dapo"})


def test_rloo_trainer_is_refused():
    from trl import RLOOTrainer

    from gradmass.engines.trl import make_trainer

    with pytest.raises(UsageError, match="leave-one-out baseline of its own"):
        make_trainer(RLOOTrainer)


def test_a_base_without_a_hooked_method_is_refused():
    from gradmass.engines.trl import make_trainer

    with pytest.raises(UsageError, match=r"Bare of TRL .* has no _calculate_rewards"):
        make_trainer(type("Bare", (), {}))


def test_the_hooks_go_on_any_subclass(make, score):
    base = with_base({"extra": 1})
    trainer = make(MIXED, 4, "grpo", base=base)
    assert type(trainer).__name__ == "WeightedTheirs"
    assert trainer.extra == 1
    assert score(trainer, 8, 4)["advantages"].tolist()[0] == 0.75


def checkpoint(trainer, tmp_path):
    trainer.args.output_dir = str(tmp_path)
    trainer.train()
    return tmp_path / "checkpoint-2"


SAVING = {"save_strategy": "steps", "save_steps": 2, "max_steps": 2}


def test_a_checkpoint_without_a_state_says_what_the_weight_starts_from(make, tmp_path):
    folder = checkpoint(make(MIXED, 4, fade(), config=SAVING), tmp_path)
    (folder / "gradmass_state.json").unlink()
    trainer = make(MIXED, 4, fade(), config={**SAVING, "max_steps": 3})
    with pytest.warns(UserWarning, match=r'no gradmass_state.json.*"solve_rate_ema": 0.5'):
        trainer.train(resume_from_checkpoint=str(folder))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"schema_version": 1, "mo', "is damaged"),
        ("[]", "is damaged: it holds list"),
        ('{"schema_version": 9}', "has schema_version 9, this gradmass reads 1"),
        ('{"schema_version": 1, "mode": "weight"}', "is damaged: KeyError"),
    ],
)
def test_a_damaged_state_is_not_ignored(make, tmp_path, content, message):
    folder = checkpoint(make(MIXED, 4, fade(), config=SAVING), tmp_path)
    (folder / "gradmass_state.json").write_text(content)
    trainer = make(MIXED, 4, fade(), config={**SAVING, "max_steps": 3})
    with pytest.raises(UsageError, match=message):
        trainer.train(resume_from_checkpoint=str(folder))


def test_another_weight_does_not_go_on_from_a_state_and_another_field_is_said(make, tmp_path):
    folder = checkpoint(make(MIXED, 4, fade(), config=SAVING), tmp_path)
    config = {**SAVING, "max_steps": 3}
    with pytest.raises(UsageError, match=r"was saved by fade.* this run has grpo in mode"):
        make(MIXED, 4, "grpo", config=config).train(resume_from_checkpoint=str(folder))
    other = WEIGHTS["fade"](alpha_max=2.0)
    with pytest.warns(UserWarning, match=r"was saved by fade\(entropy_form=relative\)"):
        make(MIXED, 4, other, config=config).train(resume_from_checkpoint=str(folder))


def test_truncated_answers_that_are_masked_have_no_mass(make, score):
    config = {"mask_truncated_completions": True, "max_completion_length": 1}
    with pytest.warns(UserWarning, match="mask_truncated_completions = True"):
        trainer = make([1, 0, 0, 0], 4, "grpo", config=config)
    output = score(trainer, 4, 4)
    assert output["completion_mask"].sum() == 0
    assert output["advantages"].tolist() == [0.75, -0.25, -0.25, -0.25]
    assert values(trainer, "mass/positive") == values(trainer, "mass/negative") == [0]
