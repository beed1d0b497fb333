"""The Python environment that the controller's package carries: the locked packages without what is never read."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools.systems import MACHINES, System  # noqa: E402

BUILD = ROOT / ".build"
LOCK = ROOT / "requirements.txt"
GLIBC_MINORS = range(36, 4, -1)
"""Minor versions of the C library whose wheels run on Debian 12 and newer, best first."""

LEFT_OUT = (
    # What a compiler or a type checker reads.
    *("**/*.pyi", "**/*.pxd", "**/*.pyx", "**/*.tp", "**/*.[chf]", "**/*.cpp", "**/*.f90", "**/*.a", "**/meson.build"),
    # Tests of others.
    *(f"{name}/**/tests" for name in ("joblib", "numpy", "scipy", "sklearn", "skops")),
    *("joblib/test", "numpy/_core/*_tests.*.so", "scipy/**/_test_*.so", "scipy/**/_c*test.*.so"),
    # Builders of extensions, and records of what was installed.
    *("numpy/distutils", "bin", "share", "*.dist-info/RECORD"),
    # Parts that neither our code nor what it imports loads.
    *("scipy/cluster", "scipy/datasets", "scipy/fftpack", "scipy/misc", "scipy/odr", "scipy/signal"),
    *("scipy/io/_fast_matrix_market/_fmm_core.*", "sklearn/datasets/data", "sklearn/datasets/images"),
)
"""Files and folders below site-packages."""


def site(system: System) -> Path:
    """Where the controller's Python packages are, on a host."""
    return Path(f"opt/slackwater/lib/python{system.python}/site-packages")


def run(*command: str | Path, **environment: str) -> None:
    subprocess.run([str(word) for word in command], cwd=ROOT, env={**os.environ, **environment}, check=True)


def leave_out(packages: Path) -> None:
    """Removes what LEFT_OUT names."""
    for path in [path for pattern in LEFT_OUT for path in packages.glob(pattern)]:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def compile_python(system: System, stage: Path, inside: Path) -> None:
    """Byte code with the paths of the host, that is taken as it is: its sources are not looked at."""
    command = ("-m", "compileall", "-q", "-j", "2", "--invalidation-mode", "unchecked-hash", "-s", stage, "-p", "/")
    run(system.interpreter, *command, stage / inside, PYTHONHASHSEED="0")


def kind(system: System, architecture: str) -> str:
    return f"controller-{system.release}-{architecture}"


def wheels(system: System, architecture: str) -> Path:
    """Where the wheels of a system and an architecture are kept."""
    return BUILD / "wheels" / kind(system, architecture)


@cache
def third_party(system: System, architecture: str) -> Path:
    """The locked packages for a system and an architecture (`amd64`, `arm64`), installed and compiled.

    pip fetches what is missing. The result is kept below `.build` until the lock, this file or the Python change.
    """
    made_of = LOCK.read_bytes() + Path(__file__).read_bytes() + system.python.encode()
    wanted = hashlib.sha256(made_of).hexdigest()[:16]
    place = BUILD / f"{kind(system, architecture)}-{wanted}"
    if place.exists():
        return place
    fresh = Path(tempfile.mkdtemp(dir=BUILD, prefix="new-controller."))
    try:
        packages = fresh / site(system)
        machine = MACHINES[architecture]
        tags = [f"manylinux_2_{minor}_{machine}" for minor in GLIBC_MINORS]
        tags += [f"manylinux{year}_{machine}" for year in (2014, 2010, 1)]
        pip = (BUILD / "venv/bin/python", "-m", "pip", "--disable-pip-version-check", "-q")
        kept = wheels(system, architecture)
        fits = ("--only-binary=:all:", "--find-links", kept, "--no-deps", "--python-version", system.python)
        fits += ("--implementation", "cp", *(word for tag in tags for word in ("--platform", tag)))
        locked = ("--require-hashes", "-r", LOCK)
        kept.mkdir(parents=True, exist_ok=True)
        run(*pip, "download", "-d", kept, *fits, *locked)
        run(*pip, "install", "--no-index", "--no-compile", "--target", packages, *fits, *locked)
        leave_out(packages)
        compile_python(system, fresh, site(system))
        for old in BUILD.glob(f"{kind(system, architecture)}-*"):
            shutil.rmtree(old)
        fresh.chmod(0o755)
        fresh.rename(place)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return place
