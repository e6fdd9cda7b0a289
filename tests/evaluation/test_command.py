"""``gradmass eval`` with a folder of samples, from its arguments to what it prints and writes."""

import gzip
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gradmass.config import TinyModelConfig
from gradmass.evaluation.answers import request_seed
from gradmass.record.samples import read_config
from gradmass.training.model import character_tokenizer, save_model, tiny_model

SMALL = ["--num-samples", 4, "--max-new-tokens", 6]


def samples(folder):
    with gzip.open(Path(folder) / "samples.jsonl.gz", "rt") as lines:
        return [json.loads(line) for line in lines]


def refused(command, *argv):
    out, err = command("eval", *argv, code=2)
    assert out == ""
    assert err.count("\n") == 1, err
    return err.removeprefix("gradmass: error: ").rstrip()


def test_samples_results_and_what_was_asked_are_kept(command, sums):
    out, err = command(
        "eval", "countdown-tiny", "--task", sums, "--task.number", 3, *SMALL, "--out", "out",
        "--seed", 7, "--temperature", 0.9, "--k", 2, 1, "--json",
    )  # fmt: skip
    assert err == ""
    results = json.loads(out)
    rows = samples("out")
    assert [(r["problem_id"], r["sample"]) for r in rows] == [
        (f"sum-{i}", j) for i in range(3) for j in range(4)
    ]
    for row in rows:
        assert row["split"] == "test"
        assert row["correct"] is (row["outcome"] == "right")
        assert row["outcome"] in ("right", "wrong", "unparsed")
        assert 1 <= row["num_tokens"] <= 6
        assert row["is_truncated"] is (row["detail"] == "cut at max_new_tokens")
        assert row["is_truncated"] or len(row["completion"]) == row["num_tokens"] - 1
    (split,) = results["splits"]
    right = [[r["correct"] for r in rows if r["problem_id"] == f"sum-{i}"] for i in range(3)]
    assert split["sampled_pass@1"] == pytest.approx(sum(map(sum, right)) / 12)
    assert split["samples"]["num_truncated"] == sum(r["is_truncated"] for r in rows) > 0
    assert split["samples"]["num_unscorable"] == 0
    assert (split["num_problems"], split["num_samples"], results["k"]) == (3, 4, [1, 2])
    config = read_config(Path("out"))
    asked = {"model": "countdown-tiny", "num_samples": 4, "temperature": 0.9, "top_p": 1.0}
    asked |= {"max_new_tokens": 6, "stop": [], "prompt": "plain", "seed": 7, "endpoint": None}
    assert asked.items() <= config.items()
    assert asked.items() <= results.items()
    assert config["task"]["number"] == 3
    stored = json.loads(Path("out/results.json").read_text())
    assert stored == {"schema": 1, **results}
    assert json.loads(Path("out/env.json").read_text())["command"].startswith("gradmass eval count")


def test_a_finished_evaluation_is_read_and_a_larger_one_adds_to_it(command, sums):
    argv = ["eval", "countdown-tiny", "--task", sums, "--max-new-tokens", 6, "--out", "out"]
    command(*argv, "--num-samples", 2)
    first = samples("out")
    size = Path("out/samples.jsonl.gz").stat().st_size
    out, err = command(*argv, "--num-samples", 2, "--json")
    assert err == "gradmass: note: 12 samples are there already\n"
    assert Path("out/samples.jsonl.gz").stat().st_size == size
    out, _ = command(*argv, "--num-samples", 5, "--json")
    rows = samples("out")
    assert rows[:12] == first
    assert {(r["problem_id"], r["sample"]) for r in rows} == {
        (f"sum-{i}", j) for i in range(6) for j in range(5)
    }
    assert len(rows) == 30
    assert json.loads(out)["splits"][0]["samples"]["max_samples"] == 5
    command(*[*argv[:-1], "fresh"], "--num-samples", 5)
    key = lambda row: (row["problem_id"], row["sample"])  # noqa: E731
    assert sorted(samples("fresh"), key=key) == sorted(rows, key=key)
    message = refused(command, *argv[1:], "--num-samples", 3)
    assert message.startswith("out holds an evaluation with 5 samples of each problem")
    message = refused(command, *argv[1:], "--num-samples", 5, "--seed", 1)
    assert message.startswith("out holds an evaluation with seed = 0, here it is 1; name another")


