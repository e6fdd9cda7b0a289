"""What a run ran on."""

import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[3]
PACKAGES = ("gradmass", "numpy", "torch", "transformers", "tokenizers", "safetensors")


def environment(command: str) -> dict[str, Any]:
    """Versions, machine, commit of the package's checkout, command and time, for ``env.json``."""
    return {
        "command": command,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "folder": str(Path.cwd()),
        "packages": {name: _version(name) for name in PACKAGES},
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "processor": _processor(),
        "num_cpus": os.cpu_count(),
        **_checkout(),
    }


def _checkout() -> dict[str, Any]:
    """Commit of the package's own checkout; None where it is installed, in whoever's repository."""
    if _git("rev-parse", "--show-toplevel") != str(CHECKOUT):
        return {"commit": None, "is_dirty": None}
    return {"commit": _git("rev-parse", "HEAD"), "is_dirty": bool(_git("status", "--porcelain"))}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())


def _git(*arguments: str) -> str | None:
    """Output of git in the package's folder; None where there is no git or no repository."""
    try:
        done = subprocess.run(
            ["git", "-C", str(Path(__file__).resolve().parent), *arguments],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
