"""What verl's rows mean and what its configuration says, without verl: by hand."""

import sys

import numpy as np
import pytest

from gradmass.commands import doctor as command
from gradmass.engines.upstream import known_bodies
from gradmass.engines.verl import AfterImport, install
from gradmass.engines.verl_batch import evicted, read_results, rollouts, sessions
from gradmass.engines.verl_config import VERL_SYMBOLS, flags
from gradmass.engines.verl_settings import Settings, read_settings
from gradmass.engines.weigher import Weigher
from gradmass.types import UsageError
from gradmass.weights import WEIGHTS

GRPO = Settings((WEIGHTS["grpo"](),))


def test_a_session_is_its_last_output_in_any_order_of_rows():
    keys = ["u_1_1", "u_0_0", "u_1_0", "v_0_0", "u_1_10", "u_1_2"]
    last_R, session_B = sessions(keys, [key[0] for key in keys])
    assert last_R.tolist() == [4, 1, 3]
    assert session_B.tolist() == [0, 1, 0, 2, 0, 0]


def literal_sessions(keys):
    """The definition, row by row."""
    last, names = {}, []
    for row, key in enumerate(keys):
        name, output = key[: key.rindex("_")], int(key[key.rindex("_") + 1 :])
        names.append(name)
        if name not in last or output > last[name][0]:
            last[name] = (output, row)
    return [row for _, row in last.values()], [list(last).index(name) for name in names]


@pytest.mark.parametrize(
    "keys",
    [
        ["u_0_0", "u_1_0", "v_0_0"],
        ["u_0_0", "u_0_0", "v_0_0"],  # the same row twice
        ["u_0_0", "u_0_00", "u_00_0"],
        ["u_0_0", "u_0_1", "v_0_10", "v_0_9", "v_0_99999999999999999999"],
        ["my_uid_0_0", "my_uid_1_0", "u_0_0", "u_0_1"],
        ["__0", "_0_0", "___0"],
        ["日本_1_0", "日本_0_0", "日本_0_1"],
        ["u_0_٣", "u_0_0"],  # a digit of another script
        ["u\n_a\nb_0", "u\n_a\nb_1"],
        ["u_0_1", "u_1_0"],  # the first output is not there
        ["u_0_3", "u_1_3"],
        ["a_0_0"] + [f"{chr(97 + i % 7)}_{i % 3}_{i % 5}" for i in range(60)],
        [],
    ],
)
def test_sessions_are_told_by_all_but_the_last_part_of_a_name(keys):
    last_R, session_B = sessions(keys, [key.rsplit("_", 2)[0] for key in keys])
    assert (last_R.tolist(), session_B.tolist()) == literal_sessions(keys)


@pytest.mark.parametrize("key", ["u", "u_0", "u_0_x", "", "u__", "u_0_-1", "u_0_0_", "u0_0"])
def test_a_row_with_another_name_is_refused_alone_and_among_others(key):
    for others in ([], ["u_0_0", "u_1_0"], ["u_0_0", "u_0_1"]):
        for keys in ([key, *others], [*others, key]):
            with pytest.raises(UsageError, match=f"row '{key}' .* is not named UID_SESSION_OUTPUT"):
                sessions(keys, ["u"] * len(keys))


def test_a_row_named_after_another_uid_than_its_own_is_refused():
    with pytest.raises(UsageError, match="row 'v_0_0' of verl's batch, of uid 'u', is not named"):
        sessions(["u_0_0", "v_0_0"], ["u", "u"])


def test_a_batch_counts_sessions_and_leaves_padding_and_errors_out():
    keys = ["u_0_0", "u_0_1", "u_1_0", "u_2_0", "pad9_0_0"]
    batch, session_B = rollouts(
        np.array([0.0, 1.0, 0.0, 0.0, 0.0]),
        ["u", "u", "u", "u", "pad9"],
        np.array([3, 4, 5, 0, 1]),
        GRPO,
        keys=keys,
        results=read_results(
            [{}, {}, {"verdict": "wrong"}, {"verdict": "error"}, {}], success=None
        ),
    )
    assert batch.rewards_B.tolist() == [1, 0, 0, 0]
    assert batch.mask_B.tolist() == [True, True, False, False]
    assert batch.successes_B.tolist() == [True, False, False, False]
    assert batch.lengths_B.tolist() == [7, 5, 0, 1]
    assert batch.has_tokens_B.tolist() == [True, True, False, True]
    assert session_B.tolist() == [0, 0, 1, 2, 3]


