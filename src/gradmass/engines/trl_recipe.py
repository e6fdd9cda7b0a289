"""A recipe on TRL: ``gradmass train RECIPE --engine trl``, alone or under ``accelerate launch``.

The task, its verifier, the weight and the run directory are those of the local engine; sampling,
loss, optimiser, sharding and the trainer's own checkpoints are TRL's. What TRL cannot do of a
recipe is refused or said before the first step.
"""

import math
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import PrinterCallback, TrainerCallback
from transformers.utils import logging
from trl import GRPOConfig

from gradmass.config import EntropyConfig, Recipe
from gradmass.engines.trl import WeightedGRPOTrainer
from gradmass.engines.trl_refused import LOSS_TYPES, refuse_unsupported
from gradmass.engines.trl_task import TaskReward, task_rows
from gradmass.record import Run, RunWriter
from gradmass.record.run import Status
from gradmass.rewards import Outcome, Verdict
from gradmass.training.draw import check_errors
from gradmass.training.evaluate import Evaluator
from gradmass.training.interrupt import interruptible
from gradmass.training.model import longest_prompt, save_model
from gradmass.training.policy import dressed_task, load_policy
from gradmass.training.train import check_problems
from gradmass.types import UsageError

Row = dict[str, Any]
FOLDER = "trl"
"""Where TRL's own checkpoints lie within the run directory."""
KEYS = {
    "loss": "loss/value",
    "grad_norm": "optim/grad_norm",
    "kl": "loss/kl_nats",
    "completions/mean_length": "rollout/length_mean",
    "completions/clipped_ratio": "rollout/truncated",
    "step_time": "time/step_s",
}
"""TRL's metrics that have a name here; the others keep theirs, under ``trl/``."""
OWN = ("mass/", "weight/", "groups/", "clip/", "rollout/", "entropy/")
"""Families of metrics that the weight's hooks have put in TRL's log."""


def train(
    recipe: Recipe, writer: RunWriter | None, folder: Path, on_row: Callable[[Row], None]
) -> bool:
    """Run a recipe to its end, or until Ctrl-C.

    Args:
        recipe: The whole run.
        writer: The run directory, new or resumed; None in every process but the first.
        folder: The run directory.
        on_row: Called with every row of metrics as it is recorded.

    Returns:
        Whether the run is finished; False if it was interrupted, and can be resumed.

    Raises:
        UsageError: The recipe asks for what TRL cannot do, does not fit the model or the task, or
            the policy diverged.
    """
    refuse_unsupported(recipe)
    config = recipe.train
    if config.threads:
        torch.set_num_threads(config.threads)
    policy, tokenizer, _ = load_policy(recipe.model, recipe.lora, recipe.seed)
    if not recipe.lora.rank:
        # TRL computes in bfloat16 by itself, and updates what it is given.
        policy = policy.float()
    task = dressed_task(recipe.prompt, recipe.task, tokenizer, recipe.model.path)
    recipe = replace(recipe, task=task)
    problems = task.problems(task.splits[0], config.num_problems)
    check_problems(recipe, policy, tokenizer, problems)
    longest = longest_prompt(tokenizer, [problem.prompt for problem in problems])
    resumed_from = None
    if writer is not None and writer.resumed_from is not None:
        resumed_from = writer.resumed_from.step
    elif writer is None:
        resumed_from = last_step(folder)
    reward = TaskReward(task, problems, tokenizer)
    with without_chatter():
        trainer = RecordedTrainer(
            weight=recipe.weight,
            factor=recipe.weight_factor,
            model=policy,
            processing_class=tokenizer,
            reward_funcs=reward,
            args=trl_config(recipe, folder / FOLDER, longest + config.max_new_tokens),
            train_dataset=Dataset.from_list(task_rows(problems)),
        )
    recorder = Recorder(recipe, trainer, writer, reward, on_row)
    trainer.recorder = recorder
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(recorder)
    start = str(folder / FOLDER / f"checkpoint-{resumed_from}") if resumed_from else None
    with interruptible() as is_interrupted, without_chatter():
        recorder.is_interrupted = is_interrupted
        trainer.train(resume_from_checkpoint=start)
    return int(trainer.state.global_step) >= config.steps


@contextmanager
def without_chatter() -> Iterator[None]:
    """Keep what transformers tells its developers, and its bars, off the terminal."""
    had_bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")
            yield
    finally:
        if had_bars:
            logging.enable_progress_bar()


