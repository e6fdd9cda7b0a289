"""Releases of verl, unpacked and not installed: what the doctor says, and their own dispatcher."""

import subprocess
import sys
import zipfile

import pytest

from gradmass.commands import doctor as command
from gradmass.engines.doctor import diagnose

pytestmark = [pytest.mark.verl, pytest.mark.filterwarnings("ignore")]
RELEASES = ["0.6.1", "0.7.0", "0.7.1", "0.8.0", "0.9.0", "0.9.1"]
DISPATCH = """
import transformers
# verl 0.6.1 is of a time when transformers had this name for a class that nothing here uses.
transformers.AutoModelForVision2Seq = transformers.AutoModelForImageTextToText
import numpy as np
import torch
import verl
from omegaconf import OmegaConf
from verl import DataProto
from verl.trainer.ppo.ray_trainer import compute_advantage
assert verl.__file__.startswith(FOLDER), verl.__file__
data = DataProto.from_dict(
    tensors={
        "token_level_rewards": torch.tensor([[0, 1.0], [0, 0], [0, 0], [0, 0]]),
        "response_mask": torch.tensor([[1, 1], [1, 1], [1, 0], [1, 1]]),
    },
    non_tensors={"uid": np.array(["a", "a", "a", "b"], dtype=object)},
)
config = OmegaConf.create({"gradmass": {"weight": {"alpha": 1.0}}})
found = compute_advantage(data, "gradmass_power", config=config).batch["advantages"]
from gradmass.weights import WEIGHTS
expected, _ = WEIGHTS["power"](alpha=1.0).weigh(torch.tensor([1.0, 0, 0, 0]), list("aaab"))
assert torch.allclose(found, expected[:, None] * data.batch["response_mask"], atol=1e-6), found
assert found.abs().sum() > 1
print("dispatched")
"""


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    """The folder of a release."""
    folder = tmp_path_factory.mktemp("releases")

    def get(version):
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
        place = folder / version
        if not place.exists():
            subprocess.run([*pip, "--no-deps", "-d", str(place), f"verl=={version}"], check=True)
            (wheel,) = place.glob("*.whl")
            zipfile.ZipFile(wheel).extractall(place)
        return place

    return get


@pytest.mark.parametrize("version", RELEASES)
def test_every_tried_release_of_verl_is_known(version, unpacked):
    diagnosis = diagnose("verl", {}, unpacked(version) / "verl")
    assert diagnosis.status == "known"
    absent = {f.symbol.partition(":")[0] for f in diagnosis.findings if f.status == "absent"}
    if version >= "0.9.1":
        assert absent == set()
    elif version == "0.9.0":
        assert absent == {"verl/trainer/ppo/checkpoint_callback.py"}
    else:
        assert "verl/trainer/ppo/v1/trainer_base.py" in absent
    assert "actor_rollout_ref.actor.loss_agg_mode" in {flag.name for flag in diagnosis.flags}


def test_a_release_from_before_the_registry_is_broken_by_name(unpacked):
    findings = diagnose("verl", folder=unpacked("0.3.0.post1") / "verl").findings
    names = {f.symbol.rpartition(":")[2] for f in findings if f.status == "broken"}
    assert "register_adv_est" in names


@pytest.mark.parametrize("version", ["0.6.1", "0.8.0"])
def test_the_dispatcher_of_an_older_release_reaches_the_estimators(version, unpacked):
    folder = unpacked(version)
    code = f"import sys; FOLDER = {str(folder)!r}; sys.path.insert(0, FOLDER)\n{DISPATCH}"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        env={
            "PATH": "/usr/bin:/bin",
            "HOME": str(folder),
            "OMP_NUM_THREADS": "1",
            # Before 0.9.0 there are no entry points.
            "VERL_USE_EXTERNAL_MODULES": "gradmass.engines.verl",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert "dispatched" in done.stdout, done.stderr[-3000:]


def test_the_installed_verl_is_known(capsys):
    assert command.main(["verl"]) == 0
    out = capsys.readouterr().out
    assert "broken" not in out
    assert "absent" not in out
