"""A policy weight in torchrl: its own grouping, with the weights of ``weigh_groups``.

    pip install torchrl
    python examples/torchrl_groups.py

``MCAdvantage`` collects trajectories until the group of a prompt is whole, then calls
``_trajectory_advantage``; that is the one method to replace. It sees a group at a time, so a weight
that follows the run (``fade``) moves its averages once a group: give it ``ema`` divided by the
groups of a batch. Groups that ``keep_return_bounds`` drops are never weighed, so the solve rate is
that of the groups that are kept: leave it at None.
"""

import torch
from tensordict import TensorDict
from torchrl.objectives.llm import MCAdvantage

from gradmass.engines.groups import weigh_groups
from gradmass.types import State, UsageError
from gradmass.weights import WEIGHTS, Weight


class WeightedAdvantage(MCAdvantage):
    """torchrl's MCAdvantage with the advantages of a policy weight."""

    def __init__(self, weight: Weight, grpo_size: int, **kwargs) -> None:
        super().__init__(grpo_size, trajectory_return="sum", **kwargs)
        if self.keep_return_bounds is not None:
            raise UsageError("keep_return_bounds hides groups from the weight: set it to None")
        self.weight, self.weight_state = weight, weight.init()

    def _trajectory_advantage(self, trajs: list[TensorDict]) -> TensorDict:
        rewards = [traj.get(self.rewards_key) for traj in trajs]
        returns = [float(reward.sum()) for reward in rewards]
        (weights,), self.weight_state = weigh_groups(self.weight, [returns], self.weight_state)
        self.selected_trajectories += len(trajs)
        for traj, reward, value in zip(trajs, rewards, weights.tolist(), strict=True):
            traj.set(self.advantage_key, torch.full_like(reward, value))
        return self._cat_tensordicts(trajs, -1)

    def state_dict(self, *args, **kwargs) -> dict[str, State]:
        """The state of the weight: plain JSON, to be saved beside the model."""
        return {"weight_state": self.weight_state}

    def load_state_dict(self, state_dict: dict[str, State], *args, **kwargs) -> None:
        """Go on where ``state_dict`` was taken."""
        self.weight_state = state_dict["weight_state"]


def trajectory(prompt: int, rewards: list[float]) -> TensorDict:
    """One finished answer of as many tokens as rewards."""
    size = len(rewards)
    done = torch.tensor([False] * (size - 1) + [True]).reshape(size, 1)
    return TensorDict(
        query=torch.full((size,), prompt),
        next=TensorDict(
            reward=torch.tensor(rewards).reshape(size, 1), done=done, batch_size=[size]
        ),
        batch_size=[size],
    )


def main() -> None:
    transform = WeightedAdvantage(WEIGHTS["power_asym"](alpha=2.0, delta=0.5), grpo_size=4)
    for rewards in ([0.0, 1.0], [0.0], [0.0, 0.0, 0.0]):
        transform.inv(trajectory(7, rewards))
    whole = transform.inv(trajectory(7, [0.0, 0.0]))
    print(whole["advantage"].squeeze(-1).tolist())


if __name__ == "__main__":
    main()
