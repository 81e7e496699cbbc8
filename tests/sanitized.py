"""Runs pytest with the Python module of a build under AddressSanitizer and
UndefinedBehaviorSanitizer.

    python tests/sanitized.py build/asan -n 2 tests/kernels ...

Python's own allocator is left out, so that objects that are used after they are freed are
found as well. Either sanitizer ends the process of pytest, or the worker, in which it finds
something. Reports of the first are printed at the end; the second writes to standard error, which
pytest therefore leaves alone.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MODULE_VARIABLE = "SANITIZED_MODULE"


def pytest_sessionstart() -> None:
    """In each process of pytest, for which this file is a plugin: the tests are of the build's
    module, not of another one in the source tree."""
    from pykv import _core

    if _core.__file__ != os.environ[MODULE_VARIABLE]:
        pytest.exit(f"{_core.__file__} would be tested, not {os.environ[MODULE_VARIABLE]}", 1)


def package_with(build: Path) -> Path:
    """A folder to import pykv from: the sources of this tree, the module of the build."""
    package = build / "site" / "pykv"
    package.mkdir(parents=True, exist_ok=True)
    sources = [p for p in (ROOT / "pykv").iterdir() if not p.name.startswith(("_core.", "__pyc"))]
    for source in (*sources, ROOT / "dashboard", *build.glob("_core.*.so")):
        link = package / source.name
        link.unlink(missing_ok=True)
        link.symlink_to(source.resolve())
    return package.parent


def runtime(name: str) -> str:
    """Path of a runtime library of the compiler."""
    command = [os.environ.get("CXX", "g++"), f"-print-file-name={name}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def main(build: Path, arguments: list[str]) -> int:
    site = package_with(build)
    for old in build.glob("report.*"):
        old.unlink()
    environment = os.environ | {
        MODULE_VARIABLE: str(next(site.glob("pykv/_core.*.so"))),
        "LD_PRELOAD": f"{runtime('libasan.so')}:{runtime('libstdc++.so')}",
        "ASAN_OPTIONS": f"detect_leaks=0:log_path={build / 'report'}",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "PYTHONMALLOC": "malloc",
    }
    options = ["-p", "no:faulthandler", "-p", "no:cacheprovider", "-o", f"pythonpath={site} ."]
    options.append("--capture=sys")
    options.append("--max-worker-restart=0")  # another worker would run the same test again
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.sanitized", *options, *arguments],
        cwd=ROOT,
        env=environment,
        check=False,
    )
    reports = sorted(build.glob("report.*"))
    for report in reports:
        print(report.read_text(encoding="utf-8", errors="replace"))
    return done.returncode or int(bool(reports))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve(), sys.argv[2:]))
