"""The audit finds each fault it looks for, in a task that has that fault alone; and its command."""

import json
import subprocess
import sys
import threading
from dataclasses import dataclass

import pytest

from gradmass.cli import main
from gradmass.rewards import Outcome, Verdict
from gradmass.tasks import Problem, Task
from gradmass.tasks.audit import JUNK, audit


@dataclass(frozen=True, kw_only=True)
class Doubles(Task):
    """Twice a number, in brackets; with one fault, if any."""

    splits = ("train", "test")
    name = "doubles"

    fault: str = ""

    def generate(self, split):
        numbers = range(10, 20) if split == "train" else range(20, 30)
        if self.fault == "repeated" and split == "train":
            numbers = [*numbers, 12]
        if self.fault == "overlap" and split == "test":
            numbers = [*numbers, 13]
        for i in numbers:
            mark = "!" if self.fault == "lookalike" and split == "test" else ""
            shown = i - 10 if mark else i
            yield Problem(f"{i}", f"Double {shown}{mark}", 2 * i)

    def golds(self, problem):
        if self.fault == "no golds":
            return ()
        return (f"[{problem.data + (self.fault == 'wrong gold' and problem.id == '15')}]",)

    def defect(self, problem):
        return "no tests" if self.fault == "defect" and problem.id == "11" else None

    def known_good(self):
        return Problem("k", "", 4), "[5]" if self.fault == "known" else "[4]"

    def verify(self, problem, completion):
        if self.fault == "empty" and not completion.strip():
            return Verdict(Outcome.RIGHT)
        if self.fault == "cut" and completion in ("[2", "[3", "[4", "[5"):
            return Verdict(Outcome.RIGHT)
        if self.fault == "down" and completion == JUNK[4]:
            return Verdict(Outcome.ERROR, "no worker")
        if self.fault == "unscorable gold" and problem.id == "14" and completion[-1:] == "]":
            return Verdict(Outcome.ERROR, "gold cannot be read")
        if self.fault == "thread" and threading.current_thread() is not threading.main_thread():
            return Verdict(Outcome.TIMEOUT)
        is_right = completion == f"[{problem.data}]"
        return Verdict(Outcome.RIGHT if is_right else Outcome.WRONG, "", 0.001)

    def verify_batch(self, problems, completions):
        verdicts = super().verify_batch(problems, completions)
        # Which of a batch comes first decides: a worker that is not reset between answers.
        if self.fault == "order" and problems[0].id != "10" and len(verdicts) > 1:
            verdicts[1] = Verdict(Outcome.TIMEOUT)
        return verdicts


CHECKS = [
    "a known answer is right",
    "every problem can be judged",
    "golds are right",
    "golds cut in half are not",
    "junk is not right",
    "junk can be scored",
    "order and threads change nothing",
    "no problem is there twice",
    "no test problem is trained on",
]


def run(fault: str, num_problems: int = 10):
    return audit(Doubles(fault=fault), num_problems, lambda done, of: None)


def test_a_sound_task_passes_every_check():
    found = run("")
    assert [check.name for check in found.checks] == CHECKS
    assert found.is_passed
    assert [check.num_checked for check in found.checks] == [1, 20, 20, 20, 240, 240, 80, 20, 10]
    assert (found.num_golds, found.num_without_gold, found.num_unscorable) == (20, 0, 0)
    assert (found.num_shared, found.num_lookalike) == (0, 0)
    assert 0 < found.seconds_per_verdict < 0.1
    assert found.slowest_s == 0.001


@pytest.mark.parametrize(
    ("fault", "check", "num_failures", "first"),
    [
        ("known", "a known answer is right", 1, "k: '[5]' is wrong"),
        ("defect", "every problem can be judged", 1, "11: no tests"),
        ("wrong gold", "golds are right", 1, "15: '[31]' is wrong"),
        ("unscorable gold", "golds are right", 1, "14: '[28]' is error (gold cannot be read)"),
        ("cut", "golds cut in half are not", 20, "10: '[2' is right"),
        ("empty", "junk is not right", 40, "10: '' is right"),
        ("down", "junk can be scored", 20, "10: 'I do not know.' is error (no worker)"),
        (
            "thread",
            "order and threads change nothing",
            80,
            "10: '[20]' is right, in a thread timeout",
        ),
        ("repeated", "no problem is there twice", 1, "train: 12"),
        ("overlap", "no test problem is trained on", 1, "test: 13"),
    ],
)
def test_a_fault_fails_its_check_alone(fault, check, num_failures, first):
    found = run(fault)
    (failed,) = [check for check in found.checks if not check.is_passed]
    assert (failed.name, len(failed.failures), failed.failures[0]) == (check, num_failures, first)
    assert not found.is_passed


def test_a_verifier_that_depends_on_the_order_is_found():
    failed = [check.name for check in run("order").checks if not check.is_passed]
    assert "order and threads change nothing" in failed


