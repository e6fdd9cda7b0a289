"""Where batches come from: sample G rollouts of each problem, have them judged, in order.

With a lag a batch does not depend on the updates just before it. So it is sampled and judged in the
background, by a thread each, while the policy is updated. The lag is also what bounds the queue: a
batch may begin once a policy exists that is recent enough for it, and there are no more batches
ahead than that.

What is under way when a run dies was not trained on and is not in the record. A resumed run samples
it again, of the same problems with the same draws: no batch is lost, and none is trained on twice.
"""

import copy
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from types import TracebackType

from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from gradmass.config import Recipe
from gradmass.evaluation.judge import judge
from gradmass.rewards import Verdict
from gradmass.tasks import Problem
from gradmass.training.clock import Clock
from gradmass.training.policy import copy_policy
from gradmass.training.rollout import Rollouts, decode, sample, uniforms

Parameters = dict[str, Tensor]


@dataclass(frozen=True)
class Sampled:
    """Rollouts whose verdicts may still be on their way.

    Args:
        step: Updates done before the batch is trained on.
        policy_step: Updates that the policy which answered has had.
        problems: P problems.
        first_group: Number of the first in the run, where every draw of a problem counts.
        rollouts: G answers to each, B = P * G in all.
        texts: The answers.
        verdicts: Gives what is said of them, and the seconds that judging took.
        sampling_s: Seconds that sampling took, whoever did it.
        waited_s: Seconds that it held the loop up.
    """

    step: int
    policy_step: int
    problems: Sequence[Problem]
    first_group: int
    rollouts: Rollouts
    texts: Sequence[str]
    verdicts: Callable[[], tuple[list[Verdict], float]]
    sampling_s: float
    waited_s: float


class BatchSource:
    """Samples the batches of a run in order.

    Args:
        recipe: The whole run.
        policy: The policy that is trained; with a lag, a copy of it answers.
        tokenizer: Its tokenizer.
        problems: The training problems in their order.
        past: With a fixed lag, the parameters after the last updates, oldest first, the newest
            last; empty in a new run.
    """

    def __init__(
        self,
        recipe: Recipe,
        policy: PreTrainedModel,
        tokenizer: PreTrainedTokenizerFast,
        problems: Sequence[Problem],
        past: Sequence[Parameters] = (),
    ) -> None:
        config = recipe.train
        self._recipe, self._policy, self._problems = recipe, policy, problems
        self._lag = config.policy_lag or config.max_lag
        self._is_ahead = self._lag > 0
        self._sampler = copy_policy(policy) if self._is_ahead else policy
        # A tokenizer pads by changing itself, so two threads need two.
        self._tokenizer = copy.deepcopy(tokenizer) if self._is_ahead else tokenizer
        self._past: deque[Parameters] = deque(past, maxlen=config.policy_lag + 1)
        self._newest_step, self._next_step = 0, 0
        self._lock = threading.Lock()
        self._ahead: deque[Future[Sampled]] = deque()
        self._sampling = ThreadPoolExecutor(1, thread_name_prefix="sampling")
        self._judging = ThreadPoolExecutor(1, thread_name_prefix="judging")

    def __enter__(self) -> "BatchSource":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # What is under way is lost. The loop does not wait for it; Python itself ends only after
        # the batch that is being judged.
        self._sampling.shutdown(wait=False, cancel_futures=True)
        self._judging.shutdown(wait=False, cancel_futures=True)

    @property
    def past(self) -> list[Parameters]:
        """What a run with a fixed lag needs to go on: the parameters after the last updates."""
        return list(self._past) if self._recipe.train.policy_lag else []

    def start(self, step: int) -> None:
        """Begin with the batch that follows ``step`` updates."""
        self._next_step = step
        self.updated(step, is_new=not self._past)

    def updated(self, step: int, *, is_new: bool = True) -> None:
        """Hear that the policy has had ``step`` updates, and begin the batches that may begin.

        Args:
            step: Updates done.
            is_new: Whether the policy is another than the one heard of last.
        """
        if not self._is_ahead:
            return
        config = self._recipe.train
        with self._lock:
            if is_new:
                self._past.append(copy_parameters(self._policy))
            self._newest_step = step
        while self._next_step < config.steps and self._next_step - self._lag <= step:
            follows = self._next_step
            self._next_step += config.updates_per_batch
            fixed = self._version(follows) if config.policy_lag else None
            self._ahead.append(self._sampling.submit(self._sample_ahead, follows, fixed))

    def draw(self, step: int) -> Sampled:
        """The batch that follows ``step`` updates; waits until it is sampled."""
        clock = Clock()
        sampled = self._ahead.popleft().result() if self._is_ahead else self._sample(step, step)
        clock.lap("waited")
        return replace(sampled, waited_s=clock.laps["waited"])

    def _version(self, step: int) -> tuple[int, Parameters]:
        """The policy that a fixed lag gives the batch after ``step`` updates."""
        policy_step = max(0, step - self._recipe.train.policy_lag)
        return policy_step, self._past[policy_step - self._newest_step - 1]

    def _sample_ahead(self, step: int, version: tuple[int, Parameters] | None) -> Sampled:
        """Sample in the background, from a policy or the newest there is, and pass it on."""
        if version is None:
            with self._lock:
                version = self._newest_step, self._past[-1]
        policy_step, parameters = version
        self._sampler.load_state_dict(parameters, strict=False)  # what is not trained stays
        sampled = self._sample(step, policy_step)
        # Judged by a thread of its own: the next batch is sampled meanwhile.
        return replace(sampled, verdicts=self._judging.submit(sampled.verdicts).result)

    def _sample(self, step: int, policy_step: int) -> Sampled:
        """Sample the batch that follows ``step`` updates."""
        recipe, config, clock = self._recipe, self._recipe.train, Clock()
        num_prompts = config.prompts_per_step
        batch_idx = step // config.updates_per_batch
        first = batch_idx * num_prompts
        chosen = [self._problems[(first + i) % len(self._problems)] for i in range(num_prompts)]
        shape = (num_prompts * config.group_size, config.max_new_tokens)
        draws_BT = uniforms(shape, recipe.seed, "rollout", batch_idx)
        prompts = [problem.prompt for problem in chosen]
        rollouts = sample(self._sampler, self._tokenizer, prompts, draws_BT)
        texts = decode(self._tokenizer, rollouts)
        clock.lap("sampling")

        def verdicts() -> tuple[list[Verdict], float]:
            clock = Clock()
            found = judge(recipe.task, chosen, texts, rollouts.is_ended_B.tolist())
            clock.lap("judging")
            return found, clock.laps["judging"]

        return Sampled(
            step=step,
            policy_step=policy_step,
            problems=chosen,
            first_group=first,
            rollouts=rollouts,
            texts=texts,
            verdicts=verdicts,
            sampling_s=clock.laps["sampling"],
            waited_s=0.0,
        )


def copy_parameters(model: PreTrainedModel) -> Parameters:
    """The parameters that are trained, as they are now."""
    return {
        name: tensor.detach().clone()
        for name, tensor in model.named_parameters()
        if tensor.requires_grad
    }
