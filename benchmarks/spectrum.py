"""How fast and how exact ``gradmass spectrum`` is, beside plain PyTorch and WeightWatcher.

    python benchmarks/spectrum.py [--threads 2] [--weightwatcher PYTHON] [--json]

1. The output head of a 7B model, 151,936 x 3,584 in bf16 on disk: the whole command's time over
   that of reading both files, upcasting and subtracting, and its peak memory over its promise.
2. Errors against float64 singular values on spiked, power-law, bf16-noise and flat spectra.
3. torch.linalg.svdvals of a 16,384 x 2,048 matrix in memory over the command, which reads two files
   and subtracts them first, and over the estimate alone of the same matrix in memory.
4. WeightWatcher's fine-tuned comparison (``base_model=``) on a small pair, where an interpreter
   that has it is given: it is no dependency of this package.
5. A 70B pair, extrapolated.

Needs 5 GB of disk for the first. Ratios are of times taken in this run, one after the other.
"""

import argparse
import json
import math
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from threadpoolctl import threadpool_limits

from gradmass.metrics.krylov import Spectrum, krylov_spectrum, start_block
from gradmass.spectra.blocks import Stripes
from gradmass.spectra.compare import compare
from gradmass.spectra.products import Gram

HEAD = (151_936, 3_584)
SVD_SHAPE = (16_384, 2_048)
REPEATS = 2


def measured(base: Path, tuned: Path) -> dict[str, Any]:
    comparison = compare(
        base, tuned, modules=None, top=8, split=None, progress=lambda name, done, total: None
    )
    return comparison.entry()


def seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def write_head(folder: Path) -> tuple[Path, Path]:
    """A head and the head after an update, with some rank and much noise, both in bf16."""
    torch.manual_seed(0)
    num_rows, num_columns = HEAD
    base, tuned = (torch.empty(HEAD, dtype=torch.bfloat16) for _ in range(2))
    right = torch.randn(4, num_columns)
    for start in range(0, num_rows, 8192):
        rows = slice(start, min(start + 8192, num_rows))
        base[rows] = 0.02 * torch.randn(rows.stop - start, num_columns)
        noise = 1e-3 * torch.randn(rows.stop - start, num_columns)
        tuned[rows] = base[rows].float() + noise + 2e-5 * torch.randn(len(noise), 4) @ right
    for name, tensor in (("base", base), ("tuned", tuned)):
        save_file({"lm_head.weight": tensor}, folder / f"{name}.safetensors")
    return folder / "base.safetensors", folder / "tuned.safetensors"


def bare(base: Path, tuned: Path) -> torch.Tensor:
    return load_file(tuned)["lm_head.weight"].float() - load_file(base)["lm_head.weight"].float()


def bare_in_blocks(base: Path, tuned: Path) -> torch.Tensor:
    """The same with the least memory traffic we know how to have."""
    before, after = load_file(base)["lm_head.weight"], load_file(tuned)["lm_head.weight"]
    change = torch.empty(HEAD)
    for start in range(0, len(change), 585):
        rows = slice(start, start + 585)
        torch.sub(after[rows].float(), before[rows].float(), out=change[rows])
    return change


