"""Runs that are written as a trainer writes them, without one."""

from gradmass.record import RunWriter

CONFIG = {"label": "fade", "recipe": {"seed": 0, "weight": {"type": "fade"}}}
ENV = {"command": "gradmass train demo"}


def log_step(writer, step):
    """What a trainer records of one update; the third of four is evaluated."""
    if step:
        writer.log_rollouts({"step": step, "completion": f"({step}+{i})"} for i in range(2))
    if step in (0, 3):
        writer.log_evaluation({"step": step, "split": "test", "solve_probability": [0.5, step]})
    writer.log({"step": step, "loss/value": step / 8})


def save_step(step):
    def save(folder):
        (folder / "model").write_text(f"model after {step}")
        (folder / "trainer").write_text(f"trainer after {step}")

    return save


def work(writer, num_steps=5):
    """A run with a checkpoint after every second step, from wherever the writer stands."""
    done = writer.resumed_from
    step = 0 if done is None else done.step
    if done is None:
        log_step(writer, 0)
        writer.checkpoint(0, {"seen": 0}, "running", save_step(0))
    while step < num_steps:
        step += 1
        log_step(writer, step)
        if step % 2 == 0:
            writer.checkpoint(step, {"seen": step}, "running", save_step(step))
    writer.checkpoint(step, {"seen": step}, "finished", save_step(step))


def contents(path):
    """Every file below a directory with its bytes, but for env.json, which holds resumptions."""
    return {
        str(file.relative_to(path)): file.read_bytes()
        for file in sorted(path.rglob("*"))
        if file.is_file() and file.name != "env.json"
    }


def started(path, num_steps=3):
    """A run that was killed after ``num_steps`` steps, its last checkpoint after two."""
    writer = RunWriter.create(path, CONFIG, ENV)
    log_step(writer, 0)
    writer.checkpoint(0, {"seen": 0}, "running", save_step(0))
    for step in range(1, num_steps + 1):
        log_step(writer, step)
        if step == 2:
            writer.checkpoint(2, {"seen": 2}, "running", save_step(2))
    writer.close()
    return path
