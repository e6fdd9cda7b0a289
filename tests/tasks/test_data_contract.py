"""What holds of every task whose problems come from data."""

import pickle
from pathlib import Path

import pytest

from gradmass.rewards import Outcome
from gradmass.tables import from_tables, to_tables
from gradmass.tasks import TASKS, Task
from gradmass.tasks.audit import JUNK, audit
from gradmass.tasks.dataset import DatasetTask

DATA = Path(__file__).parents[1] / "fixtures" / "datasets"
REWARD = "def score(completion, problem):\n    return completion == problem.data['answer']\n"
FIELDS = {
    "aime": {"path": "aime/math-ai_aime25_test.jsonl"},
    "apps": {"path": "apps/test.jsonl", "unusable": "skip"},
    "code_contests": {"path": "code_contests"},
    "dataset": {"path": "gsm8k/test.jsonl"},
    "deepscaler": {"path": "deepscaler/deepscaler.json", "unusable": "skip"},
    "gsm8k": {"path": "gsm8k/test.jsonl"},
    "humaneval": {"path": "humaneval/HumanEval_fixture.jsonl.gz"},
    "livecodebench": {"path": "livecodebench/test6.jsonl"},
    "math": {"path": "math/math.jsonl"},
    "mbpp": {"path": "mbpp/mbpp.jsonl"},
    "reasoning_gym": {"dataset": "chain_sum", "size": 20},
    "taco": {"path": "taco/taco_rows.jsonl"},
}
pytestmark = pytest.mark.filterwarnings("ignore:.*such rows are left out")


@pytest.fixture(params=sorted(FIELDS))
def task(request, tmp_path) -> Task:
    fields = dict(FIELDS[request.param])
    if "path" in fields:
        fields["path"] = str(DATA / fields["path"])
    if request.param == "dataset":
        (tmp_path / "my.py").write_text(REWARD)
        fields["reward"] = f"{tmp_path / 'my.py'}:score"
    return TASKS[request.param](**fields, test_share=0.5)


def test_every_dataset_of_the_package_is_here():
    names = [name for name in TASKS.names() if issubclass(TASKS[name], DatasetTask)]
    assert sorted(FIELDS) == sorted([*names, "reasoning_gym"])


def test_problems_are_the_same_every_time_and_each_once(task):
    found = [list(task.generate(split)) for split in task.splits]
    assert [list(task.generate(split)) for split in task.splits] == found
    everything = [problem for problems in found for problem in problems]
    assert len(everything) >= 2
    assert len({problem.id for problem in everything}) == len(everything)
    assert len({problem.prompt for problem in everything}) == len(everything)
    assert len(set(everything)) == len(everything)
    assert all(isinstance(problem.prompt, str) and problem.prompt for problem in everything)


def test_golds_are_right_and_junk_is_not(task):
    for split in task.splits:
        for problem in task.generate(split):
            golds = task.golds(problem)
            verdicts = task.verify_batch([problem] * (len(golds) + len(JUNK)), [*golds, *JUNK])
            outcomes = [verdict.outcome for verdict in verdicts]
            assert outcomes[: len(golds)] == [Outcome.RIGHT] * len(golds)
            assert not {Outcome.RIGHT, Outcome.ERROR} & set(outcomes[len(golds) :])
            assert [task.verify(problem, text).outcome for text in golds] == outcomes[: len(golds)]


def test_a_task_survives_its_record_and_its_problems_a_pickle(task):
    assert from_tables(Task, to_tables(task), "the record", "task") == task
    for problem in task.generate(task.splits[0]):
        assert pickle.loads(pickle.dumps(problem)) == problem


def test_the_audit_passes_and_counts_all_problems(task):
    found = audit(task, 2, lambda done, of: None)
    assert [check.failures for check in found.checks if not check.is_passed] == []
    sizes = {split: len(list(task.generate(split))) for split in task.splits}
    assert {split: scan.num_problems for split, scan in found.splits.items()} == sizes