def measure_head(folder: Path) -> dict[str, Any]:
    base, tuned = write_head(folder)
    times: dict[str, list[float]] = {"spectrum": [], "bare": [], "bare in blocks": []}
    for _ in range(REPEATS):
        times["bare"].append(seconds(lambda: bare(base, tuned)))
        times["bare in blocks"].append(seconds(lambda: bare_in_blocks(base, tuned)))
        times["spectrum"].append(seconds(lambda: measured(base, tuned)))
    best = {name: min(values) for name, values in times.items()}
    # In a process of its own, because the bare way has had more memory in this one.
    code = f"""
        import sys
        from gradmass.cli import main
        try:
            main(["spectrum", {str(base)!r}, {str(tuned)!r}, "--json"])
        finally:
            # The peak of this process alone; ru_maxrss would be that of the one that started it.
            (line,) = [line for line in open("/proc/self/status") if line.startswith("VmHWM")]
            print(line.split()[1], file=sys.stderr)
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    peak = 1024 * int(done.stderr.split()[-1])
    promised = 3 * 4 * math.prod(HEAD) + 2**30
    return {
        **{f"{name}_s": value for name, value in best.items()},
        "spectrum / bare": best["spectrum"] / best["bare"],
        "spectrum / bare in blocks": best["spectrum"] / best["bare in blocks"],
        "peak memory GiB": peak / 2**30,
        "promised GiB": promised / 2**30,
    }


def changes() -> dict[str, torch.Tensor]:
    """Changes of 6,144 x 1,024 of each kind, in float32."""
    torch.manual_seed(1)
    num_rows, num_columns = 6_144, 1_024
    left = torch.linalg.qr(torch.randn(num_rows, num_columns))[0]
    right = torch.linalg.qr(torch.randn(num_columns, num_columns))[0]
    noise = torch.randn(num_rows, num_columns) * 1e-5
    edge = 1e-5 * (math.sqrt(num_rows) + math.sqrt(num_columns))
    spikes = torch.zeros(num_columns)
    spikes[:5] = edge * torch.tensor([20.0, 8.0, 4.0, 2.5, 1.8])
    k = torch.arange(1, num_columns + 1)
    return {
        "spiked": noise + (left * spikes) @ right.T,
        "power-law, exponent 1": (left * (edge / k)) @ right.T,
        "power-law, exponent 1/2": (left * (edge / k.sqrt())) @ right.T,
        "flat (noise)": noise,
        "flat (all equal)": left,
    }


def measure_errors(folder: Path) -> dict[str, Any]:
    results = {}
    torch.manual_seed(2)
    start = (0.02 * torch.randn(6_144, 1_024)).bfloat16()
    zero = torch.zeros(start.shape)
    # Of such a change the files hold mostly rounding; they are compared as they are.
    rounded = (start.float() + 1e-5 * torch.randn(start.shape)).bfloat16()
    pairs = {name: (zero, change) for name, change in changes().items()}
    pairs["bf16-noise"] = (start, rounded)
    for name, (before, after) in pairs.items():
        save_file({"w": before}, folder / "a.safetensors")
        save_file({"w": after.contiguous()}, folder / "b.safetensors")
        comparison = compare(
            folder / "a.safetensors",
            folder / "b.safetensors",
            modules=None,
            top=8,
            split=None,
            progress=lambda name, done, total: None,
        )
        (row,) = comparison.measured
        exact = torch.linalg.svdvals(after.double() - before.double())
        energy = float(exact.square().sum())
        found = torch.tensor(row.squares_K).sqrt()
        results[name] = {
            "r_1": row.squares_K[0] / row.energy,
            "r_1 error": abs(row.squares_K[0] / row.energy - float(exact[0] ** 2) / energy),
            "r_1 bar": row.share_error,
            "top-8 error": float(((exact[:8] - found) / exact[:8]).abs().max()),
            "top-8 bar": row.value_error,
            "bar holds": bool((exact[:8] <= found * (1 + row.value_error) * (1 + 1e-6)).all()),
        }
    return results


def measure_svd(folder: Path) -> dict[str, Any]:
    torch.manual_seed(3)
    num_rows, num_columns = SVD_SHAPE
    noise = torch.randn(SVD_SHAPE)
    left = torch.linalg.qr(torch.randn(num_rows, 256))[0]
    right = torch.linalg.qr(torch.randn(num_columns, 256))[0]
    decay = 1 / torch.arange(1, 257)
    save_file({"w": torch.zeros(SVD_SHAPE)}, folder / "zero.safetensors")
    changes = {"power-law": ((left * decay) @ right.T).contiguous(), "noise": noise}
    return {name: against_svd(change, folder) for name, change in changes.items()}


def first_values(matrix: torch.Tensor) -> Spectrum:
    """The command's estimate, of a matrix in memory."""
    start = start_block(matrix.shape[1], top=8)
    energy = float(torch.linalg.vector_norm(matrix)) ** 2
    # One thread for NumPy, as in the command.
    with Stripes() as stripes, threadpool_limits(limits=1, user_api="blas"):
        gram = Gram(matrix, stripes)
        first = gram.product(start)
        return krylov_spectrum(gram.product, start, first, energy, top=8, square=gram.square)


