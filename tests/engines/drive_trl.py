"""Run examples/trl_grpo.py in a process of its own, and write down what each process ends with.

    python drive_trl.py [--kill-at N] [--plain] ... arguments of the example
    torchrun --nproc_per_node 2 drive_trl.py ...

``rank0.json`` and so on: the weight's state, and the log. ``--kill-at`` kills the process outright
after that step; ``--plain`` takes TRL's own trainer.
"""

import importlib.util
import json
import os
import signal
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "trl_grpo.py"


def kill_at(step):
    """A callback that kills the process outright after a step."""
    from transformers import TrainerCallback

    class Kill(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == step:
                os.kill(os.getpid(), signal.SIGKILL)

    return Kill()


def main():
    spec = importlib.util.spec_from_file_location("trl_grpo", EXAMPLE)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    parser = example.arguments()
    parser.add_argument("--kill-at", type=int)
    parser.add_argument("--plain", action="store_true")
    asked = parser.parse_args()
    if asked.plain:
        from trl import GRPOTrainer

        def plain(weight, mode, **kwargs):
            return GRPOTrainer(**kwargs)

        example.WeightedGRPOTrainer = plain
    trainer = example.make(asked)
    if asked.kill_at:
        trainer.add_callback(kill_at(asked.kill_at))
    trainer.train(resume_from_checkpoint=asked.resume)
    found = {"log": trainer.state.log_history}
    found["parameters"] = [p.double().sum().item() for p in trainer.model.parameters()]
    if not asked.plain:
        found |= trainer._gradmass.state_dict() | {"entropy": trainer._gradmass_entropy}
    file = asked.out / f"rank{trainer.accelerator.process_index}.json"
    file.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