def last_step(folder: Path) -> int:
    """The step of the record's last checkpoint, for the processes that do not write it; 0: none."""
    state = Run(folder).state if (folder / "state.json").exists() else None
    return 0 if state is None or state["weight"] is None else int(state["step"])


def trl_config(recipe: Recipe, folder: Path, tokens_a_rollout: int) -> GRPOConfig:
    """The recipe's sections as TRL's arguments.

    Args:
        recipe: The whole run.
        folder: Where TRL saves its checkpoints.
        tokens_a_rollout: Of the longest prompt and answer; as many rollouts are in one pass as
            ``train.tokens_at_once`` lets in.
    """
    config, loss, optim = recipe.train, recipe.loss, recipe.optim
    num_processes = int(os.environ.get("WORLD_SIZE", "1"))
    num_own = config.prompts_per_step * config.group_size // num_processes
    most = max(1, config.tokens_at_once // tokens_a_rollout)
    # TRL takes equal parts.
    num_passes = next(n for n in range(1, num_own + 1) if num_own % n == 0 and num_own // n <= most)
    is_on_gpu = torch.cuda.is_available()
    return GRPOConfig(
        output_dir=str(folder),
        seed=recipe.seed,
        max_steps=config.steps,
        per_device_train_batch_size=num_own // num_passes,
        gradient_accumulation_steps=num_passes,
        num_iterations=config.updates_per_batch,
        num_generations=config.group_size,
        max_completion_length=config.max_new_tokens,
        shuffle_dataset=False,
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        loss_type=LOSS_TYPES[loss.aggregation],
        mask_truncated_completions=loss.truncated == "mask",
        epsilon=loss.clip_low,
        epsilon_high=loss.clip_high,
        beta=loss.kl_coef,
        learning_rate=optim.lr,
        lr_scheduler_type="constant",
        optim="adamw_torch_fused" if optim.type == "adamw" else "sgd",
        adam_beta1=optim.betas[0],
        adam_beta2=optim.betas[1],
        weight_decay=optim.weight_decay,
        max_grad_norm=optim.max_grad_norm,
        gradient_checkpointing=False,
        bf16=recipe.model.dtype == "bfloat16",
        use_cpu=not is_on_gpu,
        **_bonus(recipe.entropy),
        save_steps=config.checkpoint_every,
        # The newest may be one that the record does not know yet when the run dies.
        save_total_limit=2,
        logging_steps=1,
        report_to=[],
        disable_tqdm=True,
    )


def _bonus(entropy: EntropyConfig) -> dict[str, Any]:
    """TRL's entropy bonus; nothing where it is off, since older ones have none."""
    fixed = {"entropy_coef": entropy.coef}
    if not entropy.is_adaptive:
        return fixed if entropy.coef else {}
    return fixed | {
        "use_adaptive_entropy": True,
        "entropy_target": entropy.target,
        "entropy_coef_delta": entropy.step,
        "entropy_coef_min": entropy.min,
        "entropy_coef_max": entropy.max,
    }


class RecordedTrainer(WeightedGRPOTrainer):  # type: ignore[misc]
    """TRL's trainer, whose rollouts a recorder is shown."""

    recorder: "Recorder"

    def _generate_and_score_completions(self, inputs: list[Row]) -> Row:
        output: Row = super()._generate_and_score_completions(inputs)
        self.recorder.show_rollouts(inputs, output)
        return output


class Recorder(TrainerCallback):  # type: ignore[misc]
    """Keeps the run directory: rows, rollouts, evaluations and checkpoints.

    Args:
        recipe: The whole run.
        trainer: Whose run it is.
        writer: Where it is recorded; None in every process but the first.
        reward: What judged the rollouts.
        on_row: Called with every row of metrics.
    """

    def __init__(
        self,
        recipe: Recipe,
        trainer: Any,
        writer: RunWriter | None,
        reward: TaskReward,
        on_row: Callable[[Row], None],
    ) -> None:
        self._recipe, self._trainer, self._writer = recipe, trainer, writer
        self._reward, self._on_row = reward, on_row
        self.is_interrupted: Callable[[], bool] = lambda: False
        self._evaluator: Evaluator | None = None
        if writer is not None and not is_sharded(trainer):
            self._evaluator = Evaluator(recipe, trainer.model)

    # What TRL's trainer calls.

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The start of a new run: evaluate it and save it."""
        if state.global_step == 0 and self._writer is not None:
            self._record({"step": 0, "rollouts": 0} | self._evaluate(0))

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Stop after the first Ctrl-C, with a checkpoint."""
        if self.is_interrupted():
            control.should_training_stop = control.should_save = True

    def on_log(
        self, args: Any, state: Any, control: Any, logs: Row | None = None, **kwargs: Any
    ) -> None:
        """Record the row of an update."""
        if self._writer is None or logs is None or "loss" not in logs:
            return
        step, config = state.global_step, self._recipe.train
        num_batches = -(-step // config.updates_per_batch)
        row = {
            "step": step,
            "rollouts": num_batches * config.prompts_per_step * config.group_size,
            "policy/lag": (step - 1) % config.updates_per_batch,
        } | self._renamed(logs)
        if step == config.steps or (
            self._recipe.eval.every and step % self._recipe.eval.every == 0
        ):
            row |= self._evaluate(step)
        self._record(row)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Save model and weight in the run directory too, once TRL has a checkpoint."""
        if is_sharded(self._trainer) or self._writer is None:
            return
        is_finished = state.global_step >= self._recipe.train.steps
        status: Status = "interrupted" if self.is_interrupted() else "running"
        model = self._trainer.accelerator.unwrap_model(self._trainer.model)
        self._writer.checkpoint(
            state.global_step,
            self._trainer._gradmass.states[0],
            "finished" if is_finished else status,
            lambda folder: save_model(model, self._trainer.processing_class, folder),
        )

    # What they record.

    def show_rollouts(self, inputs: list[Row], output: Row) -> None:
        """Record what all processes have drawn."""
        from accelerate.utils import gather_object

        step = self._trainer.state.global_step + 1
        size = self._recipe.train.group_size
        first = (step - 1) // self._recipe.train.updates_per_batch
        first *= self._recipe.train.prompts_per_step
        weights_B = output["advantages"].tolist()
        rows = gather_object(
            [
                {
                    "step": step,
                    "policy_step": step - 1,
                    "problem_id": problem["problem_id"],
                    "group": 0,
                    "prompt": problem["prompt"],
                    "completion": judged.text,
                    "verdict": judged.verdict.outcome,
                    "detail": judged.verdict.detail,
                    "weight": weight,
                    "num_tokens": judged.num_tokens,
                }
                for problem, judged, weight in zip(
                    inputs, self._reward.judged, weights_B, strict=True
                )
            ]
        )
        for i, row in enumerate(rows):
            row["group"] = first + i // size
        verdicts = [Verdict(Outcome(row["verdict"]), row["detail"]) for row in rows]
        check_errors(verdicts, step - 1, self._recipe.train.max_error_rate)
        if self._writer is not None:
            self._writer.log_rollouts(rows)

    def _record(self, row: Row) -> None:
        assert self._writer is not None
        self._writer.log(row)
        self._on_row(row)

    def _evaluate(self, step: int) -> Row:
        if self._evaluator is None or self._writer is None:
            return {}
        model = self._trainer.accelerator.unwrap_model(self._trainer.model)
        was_training = model.training
        model.eval()
        try:
            return self._evaluator.measure(
                model, self._trainer.processing_class, step, self._writer
            )
        finally:
            model.train(was_training)

    def _renamed(self, logs: Row) -> Row:
        """TRL's log under the names that are used here."""
        for key in ("loss", "grad_norm"):
            if not math.isfinite(float(logs.get(key, 0.0))):
                raise UsageError(
                    f"the policy diverged: {key} {logs[key]} (try a smaller optim.lr); the last "
                    "checkpoint is intact"
                )
        row: Row = {}
        for key, value in logs.items():
            if not isinstance(value, int | float) or not math.isfinite(value):
                continue
            row[KEYS.get(key) or (key if key.startswith(OWN) else f"trl/{key}")] = value
        # The log has the entropy that the weight was given, of the update before.
        entropy = self._trainer._gradmass_entropy
        if entropy is not None:
            row["entropy/mean_nats"] = entropy["nats"]
        return row


def is_sharded(trainer: Any) -> bool:
    """Whether no process holds the whole model (FSDP, DeepSpeed ZeRO 3)."""
    return bool(trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled)
