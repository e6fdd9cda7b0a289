"""What the doctor finds in an engine's source, changed or not; TRL's own wheels in one test."""

import json
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path

import pytest

from gradmass.commands import doctor as command
from gradmass.engines.doctor import diagnose
from gradmass.engines.trl_config import TRL_SYMBOLS, flags
from gradmass.engines.upstream import Symbol, body_hash, find, known_bodies, probe
from gradmass.types import UsageError

ENGINE = '''
class Trainer:
    """Docs."""

    def __init__(self):
        self._metrics: dict = {}

    def loss(self, model, inputs):
        """Docs."""
        return inputs["advantages"]  # comment
'''
LOSS = Symbol("core.py:Trainer.loss", ("self", "model", "inputs"), ("advantages",))
METRICS = Symbol("core.py:Trainer.__init__._metrics")


@pytest.fixture
def engine(tmp_path, monkeypatch):
    """Probe a package of this source, after the one above was tried as version 1."""

    def write(source):
        folder = tmp_path / f"engine{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        (folder / "core.py").write_text(textwrap.dedent(source))
        return folder

    node, text = find(write(ENGINE), LOSS.name)
    known = {"engine": {LOSS.name: {body_hash(text, node): ["1.0", "1.1"]}}}
    monkeypatch.setattr("gradmass.engines.upstream.known_bodies", lambda: known)
    return lambda source: probe("engine", write(source), (LOSS, METRICS))


def test_an_unchanged_body_is_known_whatever_its_comments_and_layout(engine):
    loss, metrics = engine(
        ENGINE.replace("# comment", "# another").replace('"""Docs."""', '"""D"""')
    )
    assert (loss.status, loss.detail) == ("known", "as in 1.0 to 1.1")
    assert metrics.status == "known"
    shifted = ENGINE.replace("    def loss", "\n\n    # here\n    def loss")
    assert engine(shifted)[0].status == "known"


@pytest.mark.parametrize(
    ("old", "new", "status", "detail"),
    [
        ("return inputs", "return 2 * inputs", "unknown but compatible", "was never tried"),
        ("model, inputs", "model, inputs, more=0", "unknown but compatible", "was never tried"),
        ("model, inputs", "inputs, model", "broken", "takes (self, inputs, model)"),
        ("model, inputs", "model", "broken", "takes (self, model), not (self, model, inputs)"),
        ('"advantages"', '"weights"', "broken", "no longer uses advantages"),
        ("def loss", "def compute", "broken", "core.py has no Trainer.loss"),
        ("class Trainer", "class Other", "broken", "core.py has no Trainer.loss"),
    ],
)
def test_a_changed_symbol_is_named_with_what_changed(engine, old, new, status, detail):
    loss, _ = engine(ENGINE.replace(old, new))
    assert loss.status == status
    assert detail in loss.detail
    assert loss.symbol == "engine/core.py:Trainer.loss"


def test_an_attribute_that_is_no_longer_set_is_broken(engine):
    _, metrics = engine(ENGINE.replace("self._metrics", "self.metrics"))
    assert metrics.status == "broken"


def test_a_file_that_is_gone_is_broken(tmp_path):
    (finding,) = probe("engine", tmp_path, (LOSS,))
    assert (finding.status, finding.detail) == ("broken", "there is no core.py")


def test_every_symbol_has_a_known_body():
    known = known_bodies()["trl"]
    assert {s.name for s in TRL_SYMBOLS if "__init__." not in s.name} == known.keys()


def test_settings_that_act_on_a_weight_are_named():
    settings = {
        "scale_rewards": "batch",
        "multi_objective_aggregation": "normalize_then_sum",
        "loss_type": "grpo",
        "top_p": 0.9,
        "top_k": 50,
        "min_p": None,
        "repetition_penalty": 1.0,
        "off_policy_mask_threshold": 0.5,
        "top_entropy_quantile": 0.2,
        "mask_truncated_completions": True,
        "beta": 0.04,
        "use_adaptive_entropy": False,
    }
    found = {flag.name: flag.severity for flag in flags(settings)}
    assert found == {
        "scale_rewards": "replaced",
        "multi_objective_aggregation": "refused",
        "loss_type": "changes the weight",
        "top_p": "changes the weight",
        "top_k": "changes the weight",
        "off_policy_mask_threshold": "changes the weight",
        "top_entropy_quantile": "changes the weight",
        "mask_truncated_completions": "changes the weight",
        "beta": "changes the weight",
    }


