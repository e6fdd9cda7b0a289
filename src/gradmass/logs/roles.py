"""Which column of a log is what: by its name where it is a usual one, else by a flag."""

from dataclasses import dataclass, field, replace

from gradmass.logs.files import TRL, Source, enumerated
from gradmass.registry import nearest
from gradmass.types import UsageError

USUAL: dict[str, tuple[str, ...]] = {
    "step": ("step", "global_step", "global_steps"),
    "group": ("group", "group_id", "group_index", "uid"),
    "problem": ("problem_id", "prompt", "input", "question", "problem"),
    "completion": ("completion", "output", "response", "text"),
    "success": ("verdict", "correct", "is_correct", "success", "passed", "acc"),
    "advantage": ("advantage", "advantages", "weight"),
    "length": ("num_tokens", "response_length", "completion_length", "length"),
    "logprobs": ("logprobs", "log_probs", "rollout_log_probs", "token_logprobs"),
    "entropy": ("entropy", "entropy_nats"),
}
"""Names a column of each role goes by, the most telling one first."""
REWARDS = ("reward", "score", "rewards")


@dataclass(frozen=True)
class Roles:
    """Columns by what they hold; None where the log has none.

    Args:
        step: Optimiser step, a whole number.
        group: What the rollouts of one draw of one prompt share.
        problem: What identifies a problem: an id, or the prompt.
        completion: The answer.
        rewards: Reward of each reward function, summed with its factor.
        success: Verdict: true or false, 1 or 0, or this package's words.
        advantage: The weight that the trainer used.
        length: Tokens of the answer.
        logprobs: Log-probabilities of the answer's tokens, a list, or their sum.
        entropy: Mean token entropy in nats.
        gold: verl's ground truth, which tells problems of equal prompts apart.
    """

    step: str | None = None
    group: str | None = None
    problem: str | None = None
    completion: str | None = None
    rewards: dict[str, float] = field(default_factory=dict)
    success: str | None = None
    advantage: str | None = None
    length: str | None = None
    logprobs: str | None = None
    entropy: str | None = None
    gold: str | None = None

    def columns(self) -> list[str]:
        """Names of all columns to read, each once."""
        single = (getattr(self, role) for role in (*USUAL, "gold"))
        return list(dict.fromkeys([name for name in single if name is not None] + [*self.rewards]))

    def found_in(self, source: Source) -> "Roles":
        """The roles given, completed by the usual names.

        Of TRL's files every column of fractional numbers that is nothing else is a reward.

        Args:
            source: The log.

        Raises:
            UsageError: A column that was named is not there; no reward and no verdict; nothing
                that tells problems apart.
        """
        names = source.names
        for name in self.columns():
            if name not in names:
                where = source.files[0]
                raise UsageError(f"{where} has no column {name!r}{nearest(name, names)}")
        # TRL's other columns are called after reward functions: "length" is no length there.
        own = TRL if source.format == "trl" else set(names)
        found = {
            role: getattr(self, role) or next((name for name in usual if name in own), None)
            for role, usual in USUAL.items()
        }
        rewards = self.rewards
        if not rewards and source.format == "trl":
            taken = {name for name in found.values() if name is not None}
            rewards = {name: 1.0 for name in source.float_columns if name not in taken}
        if not rewards:
            rewards = dict([(name, 1.0) for name in REWARDS if name in names][:1])
        if not rewards and found["success"] is None:
            raise UsageError(
                f"{source.files[0]}: expected a reward ({', '.join(REWARDS)}) or a verdict "
                f"({', '.join(USUAL['success'])}), found the columns {enumerated(names)}; name one "
                "with --reward or --success"
            )
        if found["problem"] is None and found["group"] is None:
            raise UsageError(
                f"{source.files[0]}: expected a column that tells problems apart "
                f"({', '.join(USUAL['problem'])}), found {enumerated(names)}; name one with "
                "--problem or --group"
            )
        gold = "gts" if source.format == "verl" and found["problem"] == "input" else None
        return replace(self, **found, rewards=rewards, gold=gold)