def test_a_verdict_of_none_is_left_out_and_one_of_words_is_refused():
    judged = Settings(GRPO.weights, success="acc", success_at=0.5)
    infos = [{"acc": True}, {"acc": None}, {"acc": np.float32(0.5)}, {"acc": 0}]
    batch, _ = rollouts(np.zeros(4), "aaaa", np.ones(4), judged, results=read_results(infos, "acc"))
    assert batch.mask_B.tolist() == [True, False, True, True]
    assert batch.successes_B.tolist() == [True, False, True, False]
    with pytest.raises(UsageError, match="result has 'yes' there, no number"):
        rollouts(
            np.zeros(1), "a", np.ones(1), judged, results=read_results([{"acc": "yes"}], "acc")
        )
    with pytest.raises(UsageError, match=r"no such key \(it has score\)"):
        rollouts(np.zeros(1), "a", np.ones(1), judged, results=read_results([{"score": 1}], "acc"))


def test_words_do_not_matter_where_no_verdict_is_read():
    judged = Settings(GRPO.weights, success="acc", success_at=0.5)
    infos = [{"acc": "to come"}, {"acc": 1}, {"acc": "timeout", "verdict": "error"}]
    batch, _ = rollouts(
        np.zeros(3),
        ["u", "u", "u"],
        np.ones(3),
        judged,
        keys=["u_0_0", "u_0_1", "u_1_0"],
        results=read_results(infos, "acc"),
    )
    assert batch.mask_B.tolist() == [True, False]
    assert batch.right_B.tolist() == [True, False]


def test_an_empty_batch_is_empty():
    batch, session_B = rollouts(np.zeros(0), [], np.zeros(0), GRPO, keys=[])
    assert (len(batch.rewards_B), len(session_B)) == (0, 0)


def test_evicted_groups_are_counted_by_the_value_they_share():
    assert evicted({0.0: 3, 1.0: 2}, 8, GRPO) == (16, 40)
    assert evicted(None, 8, GRPO) == (0, 0)
    shaped = Settings(GRPO.weights, success="acc", success_at=0.5)
    assert evicted({0.25: 1, 0.5: 1, 1.0: 1}, 4, shaped) == (8, 12)


def test_evicted_groups_move_the_solve_rate_of_fade():
    fade = Weigher([WEIGHTS["fade"](ema=1.0)], "weight", frozenset())
    batch, _ = rollouts(np.array([1.0, 0.0]), ["a", "a"], np.ones(2), GRPO)
    _, row = fade.weigh(
        type(batch)(**{**vars(batch), "evicted": (0, 8)}), is_training=True, entropy_nats=1.0
    )
    assert row["rollout/solve_rate"] == 0.1
    assert fade.states[0]["alpha"]["solve_rate_ema"] == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("algorithm", "labels", "mode"),
    [
        ({"adv_estimator": "gradmass_fade"}, ["fade"], "weight"),
        (
            {"adv_estimator": "gradmass", "gradmass": {"weight": "power:alpha=4"}},
            ["power(alpha=4.0)"],
            "weight",
        ),
        (
            {
                "adv_estimator": "grpo",
                "gradmass": {"mode": "shadow", "weight": ["fade", {"type": "power", "alpha": 3}]},
            },
            ["fade", "power(alpha=3.0)"],
            "shadow",
        ),
    ],
)
def test_settings_name_their_weights(algorithm, labels, mode):
    settings = read_settings(algorithm)
    assert ([weight.label for weight in settings.weights], settings.mode) == (labels, mode)


@pytest.mark.parametrize(
    ("estimator", "table", "message"),
    [
        ("gradmass_fade", {"mode": "on"}, "mode must be 'weight' or 'shadow', got 'on'"),
        ("gradmass_fade", {"weight": "grpo"}, "needs a table of fields of fade, got 'grpo'"),
        ("gradmass_fade", {"weight": {"type": "grpo"}}, "say which"),
        ("gradmass_fade", {"weight": {"ema": "x"}}, "ema must be a number"),
        ("gradmass_fade", [], None),
        ("gradmass_fade", "fade", "needs a table of fields, got 'fade'"),
        ("gradmass_fade", {"success": 1}, "success must name a key"),
        ("gradmass_fade", {"success_at": True}, "success_at must be a number, got True"),
        ("gradmass_fada", {}, "unknown weight 'fada'; did you mean 'fade'"),
        ("gradmass", {"weight": {"alpha": 1}}, "needs type, the name of a weight"),
        ("grpo", {"mode": "shadow"}, "weight is missing"),
        (None, {}, "needs an estimator gradmass_NAME"),
    ],
)
def test_settings_that_do_not_fit_are_refused_in_one_line(estimator, table, message):
    algorithm = {"adv_estimator": estimator, "gradmass": table}
    if message is None:
        assert read_settings(algorithm).mode == "weight"
        return
    with pytest.raises(UsageError, match=message) as caught:
        read_settings(algorithm)
    assert "\n" not in str(caught.value)


