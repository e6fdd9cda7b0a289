"""A real run of TRL on a CPU, with its completions logged, is analysed without any help."""

import json

import pyarrow.parquet as pq
import pytest

from gradmass.cli import main

pytestmark = [
    pytest.mark.trl,
    # TRL's own, of transformers and torch.
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


@pytest.fixture(scope="module")
def run(tmp_path_factory, shipped):
    """Four steps of GRPO with two reward functions, one of which has no opinion now and then."""
    import copy

    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    def has_plus(completions, **_):
        return [float("+" in text) for text in completions]

    def brevity(completions, **_):
        return [None if len(text) > 8 else 0.25 for text in completions]

    folder = tmp_path_factory.mktemp("trl")
    model, tokenizer = shipped
    trainer = GRPOTrainer(
        model=copy.deepcopy(model),
        processing_class=tokenizer,
        reward_funcs=[has_plus, brevity],
        args=GRPOConfig(
            output_dir=str(folder),
            per_device_train_batch_size=16,
            num_generations=4,
            max_completion_length=16,
            max_steps=4,
            logging_steps=2,
            log_completions=True,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            top_k=0,
            disable_tqdm=True,
            seed=3,
        ),
        train_dataset=Dataset.from_list([{"prompt": f"{i},2,3=7:"} for i in range(1, 65)]),
    )
    trainer.train()
    return folder, trainer.state.log_history


def test_what_trl_writes_is_read_as_it_was_meant(run, capsys):
    folder, history = run
    with pytest.raises(SystemExit) as ended:
        main(["analyze", str(folder), "--json"])
    assert ended.value.code == 0
    document = json.loads(capsys.readouterr().out)
    tables = [pq.read_table(file).to_pydict() for file in sorted(folder.rglob("*.parquet"))]
    assert document["log"]["format"] == "trl"
    assert document["log"]["reward_factors"] == {"has_plus": 1.0, "brevity": 1.0}
    assert document["log"]["verdicts"] == "has_plus above 0"
    assert document["log"]["group_sizes"] == {"4": sum(len(t["step"]) for t in tables) // 4}
    right = [value for table in tables for value in table["has_plus"]]
    assert document["solve_rates"]["mean"] == pytest.approx(sum(right) / len(right))
    nulls = sum(value is None for table in tables for value in table["brevity"])
    assert document["rewards"]["functions"]["brevity"]["num_null"] == nulls
    # TRL divides by the deviation of the group, and adds 1e-4 to it.
    used = document["weights"][0]
    assert used["label"] == "as logged"
    assert used["like"]["weight"] == "grpo_std"
    assert used["like"]["factor"] == pytest.approx(1, abs=5e-3)
    advantages = [value for table in tables for value in table["advantage"]]
    m_S = sum(a for a, r in zip(advantages, right, strict=True) if r) / len(right)
    assert used["m_S"] == pytest.approx(m_S)
    logged = [row["rewards/has_plus/mean"] for row in history if "loss" in row]
    assert len(logged) == 2