@pytest.fixture
def own_trl(tmp_path, monkeypatch):
    """A package called trl with nothing of TRL but two settings, and no transformers."""
    folder = tmp_path / "trl"
    (folder / "trainer").mkdir(parents=True)
    config = (
        'class GRPOConfig:\n    loss_type: str = field(default="dapo")\n    top_p: float = 1.0\n'
    )
    (folder / "trainer" / "grpo_config.py").write_text(config)
    places = {"trl": folder}
    monkeypatch.setattr("gradmass.engines.doctor.package_folder", places.get)
    monkeypatch.setattr("gradmass.engines.doctor.installed_version", lambda name: None)
    return folder


def test_the_command_says_what_is_broken_and_exits_with_1(own_trl, tmp_path, capsys):
    (tmp_path / "run.yaml").write_text("top_p: 0.9\nmodel_name_or_path: some/model\n")
    assert command.main(["trl", "--config", str(tmp_path / "run.yaml")]) == 1
    out = capsys.readouterr().out
    assert "trl: broken (trl not installed, transformers not installed)" in out
    assert "there is no trainer/grpo_trainer.py" in out
    assert "transformers" in out
    assert "is not installed: pip install 'gradmass[trl]'" in out
    assert "top_p = 0.9 (changes the weight)" in out
    assert "loss_type = 'dapo' (changes the weight)" in out


def test_the_command_prints_json(own_trl, capsys):
    assert command.main(["trl", "--json"]) == 1
    ((diagnosis),) = json.loads(capsys.readouterr().out)
    assert (diagnosis["engine"], diagnosis["status"]) == ("trl", "broken")
    assert diagnosis["flags"] == []
    assert {"symbol", "status", "detail"} == diagnosis["findings"][0].keys()


def test_without_a_name_an_engine_that_is_not_installed_is_no_failure(monkeypatch, capsys):
    monkeypatch.setattr(command, "package_folder", lambda name: None)
    assert command.main([]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{name}: not installed (pip install 'gradmass[{name}]')" for name in ("trl", "verl")
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trk"], "unknown engine 'trk'; did you mean 'trl'"),
        (["--config", "no.yaml"], "there is no file no.yaml"),
    ],
)
def test_arguments_that_cannot_be_used_are_refused(arguments, message):
    with pytest.raises(UsageError, match=message):
        command.main(arguments)


@pytest.mark.parametrize(
    ("name", "text"),
    [("a.yaml", "a: [1"), ("a.json", "{"), ("a.toml", "a = "), ("b.yaml", "- 1\n")],
)
def test_settings_that_do_not_parse_are_refused(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    with pytest.raises(UsageError, match=r"does not parse|no table of settings"):
        command.read_config(tmp_path / name)


def test_settings_are_read_from_toml_and_json(tmp_path):
    (tmp_path / "a.toml").write_text("top_p = 0.5")
    (tmp_path / "a.json").write_text('{"top_p": 0.5}')
    assert command.read_config(tmp_path / "a.toml") == {"top_p": 0.5}
    assert command.read_config(tmp_path / "a.json") == {"top_p": 0.5}


def test_without_trl_the_engine_says_so_in_one_line():
    code = "import sys; sys.modules['trl'] = None\nfrom gradmass.engines.trl import {}"
    for name in ("WeightedGRPOTrainer", "make_trainer as m; m()"):
        done = subprocess.run(
            [sys.executable, "-c", code.format(name)], capture_output=True, text=True, check=False
        )
        last = done.stderr.splitlines()[-1]
        assert "needs TRL" in last
        assert "pip install 'gradmass[trl]'" in last


@pytest.mark.trl
@pytest.mark.parametrize("version", ["0.27.0", "1.0.0", "1.5.0", "1.10.0", "1.15.0", "1.16.0"])
def test_every_tried_release_of_trl_is_known(version, tmp_path):
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "--no-deps", "-d", str(tmp_path), f"trl=={version}"], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(tmp_path / "unpacked")
    diagnosis = diagnose("trl", {}, tmp_path / "unpacked" / "trl")
    assert [f for f in diagnosis.findings if f.status != "known"] == []
    assert "loss_type" in {flag.name for flag in diagnosis.flags}


@pytest.mark.trl
def test_a_release_from_before_the_hooks_is_broken_by_name(tmp_path):
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "--no-deps", "-d", str(tmp_path), "trl==0.18.2"], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(tmp_path / "unpacked")
    broken = {
        f.symbol.rpartition(".")[2]
        for f in diagnose("trl", folder=Path(tmp_path / "unpacked" / "trl")).findings
        if f.status == "broken"
    }
    assert "_calculate_rewards" in broken


@pytest.mark.trl
def test_the_installed_trl_is_known(capsys):
    assert command.main(["trl"]) == 0
    assert "broken" not in capsys.readouterr().out