def test_settings_of_verl_that_act_on_a_weight_are_named():
    config = {
        "algorithm": {
            "adv_estimator": "gradmass_fade",
            "use_kl_in_reward": True,
            "norm_adv_by_std_in_grpo": True,
            "filter_groups": {"enable": True},
            "rollout_correction": {"bypass_mode": True, "rollout_is": "token", "rollout_rs": None},
        },
        "actor_rollout_ref": {
            "actor": {
                "loss_agg_mode": "token-mean",
                "policy_loss": {"loss_mode": "gspo"},
                "use_kl_loss": False,
                "entropy_coeff": 0.001,
            },
            "rollout": {"top_p": 1.0, "top_k": 50},
        },
        "trainer": {"v1": {"trainer_mode": "gradmass_sync"}},
    }
    assert {flag.name.rpartition(".")[2]: flag.severity for flag in flags(config)} == {
        "use_kl_in_reward": "refused",
        "norm_adv_by_std_in_grpo": "replaced",
        "enable": "changes the weight",
        "bypass_mode": "changes the weight",
        "rollout_is": "changes the weight",
        "loss_agg_mode": "changes the weight",
        "loss_mode": "changes the weight",
        "entropy_coeff": "changes the weight",
        "top_k": "changes the weight",
    }
    config["trainer"]["v1"]["trainer_mode"] = "sync"
    assert "algorithm.adv_estimator" in {flag.name for flag in flags(config)}


def test_every_symbol_of_verl_has_a_known_body():
    known = known_bodies()["verl"]
    assert {symbol.name for symbol in VERL_SYMBOLS} == known.keys()


@pytest.fixture
def own_verl(tmp_path, monkeypatch):
    """A package called verl as it was before its new trainer."""
    folder = tmp_path / "verl"
    for name in ("core_algos", "ray_trainer"):
        file = folder / "trainer" / "ppo" / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("def get_adv_estimator_fn(name_or_enum):\n    return 1\n")
    places = {"verl": folder}
    monkeypatch.setattr("gradmass.engines.doctor.package_folder", places.get)
    monkeypatch.setattr("gradmass.engines.doctor.installed_version", lambda name: "0.5.0")
    return folder


def test_the_doctor_tells_absent_from_broken(own_verl, tmp_path, capsys):
    (tmp_path / "run.yaml").write_text("algorithm:\n  use_kl_in_reward: true\n")
    assert command.main(["verl", "--config", str(tmp_path / "run.yaml")]) == 1
    out = capsys.readouterr().out
    assert "verl: broken (verl 0.5.0)" in out
    assert "core_algos.py has no register_adv_est" in out
    assert "PPOTrainer._compute_advantage" in out
    assert "absent: there is no trainer/ppo/v1/trainer_base.py" in out
    assert "algorithm.use_kl_in_reward = True (refused)" in out


def test_the_plug_in_waits_for_a_module_and_for_that_one_alone(tmp_path, monkeypatch):
    (tmp_path / "late_engine.py").write_text("registered = []\n")
    (tmp_path / "late_hook.py").write_text(
        "def register():\n    import late_engine\n    late_engine.registered.append(1)\n"
    )
    (tmp_path / "other_engine.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("gradmass.engines.verl.AFTER", {"late_engine": "late_hook"})
    install()
    install()
    mine = [f for f in sys.meta_path if isinstance(f, AfterImport) and f.name == "late_engine"]
    assert len(mine) == 1
    import other_engine  # noqa: F401

    assert mine[0] in sys.meta_path
    import late_engine

    assert late_engine.registered == [1]
    assert mine[0] not in sys.meta_path
    install()
    assert late_engine.registered == [1, 1]
