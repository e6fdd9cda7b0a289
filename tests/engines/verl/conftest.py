"""verl's dispatcher, its trainer and its TransferQueue, for rewards that a test writes itself.

Runs in .venv-verl (make test-verl). Nothing of verl is imported before a fixture is used.
"""

import copy
import functools
import os
import uuid
from pathlib import Path

import numpy as np
import pytest
import torch

os.environ["HF_HUB_OFFLINE"] = "1"
torch.set_num_threads(1)
TESTS = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def from_the_top(monkeypatch):
    monkeypatch.chdir(TESTS.parent)  # golden/weight_fields.json names a file from here


@pytest.fixture(scope="session")
def compose():
    """A run's configuration as verl composes it from overrides."""
    from hydra import compose as hydra_compose
    from hydra import initialize_config_module

    @functools.cache
    def once(overrides):
        with initialize_config_module("verl.trainer.config", version_base=None):
            return hydra_compose("ppo_trainer", overrides=list(overrides))

    return lambda *overrides: copy.deepcopy(once(overrides))


def rows(rewards, uids=None, lengths=None, width=5):
    """Token rewards, mask and uids of a batch: the reward on the last of each row's tokens."""
    lengths = [1 + i % width for i in range(len(rewards))] if lengths is None else lengths
    mask_BT = (torch.arange(width) < torch.tensor(lengths)[:, None]).long()
    rewards_BT = torch.zeros(len(rewards), width)
    for row, (reward, length) in enumerate(zip(rewards, lengths, strict=True)):
        rewards_BT[row, length - 1] = reward
    return rewards_BT, mask_BT, np.array(uids, dtype=object)


@pytest.fixture
def advantages(compose):
    """The advantages [B, T] that verl's own dispatcher returns for an estimator."""
    from verl import DataProto
    from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY
    from verl.trainer.ppo.ray_trainer import compute_advantage

    from gradmass.engines.verl_estimators import Estimator

    for estimator in ADV_ESTIMATOR_REGISTRY.values():
        if isinstance(estimator, Estimator):  # one a process: it may hold another test's state
            estimator._alone, estimator.is_kept = None, False

    def build(estimator, rewards, uids, gradmass=None, lengths=None, **kwargs):
        rewards_BT, mask_BT, uids_B = rows(rewards, uids, lengths)
        config = compose("+algorithm.gradmass={}")
        config.algorithm.gradmass = gradmass or {}
        data = DataProto.from_dict(
            tensors={"token_level_rewards": rewards_BT.clone(), "response_mask": mask_BT},
            non_tensors={"uid": uids_B},
        )
        found = compute_advantage(data, estimator, config=config.algorithm, **kwargs)
        return found.batch["advantages"], mask_BT

    return build


@pytest.fixture(scope="session")
def queue(compose):
    """A running TransferQueue with two storage units, in Ray with eight logical CPUs."""
    import ray
    import transfer_queue as tq

    # verl forks nothing here; the token is Ray's own, of this cluster alone.
    ray.init(num_cpus=8, include_dashboard=False, log_to_driver=False)
    config = compose("transfer_queue.backend.SimpleStorage.num_data_storage_units=2")
    config.transfer_queue.enable = True
    tq.init(config.transfer_queue)
    yield tq
    tq.close()
    ray.shutdown()


@pytest.fixture
def put(queue):
    """Put rollouts into the queue as verl's agent loop does; returns the batch."""
    from transfer_queue import KVBatchMeta
    from verl.utils.tensordict_utils import list_of_dict_to_tensordict

    def build(rewards, sessions, infos=None, entropies=None, version=0):
        """``sessions``: (prompt, session, output) of each row."""
        uids = {prompt: uuid.uuid4().hex for prompt, *_ in sessions}
        keys = [f"{uids[p]}_{session}_{output}" for p, session, output in sessions]
        fields, tags = [], []
        for row, (prompt, *_) in enumerate(sessions):
            length = 2 + row % 3
            scores = torch.zeros(length)
            scores[-1] = rewards[row]
            entropy = 0.5 if entropies is None else entropies[row]
            fields.append(
                {
                    "uid": uids[prompt],
                    "rm_scores": scores,
                    "response_mask": torch.ones(length, dtype=torch.int64),
                    "old_log_probs": torch.full((length,), -float(entropy)),
                    "entropy": torch.full((length,), float(entropy)),
                    "extra_fields": {"reward_extra_info": {} if infos is None else infos[row]},
                }
            )
            tags.append({"status": "success", "seq_len": length, "min_global_steps": version})
        fields = list_of_dict_to_tensordict(fields)
        queue.kv_batch_put(keys=keys, fields=fields, tags=tags, partition_id="train")
        return KVBatchMeta(partition_id="train", keys=keys, tags=tags)

    return build


class Workers:
    """In the place of verl's worker group: notes what it is asked."""

    def __init__(self):
        self.updates, self.saved, self.loaded = 0, [], []

    def update_actor(self, batch):
        from verl.utils.tensordict_utils import get_tensordict

        self.updates += 1
        return get_tensordict({}, {"metrics": {"mfu": [0.5], "loss": [1.0]}})

    def save_checkpoint(self, path, *_, **__):
        Path(path).mkdir(parents=True)
        self.saved.append(path)

    def load_checkpoint(self, local_path, **_):
        self.loaded.append(local_path)


class Loader:
    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        assert state == {}


@pytest.fixture
def trainer(compose, tmp_path):
    """A trainer of verl by name, as verl's runner makes it, without GPUs behind it."""
    from verl.trainer.ppo.v1 import get_trainer_cls

    def build(name, estimator, *overrides, n=4):
        config = compose(
            f"algorithm.adv_estimator={estimator}",
            f"trainer.v1.trainer_mode={name}",
            f"actor_rollout_ref.rollout.n={n}",
            "actor_rollout_ref.rollout.name=vllm",
            f"trainer.default_local_dir={tmp_path / 'checkpoints'}",
            *overrides,
        )
        made = get_trainer_cls(name)(config)
        made.actor_rollout_wg, made.train_dataloader = Workers(), Loader()
        made.global_steps, made.total_training_steps = 1, 10
        made.distillation_config = None
        return made

    return build