def test_exact_and_sampled_values_are_those_without_a_folder(command):
    argv = ["eval", "countdown-tiny", "--limit", 5, "--num-samples", 10, "--json"]
    without = json.loads(command(*argv)[0])
    kept = json.loads(command(*argv, "--out", "out")[0])
    for split in [*without["splits"], *kept["splits"]]:
        del split["time/eval_s"]
    assert kept == without
    assert {row["split"] for row in samples("out")} == {"test", "ood"}
    only = json.loads(command(*argv, "--split", "ood")[0])
    assert [split["split"] for split in only["splits"]] == ["ood"]
    assert only["splits"][0]["pass@10"] == kept["splits"][1]["pass@10"]
    assert only["splits"][0]["sampled_pass@10"] == kept["splits"][1]["sampled_pass@10"]


def test_other_temperatures_have_no_exact_values_and_say_so(command):
    argv = ["eval", "countdown-tiny", "--limit", 3, "--num-samples", 4, "--json"]
    out, err = command(*argv, "--temperature", "0")
    assert "note: at temperature 0 the 4 samples of a problem are all alike" in err
    assert "note: no exact values: they are those of temperature 1, top-p 1" in err
    for split in json.loads(out)["splits"]:
        assert "pass@1" not in split
        assert split["sampled_pass@1"] in {0.0, 1 / 3, 2 / 3, 1.0}
    assert command(*argv, "--temperature", "0", "--num-samples", "1")[1].count("note") == 1


def test_characters_that_the_model_does_not_know_are_told(command, tmp_path, sums):
    text = (tmp_path / "sums.py").read_text().replace('f"{i},', 'f"What is {i},')
    (tmp_path / "words.py").write_text(text)
    _, err = command(
        "eval", "countdown-tiny", "--task", "words.py:Sums", *SMALL, "--out", "out", "--json"
    )
    assert err == (
        "gradmass: note: the tokenizer loses characters of 6 of 6 prompts; it reads "
        "'What is 0,1=' as '0,1='\n"
    )
    assert len(samples("out")) == 24


def test_answers_without_a_verdict_are_said_and_left_out(command, tmp_path, serve, sums):
    # Two of four answers to the first problem cannot be judged, and none to the second.
    def write(prompt, seed):
        number = int(prompt[0])
        order = seeds[number].index(seed)
        return "?" if (number == 0 and order < 2) or number == 1 else "1"

    seeds = [[request_seed(0, f"sum-{i}", j) for j in range(4)] for i in range(6)]
    stub = serve(write)
    argv = ["eval", "m", "--endpoint", stub.url, "--task", sums, "--k", 1, 4, "--num-samples", 4]
    out, _ = command(*argv, "--out", "out")
    assert "test: 6 of 24 answers have no verdict and are left out; problems have 2 to 4" in out
    assert "test: problems without a scored sample, which are left out: 1" in out
    heading = out.splitlines()[0].replace(f"{tmp_path}/", "")
    asked = "temperature 1, top-p 1, at most 4096 tokens, chat prompts, seed 0"
    assert heading == f"m on sums.py:Sums; {asked}"
    assert out.endswith("samples and results: out\n")
    assert "exact" not in out
    assert "test: no pass@4: a problem has only 2 scored samples" in out
    split = json.loads(command(*argv, "--out", "out", "--json")[0])["splits"][0]
    assert split["sampled_pass@1"] == 1 / 5
    assert [r["correct"] for r in samples("out") if r["problem_id"] == "sum-1"] == [None] * 4


