"""Runs to report on, and a reader of pages."""

from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

from gradmass.record import Run, RunWriter

NUM_PROBLEMS = 20
EVIL = "<script>alert(1)</script>&\"'"


def start_probability(split: str, i: int) -> float:
    return (0.2 if split == "test" else 0.15) + 0.01 * i


def gain(weight: str, split: str, step: int, i: int) -> float:
    """On test problems fade gains .05 more than the others on each; on ood it only scatters."""
    scatter = 0.1 * (-1) ** i if weight == "fade" and split == "ood" and step else 0.0
    return 0.01 * step + (0.05 if weight == "fade" and split == "test" and step else 0.0) + scatter


def pass_at(probabilities: list[float], k: int) -> float:
    return sum(1 - (1 - p) ** k for p in probabilities) / len(probabilities)


def write_run(
    path: Path,
    weight: str = "grpo",
    *,
    label: str = "",
    num_steps: int = 8,
    status: str = "finished",
    ids: str = "",
    completion: str = "(1+2)*3",
    recipe: dict | None = None,
    splits: tuple[str, ...] = ("test", "ood"),
    is_exact: bool = True,
) -> Run:
    """A run evaluated every four steps and at its end, two groups of ten rollouts a step."""
    fields = {"alpha_max": 3.0} if weight == "fade" else {}
    task = {"type": "countdown", "seed": 0}
    whole = {"model": {"path": "tiny"}, "task": task, "weight": {"type": weight, **fields}}
    whole |= {"train": {"steps": 8, "group_size": 10}, **(recipe or {})}
    config = {"label": label or weight, "recipe": whole}
    writer = RunWriter.create(path, config, {"python": "3.11", "machine": {"cpus": 2}})
    for step in range(num_steps + 1):
        row = {"step": step, "rollouts": 20 * step}
        if step % 4 == 0 or step == num_steps:
            row |= log_evaluation(writer, weight, step, ids, splits, is_exact)
        if step:
            row |= {"mass/positive": 0.2, "mass/negative": 0.2, "time/rollout_s": 0.25}
            row |= {"rollout/solve_rate": 0.3 + 0.01 * step, "entropy/mean_nats": 1 - 0.02 * step}
            row["rollout/num_unscorable"] = 1 if weight == "power" else 0
            if weight == "fade":
                row |= {"weight/alpha": 3.0 - 0.1 * step, "weight/delta": None if step < 3 else 0.9}
            writer.log_rollouts(rollout_rows(step, completion))
        writer.log(row)
    writer.checkpoint(num_steps, {}, status, lambda folder: None)
    writer.close()
    return Run(path)


def log_evaluation(
    writer: RunWriter, weight: str, step: int, ids: str, splits: tuple[str, ...], is_exact: bool
) -> dict:
    row = {"rank/head_top1_share": 0.5 if step else None, "rank/head_top1_share_noise": 0.12}
    for split in splits:
        for k in (1, 10, 100):
            sampled = f"{split}/sampled_pass@{k}"
            row |= {sampled: 0.3 + step / 100, f"{sampled}_low": 0.25, f"{sampled}_high": 0.45}
        if not is_exact:
            continue
        probabilities = [
            start_probability(split, i) + gain(weight, split, step, i) for i in range(NUM_PROBLEMS)
        ]
        ids_N = [f"{ids}{split}{i}" for i in range(NUM_PROBLEMS)]
        turn = -1 if weight == "fade" else 1  # the same problems in another order
        values = {"problem_ids": ids_N[::turn], "solve_probability": probabilities[::turn]}
        writer.log_evaluation({"step": step, "split": split, **values})
        for k in (1, 10, 100):
            row[f"{split}/pass@{k}"] = pass_at(probabilities, k)
    return row


def rollout_rows(step: int, completion: str) -> list[dict]:
    verdicts = ["right"] * 7 + ["wrong"] * 8 + ["unparsed"] * 5
    shared = {"step": step, "prompt": "1,2,3=9:", "completion": completion, "num_tokens": 8}
    return [
        {
            **shared,
            "problem_id": f"train{i // 10}",
            "group": 2 * step + i // 10,
            "verdict": verdict,
            "detail": f"step {step}, rollout {i}",
            "weight": 0.65 if verdict == "right" else -0.35,
        }
        for i, verdict in enumerate(verdicts)
    ]


class Checker(HTMLParser):
    """Collects what a page refers to, and fails on tags that do not nest."""

    VOID = frozenset({"meta", "br", "hr", "img", "input", "link"})

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: Counter[str] = Counter()
        self.ids: Counter[str] = Counter()
        self.links: list[tuple[str, str]] = []
        self.texts: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        for key, value in attrs:
            if key == "id":
                self.ids[value or ""] += 1
            if key in ("src", "href", "xlink:href", "srcset", "action", "data"):
                self.links.append((key, value or ""))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag, f"</{tag}> at {self.getpos()}"

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def words(page: str) -> str:
    return " ".join(" ".join(Checker(page).texts).split())
