"""Runs pytest with the Python module of a build under AddressSanitizer.

    python tests/sanitized.py build/asan-python tests/kernels ...

Python's own allocator is left out, so that objects that are used after they are freed are
found as well. A report is printed at the end: pytest has taken standard error by then.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


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
        "LD_PRELOAD": f"{runtime('libasan.so')}:{runtime('libstdc++.so')}",
        "ASAN_OPTIONS": f"detect_leaks=0:log_path={build / 'report'}",
        "PYTHONMALLOC": "malloc",
    }
    options = ["-p", "no:faulthandler", "-p", "no:cacheprovider", "-o", f"pythonpath={site} ."]
    module = next(site.glob("pykv/_core.*.so"))
    check = "import sys; from pykv import _core; sys.exit(_core.__file__ != sys.argv[1])"
    used = subprocess.run(
        [sys.executable, "-c", check, str(module)], cwd=site, env=environment, check=False
    )
    if used.returncode != 0:
        sys.exit(f"another module than {module} would be tested")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *arguments],
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
