"""Mathematics: GSM8K, MATH, AIME, DeepScaleR, and the Parquet form that verl trains on."""

import re
from abc import abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from gradmass.rewards import Verdict
from gradmass.rewards.extract import BOX, check_rule, last_box
from gradmass.rewards.maths import MathsVerifier
from gradmass.rewards.shared import shared_verifier
from gradmass.tasks.base import Problem, register_task
from gradmass.tasks.dataset import DatasetTask, Entry, question_of
from gradmass.tasks.rows import Row

BOXED = "\n\nReason step by step, and put the final answer in \\boxed{}."
GSM8K_ANSWER = re.compile(r"#### (-?[0-9.,]+)")
GOLD_FORMS = {"final_answer_line": "Answer: {}", "last_number": "{}"}
"""A gold as a completion, by the rule that has to find it there; in a box for the others."""


@dataclass(frozen=True, slots=True)
class MathsData:
    """What a mathematical answer is judged by.

    Args:
        gold: The right answer.
        solution: A solution that ends in it, as the data has it; empty where it has none.
    """

    gold: str
    solution: str = field(default="", repr=False)


@dataclass(frozen=True, kw_only=True)
class MathsTask(DatasetTask):
    """A dataset of mathematical questions with one answer each, judged for equivalence."""

    columns: ClassVar[Collection[str] | None] = frozenset(
        ("problem", "question", "answer", "solution", "unique_id", "prompt", "reward_model")
    )

    instruction: str = BOXED
    """Text behind the question in the prompt."""
    extraction: str = "last_box"
    """Where in a completion the answer is: last_box, last_box_or_all, last_math, final_answer_line
    or last_number."""
    thinking: str = "skip"
    """What of a <think> block counts: skip (nothing), require (nothing, and it must have closed) or
    count (everything)."""
    num_workers: int = 2
    """Processes that judge."""
    time_limit_s: float = 5.0
    """Seconds that a verdict may take; the answer is then a timeout."""

    def __post_init__(self) -> None:
        """Refuse rules that there are not."""
        DatasetTask.__post_init__(self)
        check_rule(self.extraction, self.thinking)

    @abstractmethod
    def gold(self, row: Row) -> str:
        """The right answer of a row.

        Raises:
            RowError: There is none.
        """

    def entry(self, row: Row) -> Entry:
        """Question and gold, from the dataset's own columns or those of verl."""
        if "reward_model" in row:
            truth = row["reward_model"]
            gold = truth.get("ground_truth") if isinstance(truth, dict) else None
            if not isinstance(gold, str) or not gold.strip():
                raise row.error("field 'reward_model' has no ground_truth")
            return Entry(
                question_of(row, "prompt"), MathsData(self.checked(row, gold)), answer=gold
            )
        question = row.text(row.first_of("problem", "question"))
        gold = self.checked(row, self.gold(row))
        solution = row.get("solution")
        has_box = isinstance(solution, str) and BOX.search(solution) is not None
        name = str(row["unique_id"]) if "unique_id" in row else ""
        return Entry(question, MathsData(gold, solution if has_box else ""), name, gold)

    def checked(self, row: Row, gold: str) -> str:
        """The gold as it is compared; a dataset that knows its form refuses others."""
        return gold

    def verify_all(self, problems: Sequence[Problem], completions: Sequence[str]) -> list[Verdict]:
        """Judge all answers for equivalence with their golds."""
        verifier = shared_verifier(
            MathsVerifier,
            num_workers=self.num_workers,
            time_limit_s=self.time_limit_s,
            extraction=self.extraction,
            thinking=self.thinking,
        )
        return verifier.verify([problem.data.gold for problem in problems], completions)

    def golds(self, problem: Problem) -> tuple[str, ...]:
        """The gold in the form the extraction rule reads, and the data's own solution."""
        box = "\\boxed{{{}}}"
        form = GOLD_FORMS.get(self.extraction, box)
        thought = "</think>" if self.thinking == "require" else ""
        texts = [form.format(problem.data.gold)]
        texts += [problem.data.solution] if problem.data.solution and form == box else []
        return tuple(thought + text for text in texts)

    def known_good(self) -> tuple[Problem, str] | None:
        """One half, said otherwise; None where a reward function of the user's judges."""
        if self.reward:
            return None
        problem = Problem("one half", "What is 1/2?", MathsData("\\frac{1}{2}"))
        return problem, self.golds(Problem("one half", "", MathsData("0.5")))[0]


@register_task("gsm8k")
@dataclass(frozen=True, kw_only=True)
class Gsm8k(MathsTask):
    """GSM8K (openai/gsm8k): grade-school word problems.

    Columns ``question`` and ``answer``; the gold is the number behind ``####``, without thousands
    separators.
    """

    def gold(self, row: Row) -> str:
        """The number behind ####."""
        found = GSM8K_ANSWER.search(row.text("answer"))
        if found is None:
            raise row.error("field 'answer' has no '#### number'")
        return found[1].replace(",", "").rstrip(".")


@register_task("math")
@dataclass(frozen=True, kw_only=True)
class Math(MathsTask):
    r"""MATH (hendrycks/math: JSON Lines, Parquet, or the folder of a file each) and MATH-500.

    Columns ``problem`` and ``solution``; the gold is ``answer`` where the row has it (MATH-500), or
    what the solution's last ``\boxed`` holds. MATH-500's ``unique_id`` is the problem's id.
    """

    def gold(self, row: Row) -> str:
        """The answer, or what the last box of the solution holds."""
        if "answer" in row:
            return row.text("answer")
        found = last_box(row.text("solution"))
        if found is None or not found.strip():
            raise row.error("field 'solution' has no \\boxed{answer}")
        return found.strip()


@register_task("aime")
@dataclass(frozen=True, kw_only=True)
class Aime(MathsTask):
    """AIME in any of its copies: an integer from 0 to 999.

    Columns ``problem`` or ``question``, and ``answer`` (a number or a text, also ``003``), letter
    case aside. A benchmark: by default all of it is the test split.
    """

    test_share: float = 1.0
    """Share of questions that the hash holds out, from 0 to 1 (1: all are test problems)."""

    def gold(self, row: Row) -> str:
        """The answer as it stands."""
        return str(row[row.first_of("answer")])

    def checked(self, row: Row, gold: str) -> str:
        """The integer without leading zeros."""
        if re.fullmatch(r"\s*[0-9]{1,3}\s*", gold) is None:
            raise row.error(f"the answer of AIME is an integer from 0 to 999, got {gold!r}")
        return str(int(gold))


@register_task("deepscaler")
@dataclass(frozen=True, kw_only=True)
class DeepScaleR(MathsTask):
    """DeepScaleR-Preview, and any data with ``problem`` or ``question`` and ``answer``.

    As every mathematical task it also reads verl's Parquet form, such as DAPO-Math-17k's: the last
    message of ``prompt``, and ``reward_model.ground_truth``.
    """

    def gold(self, row: Row) -> str:
        """The answer as it stands."""
        answer: Any = row["answer"]
        is_number = isinstance(answer, int | float) and not isinstance(answer, bool)
        return str(answer) if is_number else row.text("answer")
