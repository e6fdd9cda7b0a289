"""Looking at a run changes nothing of it; what looking remembers survives an interruption."""

from pathlib import Path

import pytest

from gradmass.config import Recipe
from gradmass.record import Run, RunWriter
from gradmass.tables import load_recipe, to_tables
from gradmass.training.train import train

TINY = [
    "--train.steps=8",
    "--train.num_problems=6",
    "--train.prompts_per_step=4",
    "--train.group_size=4",
    "--train.checkpoint_every=3",
    "--eval.every=0",
    "--eval.num_problems=2",
    "--eval.num_samples=0",
    "--optim.lr=1e-3",
]
OFTEN = ["--probe.every=2", "--probe.rank_every=3", '--probe.weights=["power", "reinforce"]']
LOOKED = ("gradient/", "signal/", "states/", "rank/m", "entropy/change", "time/", "warnings")


class Died(Exception):
    """The process was killed."""


def run_to_end(flags, path, *, die_at=()):
    recipe = load_recipe(Recipe, None, [*TINY, *flags])
    writer = RunWriter.create(path, {"label": "x", "recipe": to_tables(recipe)}, {})
    for death in (*die_at, None):

        def on_row(row, death=death):
            if row["step"] == death:
                raise Died

        try:
            assert train(recipe, writer, on_row)
        except Died:
            writer.close()
            writer = RunWriter.resume(path, {})
    writer.close()
    return Run(path)


def without(rows, prefixes):
    return [{k: v for k, v in row.items() if not k.startswith(prefixes)} for row in rows]


KINDS = {
    "grpo-kl": ["--weight=grpo", "--loss.kl_coef=0.1"],
    "lag-and-reuse": [
        *("--weight=reinforce", "--train.updates_per_batch=2", "--train.policy_lag=2"),
        *("--loss.aggregation=token-mean", "--optim.type=sgd"),
    ],
}


@pytest.fixture(
    scope="module", params=["grpo-kl", pytest.param("lag-and-reuse", marks=pytest.mark.slow)]
)
def seen(request, tmp_path_factory):
    """A run that is looked at often, and its flags."""
    flags = KINDS[request.param]
    return run_to_end([*flags, *OFTEN], tmp_path_factory.mktemp("seen") / "run"), flags


def test_a_run_is_equal_to_the_last_bit_with_probes_and_without(seen, tmp_path):
    run, flags = seen
    unseen = run_to_end([*flags, "--probe.every=0", "--probe.rank_every=0"], tmp_path / "unseen")
    assert without(run.metrics, LOOKED) == without(unseen.metrics, LOOKED)
    assert list(run.rollouts()) == list(unseen.rollouts())
    assert run.evaluations == unseen.evaluations
    for file in ("model.safetensors", "trainer.pt"):
        assert (run.model_dir / file).read_bytes() == (unseen.model_dir / file).read_bytes()
    assert [row["step"] for row in run.metrics if "signal/snr" in row] == [1, 2, 4, 6, 8]
    assert [row["step"] for row in run.diagnostics if row["kind"] == "spectrum"] == [1, 3, 6]
    assert not any("signal/snr" in row for row in unseen.metrics)
    assert {row["kind"] for row in unseen.diagnostics} == {"difficulty"}


def test_an_interrupted_run_sees_what_an_uninterrupted_one_sees(seen, tmp_path):
    run, flags = seen
    broken = run_to_end([*flags, *OFTEN], tmp_path / "broken", die_at=(5, 7))
    assert without(broken.metrics, ("time/",)) == without(run.metrics, ("time/",))
    assert broken.diagnostics == run.diagnostics


@pytest.mark.parametrize("seen", ["grpo-kl"], indirect=True)
def test_every_metric_of_a_run_is_on_the_page_of_metrics(seen):
    run, _ = seen
    page = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
    keys = {key for row in run.metrics for key in row if "/" in key}
    keys = {key for key in keys if key.split("/")[0] not in ("test", "ood", "time", "weight")}
    assert [key for key in sorted(keys) if f"`{key}`" not in page] == []
    for row in run.diagnostics:
        for key in [*row, *(row["matrices"][0] if row["kind"] == "spectrum" else [])]:
            assert f"`{key}`" in page or key in ("step", "name", "shape", "r_1_noise"), key


@pytest.mark.parametrize("seen", ["grpo-kl"], indirect=True)
def test_what_a_look_records_is_complete(seen):
    run, _ = seen
    row = run.metrics[2]
    for key in (
        *("mass/sign_ratio", "mass/sign_ratio_fig4", "mass/reached_positive"),
        *("mass/reached_negative", "mass/clipped_positive", "mass/clipped_negative"),
        *("entropy/drift", "entropy/covariance", "entropy/covariance_within"),
        *("entropy/change_nats", "groups/effective", "rollout/effective"),
        *("gradient/right_norm", "gradient/wrong_norm", "gradient/cosine", "gradient/kl_norm"),
        *("gradient/right_square", "gradient/wrong_square", "signal/snr", "signal/quality"),
        *("states/rho_perp_right", "states/rho_perp_wrong", "rank/m1_norm", "rank/m2_norm"),
    ):
        assert key in row, key
    difficulty, signal, *_ = (line for line in run.diagnostics if line["step"] == 2)
    assert sum(difficulty["solve_rate_counts"]) == 4
    for side in ("positive", "negative"):
        total = sum(difficulty[f"{side}_mass_by_decile"])
        assert total == pytest.approx(row[f"mass/{side}"], abs=1e-12)
    assert [weight["label"] for weight in signal["weights"]] == ["grpo", "power", "reinforce"]
    # On policy under the constant aggregation the masses reach the gradient whole.
    first = run.metrics[1]
    for side in ("positive", "negative"):
        assert first[f"mass/reached_{side}"] == pytest.approx(first[f"mass/{side}"], rel=1e-5)
    # The measured change is that of the entropy after the update, at the same contexts.
    assert 0 < abs(first["entropy/change_nats"]) < 0.5


def test_stale_batches_lose_mass_to_clipping_by_sign(tmp_path):
    flags = ["--weight=grpo", "--train.updates_per_batch=4", "--optim.lr=3e-3"]
    rows = run_to_end(flags, tmp_path / "run").metrics[1:]
    fresh, stale = ([row for row in rows if row["step"] % 4 == step] for step in (1, 0))
    for row in fresh:
        assert row["mass/clipped_positive"] in (0.0, None)
        assert row["mass/clipped_negative"] in (0.0, None)
    for side in ("positive", "negative"):
        shares = [row[f"mass/clipped_{side}"] for row in stale]
        assert any(share is not None and share > 0.02 for share in shares), side
        assert all(share is None or 0 <= share <= 1 for share in shares)