def against_svd(change: torch.Tensor, folder: Path) -> dict[str, float]:
    save_file({"w": change}, folder / "change.safetensors")
    ways: dict[str, Callable[[], object]] = {
        "command": lambda: measured(folder / "zero.safetensors", folder / "change.safetensors"),
        "in memory": lambda: first_values(change),
        "svdvals": lambda: torch.linalg.svdvals(change),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(REPEATS + 1):  # in turn, so that what else runs on the machine meets all
        for name, run in ways.items():
            times[name].append(seconds(run))
    best = {name: min(values) for name, values in times.items()}
    return {
        **{f"{name}_s": value for name, value in best.items()},
        "svdvals / command": best["svdvals"] / best["command"],
        "svdvals / in memory (like for like)": best["svdvals"] / best["in memory"],
    }


def measure_weightwatcher(folder: Path, interpreter: str) -> dict[str, Any]:
    """Both on two layers of 1,024 x 1,024: one changed by noise, one by noise and one direction."""
    torch.manual_seed(4)
    before = {f"{i}.weight": 0.03 * torch.randn(1024, 1024) for i in range(2)}
    after = {name: tensor + 1e-4 * torch.randn(1024, 1024) for name, tensor in before.items()}
    after["1.weight"] += 1e-3 * torch.outer(torch.randn(1024), torch.randn(1024))
    save_file(before, folder / "ww_base.safetensors")
    save_file(after, folder / "ww_tuned.safetensors")
    code = f"""
        import json, time, torch, weightwatcher
        from safetensors.torch import load_file
        torch.set_num_threads({torch.get_num_threads()})
        def model(file):
            made = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024, bias=False) for _ in range(2)))
            made.load_state_dict(load_file(file))
            return made
        before = model({str(folder / "ww_base.safetensors")!r})
        after = model({str(folder / "ww_tuned.safetensors")!r})
        start = time.perf_counter()
        watcher = weightwatcher.WeightWatcher(model=after, base_model=before)
        details = watcher.analyze()
        seconds = time.perf_counter() - start
        columns = ["alpha", "stable_rank", "spectral_norm", "norm", "num_spikes", "warning"]
        rows = details[[c for c in columns if c in details]].to_dict("records")
        print(json.dumps({{"seconds": seconds, "layers": rows}}, default=str))
    """
    done = subprocess.run(
        [interpreter, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"weightwatcher under {interpreter} failed:\n{done.stderr}")
    theirs = json.loads(done.stdout.splitlines()[-1])
    start = time.perf_counter()
    entry = measured(folder / "ww_base.safetensors", folder / "ww_tuned.safetensors")
    keys = ("r_1", "r_1_noise", "stable_rank", "energy_share", "singular_values")
    return {
        "spectrum_s": time.perf_counter() - start,
        "spectrum": [{key: row[key] for key in keys} for row in entry["matrices"]],
        "weightwatcher_s": theirs["seconds"],
        "weightwatcher": theirs["layers"],
    }


def extrapolate(head_s: float) -> dict[str, Any]:
    """Llama-3-70B's shape: 70.6e9 parameters in bf16, by the head's time for an entry."""
    parameters = 70.6e9
    return {
        "bytes read GB": 2 * 2 * parameters / 1e9,
        "times each file is read": 1,
        "largest matrix": "128,256 x 8,192, 4.2 GB in float32",
        "hours at this speed": head_s / math.prod(HEAD) * parameters / 3600,
        "hours to read at 1 GB/s alone": 4 * parameters / 1e9 / 3600,
    }


def shown(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {shown(item)}" for key, item in value.items())
    if isinstance(value, list):
        return "; ".join(map(shown, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--weightwatcher", metavar="PYTHON", help="an interpreter that has it")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        parts = {
            "errors, 6,144 x 1,024": lambda: measure_errors(folder),
            "16,384 x 2,048": lambda: measure_svd(folder),
            "151,936 x 3,584": lambda: measure_head(folder),
        }
        if arguments.weightwatcher:
            parts["two layers of 1,024 x 1,024"] = lambda: measure_weightwatcher(
                folder, arguments.weightwatcher
            )
        for title, measure in parts.items():
            print(title, file=sys.stderr, flush=True)
            results[title] = measure()
    results["70B, extrapolated"] = extrapolate(results["151,936 x 3,584"]["spectrum_s"])
    if arguments.json:
        print(json.dumps(results))
        return
    for title, values in results.items():
        print(f"\n{title}, {arguments.threads} threads")
        for key, value in values.items():
            print(f"  {key:30} {shown(value)}")


if __name__ == "__main__":
    main()