def test_problems_without_golds_are_counted_and_the_rest_is_checked():
    found = run("no golds")
    assert (found.num_golds, found.num_without_gold, found.is_passed) == (0, 20, True)
    assert (
        dict(zip(CHECKS, (c.num_checked for c in found.checks), strict=True))["golds are right"]
        == 0
    )


def test_test_problems_that_look_like_training_problems_are_counted():
    assert run("lookalike").num_lookalike == 10


def test_progress_ends_at_the_number_it_announced():
    seen = []
    audit(Doubles(), 3, lambda done, of: seen.append((done, of)))
    assert seen == sorted(seen)
    assert seen[-1][0] == seen[-1][1]
    assert len({of for _, of in seen}) == 1


# The command


def gsm8k(tmp_path, rows) -> str:
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


ROWS = [{"question": f"Double {i}.", "answer": f"#### {2 * i}"} for i in range(1, 9)]


def command(capsys, *arguments) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as exit:
        main(["audit", *arguments])
    out, err = capsys.readouterr()
    return exit.value.code, out, err


def test_the_command_says_what_holds(tmp_path, capsys):
    path = gsm8k(tmp_path, [*ROWS, ROWS[0]])
    code, out, _ = command(capsys, f"gsm8k:path={path}", "--task.test_share", "0.5")
    assert code == 0
    lines = out.splitlines()
    assert lines[0] == f"audit of task gsm8k, path = {path!r}, test_share = 0.5"
    assert sum(line.startswith("  ok    ") for line in lines) == 9
    assert "row 9 asks what" in out
    assert lines[-1] == "passed"


def test_the_command_fails_with_examples(tmp_path, capsys):
    (tmp_path / "my.py").write_text("def generous(completion, problem):\n    return True\n")
    path = gsm8k(tmp_path, ROWS)
    code, out, _ = command(
        capsys, "gsm8k", "--task.path", path, "--task.reward", f"{tmp_path}/my.py:generous"
    )
    assert code == 1
    assert "  FAIL  junk is not right                  96 of 96 checked\n" in out
    assert "          and 91 more (--json)\n" in out
    assert out.endswith("\nfailed\n")


def test_the_command_prints_json(tmp_path, capsys):
    path = gsm8k(tmp_path, ROWS)
    code, out, _ = command(capsys, "gsm8k", "--task.path", path, "--n", "2", "--json")
    found = json.loads(out)
    assert (code, found["passed"], found["task"]["path"]) == (0, True, path)
    assert [check["name"] for check in found["checks"]] == CHECKS
    assert sum(split["num_problems"] for split in found["splits"].values()) == 8
    assert found["num_golds"] >= 2


def test_the_command_audits_the_task_of_a_recipe_and_of_a_file(tmp_path, capsys):
    recipe = tmp_path / "r.toml"
    path = gsm8k(tmp_path, ROWS)
    recipe.write_text(f'[task]\ntype = "gsm8k"\npath = "{path}"\n[train]\nsteps = 3\n')
    assert command(capsys, str(recipe), "--n", "1")[0] == 0
    (tmp_path / "own.py").write_text(
        "from dataclasses import dataclass\n"
        "from gradmass.rewards import Outcome, Verdict\n"
        "from gradmass.tasks import Problem, Task\n"
        "@dataclass(frozen=True, kw_only=True)\n"
        "class Own(Task):\n"
        "    splits = ('train',)\n"
        "    def generate(self, split):\n"
        "        yield Problem('a', 'a', 'a')\n"
        "    def verify(self, problem, completion):\n"
        "        return Verdict(Outcome.RIGHT if completion else Outcome.WRONG)\n"
    )
    code, out, _ = command(capsys, f"{tmp_path}/own.py:Own")
    assert code == 1
    assert "a: '?' is right" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gsm8k"], "task.path has no default: give it --task.path VALUE"),
        (["gsm8k", "--task.path", "/no/where"], "there is no file or folder '/no/where'"),
        (["gsm8", "--task.path", "x"], "unknown task 'gsm8'; did you mean 'gsm8k'?"),
        (["countdown", "--n", "0"], "--n must be at least 1, got 0"),
        ([], "missing TASK"),
    ],
)
def test_input_that_cannot_be_used_is_one_line(capsys, arguments, message):
    code, out, err = command(capsys, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("gradmass: error: ")
    assert message in err
    assert err.count("\n") == 1


def test_a_warning_of_this_package_is_one_line(tmp_path):
    path = gsm8k(tmp_path, [{"question": "Double 1."}, *ROWS])
    program = (
        "import sys; from gradmass.cli import main, COMMANDS; from gradmass.tasks import TASKS\n"
        "import gradmass.commands.audit as audit\n"
        f"audit.main = lambda argv: len(list(TASKS['gsm8k'](path={path!r}, test_share=0.0, "
        "unusable='skip').generate('train'))) - 8\n"
        "main(['audit'])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stderr == (
        f"gradmass: warning: {path}, row 1: has no field 'answer' (it has: question); "
        "such rows are left out\n"
    )
