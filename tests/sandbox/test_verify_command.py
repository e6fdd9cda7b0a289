"""``gradmass verify``: one verdict, its exit code, and what a user can do wrong."""

import json

import pytest

from gradmass.cli import main

SUM = {"tests": [{"stdin": "1 2\n", "stdout": "3\n"}, {"stdin": "5 6", "stdout": "11"}]}
CALLS = {"tests": [{"args": [1, 2], "expected": 3}], "entry_point": "add"}
CHECKS = {"tests": [{"check": "def check(add):\n    assert add(1, 2) == 3"}], "entry_point": "add"}
READS = "print(sum(map(int, input().split())))"
ADDS = "def add(a, b): return a + b"


@pytest.fixture
def verify(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def run(problem, program, *flags):
        text = problem if isinstance(problem, str) else json.dumps(problem)
        (tmp_path / "problem.json").write_text(text)
        (tmp_path / "program.py").write_text(program)
        with pytest.raises(SystemExit) as end:
            main(["verify", "code", "--problem=problem.json", "--program=program.py", *flags])
        return end.value.code, *capsys.readouterr()

    return run


@pytest.mark.parametrize(("problem", "program"), [(SUM, READS), (CALLS, ADDS), (CHECKS, ADDS)])
def test_a_right_program(verify, problem, program):
    code, out, err = verify(problem, program)
    assert (code, err) == (0, "")
    num_tests = len(problem["tests"])
    assert out.startswith(f"right ({num_tests} of {num_tests} tests, ")


def test_a_wrong_program_with_all_its_tests(verify):
    code, out, err = verify(SUM, "print(11)", "--json")
    verdict = json.loads(out)
    assert (code, err) == (1, "")
    assert verdict.pop("seconds") > 0
    assert verdict == {
        "verdict": "wrong", "detail": "test 1 of 2: printed '11', not '3'", "passed": 1, "total": 2,
    }  # fmt: skip


def test_a_slow_program(verify):
    code, out, _ = verify(SUM | {"time_limit_s": 0.3}, "while True: pass", "--json")
    assert (code, json.loads(out)["verdict"]) == (1, "timeout")


@pytest.mark.parametrize(
    ("problem", "message"),
    [
        ("{", "problem.json is no JSON (Expecting property name"),
        ("[]", "problem.json: a problem is a JSON object, got list"),
        ({}, "problem.json: a problem needs tests"),
        ({"tests": []}, "problem.json: a problem without tests: every program would pass"),
        ({"tests": [{"stdin": ""}]}, "test 1 is {stdin}, and should be {stdin, stdout} or"),
        ({"tests": [{"stdin": 1, "stdout": ""}]}, "test 1: stdin may not be 1; it is text"),
        ({"tests": {}}, "a problem: tests may not be {}; it is a list of {stdin, stdout} or"),
        (SUM | {"time_limit_s": "3"}, "may not be '3'; it is a number of seconds above 0 and"),
        (SUM | {"comparison": "x"}, "it is an object with any of tolerance, match_lines, match_c"),
        (SUM | {"comparison": {"match_case": 1}}, "match_case may not be 1; it is true or false"),
        (
            {"tests": [{"check": "f()"}, {"check": "x = 1\nassert ("}]},
            "problem.json: test 2 does not compile: '(' was never closed (line 2: assert ()",
        ),
        (
            {"entry_point": "f", "tests": [{"check": "assert f()=="}]},
            "problem.json: test 1 does not compile: invalid syntax (line 1: assert f()==)",
        ),
        (SUM | {"prelude": "def g(:"}, "the prelude does not compile: invalid syntax (line 1: def"),
        (SUM | {"prelude": "x = '\ud800'"}, "the prelude does not compile: UnicodeEncodeError"),
        ({"tests": [{"args": [], "expected": 1}]}, "test 1 calls a function; name it: entry_point"),
        (SUM | {"time_limit": 3}, "no 'time_limit'; did you mean 'time_limit_s'?"),
        (
            SUM | {"time_limit_s": -1},
            "time_limit_s must be above 0 and at most 86400, a day; got -1",
        ),
        (SUM | {"memory_mb": 5}, "memory_mb must be from 64 to 1048576, got 5"),
        (SUM | {"memory_mb": 2**50}, "memory_mb must be from 64 to 1048576, got 1125899906842624"),
        (
            SUM | {"memory_mb": True},
            "memory_mb may not be True; it is a whole number of MiB from 64",
        ),
        (SUM | {"comparison": {"case": False}}, "a comparison has no 'case'"),
    ],
)
def test_a_problem_that_cannot_be_used_is_one_line(verify, problem, message):
    code, out, err = verify(problem, READS)
    assert (code, out) == (2, "")
    assert err.startswith("gradmass: error: ")
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["verify", "cod"], "'cod' is no kind of answer; did you mean 'code'?"),
        (["verify", "code", "--problem", "gone.json", "--program", "x.py"], "gone.json"),
        (["verify", "code", "--prolem", "x"], "unknown flag --prolem; did you mean '--problem'?"),
    ],
)
def test_arguments_that_cannot_be_used_are_one_line(capsys, arguments, message):
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


def test_a_prelude_that_fails_is_no_verdict_on_the_program(verify):
    code, out, _ = verify(SUM | {"prelude": "import nonexist"}, READS, "--json")
    assert (code, json.loads(out)["verdict"]) == (2, "error")


@pytest.mark.parametrize("flag", ["--problem", "--program"])
def test_files_that_cannot_be_read_are_named_in_one_line(tmp_path, monkeypatch, capsys, flag):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "good.json").write_text(json.dumps(SUM))
    (tmp_path / "good.py").write_text(READS)
    (tmp_path / "folder").mkdir()
    (tmp_path / "latin").write_bytes(b"\xe9")
    takes = {"--problem": "a JSON file with tests", "--program": "a file of Python"}[flag]
    for name, what in {
        "gone": "gone does not exist",
        "folder": "folder is a folder",
        "latin": "latin is no UTF-8 text",
    }.items():
        files = {"--problem": "good.json", "--program": "good.py"} | {flag: name}
        with pytest.raises(SystemExit) as end:
            main(["verify", "code", *(f"{key}={value}" for key, value in files.items())])
        err = capsys.readouterr().err
        assert end.value.code == 2
        assert err.startswith(f"gradmass: error: {what}")
        assert err.endswith(f"; {flag} takes {takes}\n")


def test_help_lists_the_kinds(capsys):
    with pytest.raises(SystemExit) as end:
        main(["verify", "--help"])
    assert end.value.code == 0
    assert "  code   a program" in capsys.readouterr().out


def test_a_missing_sandbox_says_how_to_install_it(verify, monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    code, _, err = verify(SUM, READS)
    assert code == 2
    assert "apt-get install bubblewrap" in err
    assert verify(SUM, READS, "--isolation=process")[0] == 0
