"""The command line of bubblewrap: what a sandbox can see of the machine, which is little."""

import importlib.metadata
import os
import platform
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from gradmass.rewards.sandbox.inside import seccomp
from gradmass.types import UsageError

INSTALL = "apt-get install bubblewrap"
MIN_LINUX = (5, 14)
"""From here on the limit on threads counts those of one sandbox only."""
LIBRARIES = ("/usr/lib", "/usr/lib64", "/usr/lib32", "/lib", "/lib64", "/nix/store")
SMALL_FILES = ("/etc/ld.so.cache", "/etc/alternatives", "/usr/share/zoneinfo")
DEVICES = ("null", "zero", "full", "random", "urandom")
PACKAGES = "/packages"
CODE = "/sandbox"


def check() -> str:
    """Find bubblewrap.

    Returns:
        Its path.

    Raises:
        UsageError: It is not installed, or this machine cannot use it.
    """
    path = shutil.which("bwrap")
    weaker = 'or choose the weaker isolation="process"'
    if not sys.platform.startswith("linux"):
        raise UsageError(f"bubblewrap needs Linux, and this is {sys.platform}; run there, {weaker}")
    if path is None:
        raise UsageError(f"bubblewrap is not installed: {INSTALL} ({weaker})")
    release = platform.release()
    numbers = [int(part) for part in release.split("-")[0].split(".")[:2] if part.isdecimal()]
    if tuple(numbers) < MIN_LINUX:
        raise UsageError(f"the sandbox needs Linux 5.14 or later, and this is {release}; {weaker}")
    if platform.machine() not in seccomp.MACHINES:
        known = " and ".join(seccomp.MACHINES)
        raise UsageError(f"the sandbox knows {known}, and this is {platform.machine()}; {weaker}")
    return path


def command(packages: Sequence[str], inside: Path) -> list[str]:
    """Bubblewrap with its flags, up to the program that it is to start.

    Args:
        packages: Installed distributions that programs may import besides the standard library.
        inside: The folder of the code that runs inside.

    Raises:
        UsageError: Bubblewrap or a package is missing.
    """
    words = [check(), "--die-with-parent", "--new-session", "--hostname", "sandbox"]
    words += ["--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts"]
    words += ["--unshare-cgroup-try", "--cap-drop", "ALL", "--cap-add", "CAP_SYS_ADMIN"]
    if os.geteuid() == 0:
        # Programs become a user that owns nothing, which only root can arrange.
        words += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID", "--cap-add", "CAP_KILL"]
    else:
        words += ["--unshare-user", "--uid", "1000", "--gid", "1000"]
    visible = [path for path in (*LIBRARIES, *SMALL_FILES) if Path(path).exists()]
    # /lib is a link to /usr/lib on most systems; as a second copy it would show what is hidden.
    links = {path: str(Path(path).readlink()) for path in visible if Path(path).is_symlink()}
    binds = {path: path for path in (*visible, *_interpreter_files()) if path not in links}
    binds |= {f"{PACKAGES}/{source.name}": str(source) for source in _files_of(packages)}
    binds |= {f"{CODE}/{inside.name}": str(inside)}
    # Folders above a bind would be closed to the programs' user if bubblewrap had to make them.
    above = {str(folder) for path in binds for folder in Path(path).parents} - {"/"}
    for folder in sorted({*above, "/tmp", "/dev"}):
        words += ["--dir", folder]
    for path, source in binds.items():
        words += ["--ro-bind", source, path]
    for path, target in links.items():
        words += ["--symlink", target, path]
    for path in _installed_packages():
        words += ["--tmpfs", path, "--remount-ro", path]
    for name in DEVICES:
        words += ["--dev-bind", f"/dev/{name}", f"/dev/{name}"]
    return [*words, "--remount-ro", "/", "--chdir", "/", "--"]


def interpreter() -> str:
    """The Python that runs inside: the one that runs here, without its virtual environment."""
    return os.path.realpath(getattr(sys, "_base_executable", sys.executable))


def _roots() -> list[str]:
    roots = {sys.base_prefix, sys.base_exec_prefix, str(Path(interpreter()).parents[1])}
    return sorted(roots)


def _interpreter_files() -> list[str]:
    folders = {f"{root}/{lib}" for root in _roots() for lib in ("lib", sys.platlibdir)}
    return [
        interpreter(),
        *(path for path in sorted(folders - {*LIBRARIES}) if Path(path).is_dir()),
    ]


def _installed_packages() -> list[str]:
    """Folders of installed packages within what is bound: they may hold the very tests."""
    found = {
        str(path)
        for root in (*_roots(), "/usr", "/usr/local")
        for lib in ("lib", sys.platlibdir)
        for path in Path(root, lib).glob("python3*/*-packages")
    }
    within = (*LIBRARIES, *_interpreter_files())
    return [path for path in sorted(found) if path.startswith(tuple(f"{top}/" for top in within))]


def folders_of(packages: Sequence[str]) -> list[str]:
    """Where installed distributions are imported from, without a sandbox around them."""
    return sorted({str(path.parent) for path in _files_of(packages)})


def _files_of(packages: Sequence[str]) -> list[Path]:
    """Files and folders at the top of installed distributions."""
    found = set()
    for name in packages:
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError as error:
            raise UsageError(
                f"programs may import {name!r}, which is not installed: pip install {name}"
            ) from error
        tops = {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}
        found |= {Path(str(distribution.locate_file(top))) for top in tops}
    return sorted(path for path in found if path.exists())