@pytest.mark.slow
def test_a_verifier_that_fails_loses_no_answer(command, tmp_path, serve, sums):
    """After it is mended, the same command judges what is there, and asks nothing again."""
    stub = serve(lambda prompt, seed: "1")
    good = (tmp_path / "sums.py").read_text()
    bad = good.replace("text = completion.strip()", 'raise KeyError("broken")')
    program = "from gradmass.cli import main; import sys; main(sys.argv[1:])"
    argv = ["eval", "m", "--endpoint", stub.url, "--task", sums, "--num-samples", "3", "--out", "o"]
    (tmp_path / "sums.py").write_text(bad)
    ended = subprocess.run([sys.executable, "-c", program, *argv], capture_output=True, text=True)
    assert ended.returncode == 2
    assert ended.stderr.startswith("gradmass: error: ")
    assert "sums.py, line" in ended.stderr
    assert "KeyError: 'broken'" in ended.stderr
    num_kept = len(Path("o/waiting.jsonl").read_text().splitlines())
    assert num_kept > 0
    (tmp_path / "sums.py").write_text(good)
    ended = subprocess.run([sys.executable, "-c", program, *argv], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    rows = samples("o")
    assert len(rows) == len({(r["problem_id"], r["sample"]) for r in rows}) == 18
    # What was under way when the verifier failed may have been asked for in vain.
    num_asked = sum(stub.asked.values())
    assert num_asked <= 18 + (18 - num_kept)
    # A verifier that judges otherwise judges the answers that are there anew; none is asked for.
    (tmp_path / "sums.py").write_text(good.replace("== problem.data", "== 1"))
    ended = subprocess.run([sys.executable, "-c", program, *argv], capture_output=True, text=True)
    assert ended.stderr == "gradmass: note: 18 answers there are judged now\n"
    assert [row["correct"] for row in samples("o")] == [True] * 18
    assert sum(stub.asked.values()) == num_asked


@pytest.mark.parametrize(
    ("flags", "wanted"),
    [
        (["--k", 1, 5, "--num-samples", 4], "pass@5 needs at least 5 samples of each problem, --n"),
        (["--k", 0], "--k must be at least 1, got 0"),
        (["--task.number", 0], "split 'test' of task 'sums.py:Sums' has no problems"),
        (["--split", "tst"], "task 'sums.py:Sums' has no split 'tst'; did you mean 'test'?"),
        (["--num-samples", 0], "by sampling, and --num-samples must be above 0, got 0"),
        (["--temperature", -1], "temperature must be finite and at least 0, got -1"),
        (["--top-p", 0], "top_p must be above 0 and at most 1, got 0"),
        (["--batch-size", 0], "--batch-size must be at least 1, got 0"),
        (["--prompt", "chat"], "'countdown-tiny' has no chat template: use --prompt plain"),
        (["--prompt", "talk"], "'talk' is not one of auto, chat, plain"),
        (["--max-new-tokens", 61], "the longest prompt and --max-new-tokens = 61 make 65"),
        (["--temperature", "warm"], "--temperature: "),
    ],
)  # fmt: skip
def test_what_cannot_be_asked_is_one_line(command, sums, flags, wanted):
    message = refused(command, "countdown-tiny", "--task", sums, *SMALL, "--out", "out", *flags)
    assert wanted in message
    assert not Path("out").exists()


def test_samples_alone_need_a_folder(command, sums):
    message = refused(command, "countdown-tiny", "--task", sums, *SMALL)
    assert message.startswith("name a folder with --out: samples are kept there")


@pytest.mark.parametrize("model", ["nowhere", "used", "a/b/c"])
def test_a_folder_that_is_no_model_is_one_line(command, model):
    Path("used").mkdir()
    message = refused(command, model, "--limit", 2)
    assert message.startswith(f"no model at {model!r}: not a folder in Hugging Face format")


def test_a_damaged_model_is_one_line(command):
    Path("m").mkdir()
    Path("m/config.json").write_text('{"model_type": "qwen2"}')
    assert refused(command, "m", "--limit", 2).startswith("cannot load a model from 'm': ")


def hub_copy(root, name, folder):
    """A model in the layout of the hub's cache."""
    home = root / f"models--{name.replace('/', '--')}"
    (home / "refs").mkdir(parents=True)
    (home / "refs" / "main").write_text("0" * 40)
    shutil.copytree(folder, home / "snapshots" / ("0" * 40))


def test_an_id_of_the_hub_is_its_cached_snapshot(command, shipped, tmp_path, monkeypatch):
    import huggingface_hub.constants as constants

    save_model(*shipped, tmp_path / "m")
    hub_copy(tmp_path / "cache", "someone/tiny", tmp_path / "m")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub._snapshot_download.constants", constants)
    argv = ["--limit", 2, "--num-samples", 2, "--json"]
    results = [json.loads(command("eval", m, *argv)[0]) for m in ("someone/tiny", "countdown-tiny")]
    assert results[0]["splits"][0]["pass@1"] == results[1]["splits"][0]["pass@1"]
    message = refused(command, "someone/else", "--limit", 2)
    assert message.startswith("no model at 'someone/else': no such folder, and the hub does not")


def test_a_chat_model_is_asked_in_its_template(command, sums, tmp_path):
    tokenizer = character_tokenizer("0123456789,=[]")
    tokenizer.chat_template = (
        "{% for m in messages %}[{{ m['content'] }}]{% endfor %}"
        "{% if add_generation_prompt %}={% endif %}"
    )
    model = tiny_model(TinyModelConfig(hidden_size=16, num_layers=1, num_heads=2), tokenizer, 0)
    model.lm_head.weight.data *= 40  # far from uniform, so that the prompt matters
    save_model(model, tokenizer, tmp_path / "chat")
    argv = ["eval", "chat", "--task", sums, *SMALL, "--json"]
    by_default = json.loads(command(*argv, "--out", "a")[0])
    assert by_default["prompt"] == "chat"
    assert json.loads(command(*argv, "--out", "b", "--prompt", "plain")[0])["prompt"] == "plain"
    texts = [[row["completion"] for row in samples(folder)] for folder in "ab"]
    assert texts[0] != texts[1]
    # The template's text written out as a plain prompt gives the same answers.
    text = (tmp_path / "sums.py").read_text().replace('f"{i},{i + 1}="', 'f"[{i},{i + 1}=]="')
    (tmp_path / "written.py").write_text(text)
    argv[argv.index(sums)] = "written.py:Sums"
    command(*argv, "--out", "c", "--prompt", "plain")
    assert [row["completion"] for row in samples("c")] == texts[0]


def test_a_model_that_changed_in_its_place_is_not_continued(command, sums, shipped, policy):
    import torch

    save_model(*shipped, Path("m"))
    argv = ["m", "--task", sums, *SMALL, "--out", "out"]
    command("eval", *argv)
    shutil.move("m", "moved")
    command("eval", "moved", *argv[1:])
    with torch.no_grad():
        policy.lm_head.weight[3, 0] += 1
    save_model(policy, shipped[1], Path("m"))
    assert refused(command, *argv).startswith("out holds an evaluation with model_id = ")


@pytest.mark.parametrize("hidden", ["torch", "openai"])
def test_a_server_needs_no_torch_and_says_when_its_client_is_missing(serve, sums, hidden):
    stub = serve(lambda prompt, seed: "1")
    program = (
        "import sys\n"
        "class Hidden:\n"
        "    def find_spec(name, path=None, target=None):\n"
        f"        if name.split('.')[0] == {hidden!r}:\n"
        "            raise ModuleNotFoundError(name, name=name)\n"
        "sys.meta_path.insert(0, Hidden)\n"
        "from gradmass.cli import main; main(sys.argv[1:])"
    )
    argv = ["eval", "m", "--endpoint", stub.url, "--task", sums, "--num-samples", "1", "--out", "o"]
    ended = subprocess.run([sys.executable, "-c", program, *argv], capture_output=True, text=True)
    if hidden == "torch":
        assert ended.returncode == 0, ended.stderr
        assert len(samples("o")) == 6
    else:
        assert (ended.returncode, ended.stdout) == (2, "")
        assert ended.stderr == (
            "gradmass: error: --endpoint needs openai, which is not installed: "
            "pip install 'gradmass[endpoint]'\n"
        )


def test_progress_off_a_terminal_is_a_line_in_a_while_with_rate_and_rest(capsys, monkeypatch):
    from gradmass.commands import eval_progress

    now = [0.0]
    monkeypatch.setattr(eval_progress.time, "monotonic", lambda: now[0])
    with eval_progress.SamplingProgress(100, 20) as progress:
        for now[0] in (1.0, 9.0, 10.0, 11.0, 20.0):
            progress.add(10)
    assert capsys.readouterr().err.splitlines() == [
        "50/100 samples, 3.0/s, 17s left",
        "70/100 samples, 2.5/s, 12s left",
    ]
