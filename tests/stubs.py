"""Generates pykv/_core.pyi from the built module, or checks that the committed one is
up to date: `python tests/stubs.py --write | --check`."""

from __future__ import annotations

import argparse
import difflib
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
STUB = ROOT / "pykv" / "_core.pyi"


def generate() -> str:
    """The stub's text as pybind11-stubgen and ruff make it."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [
                sys.executable,
                "-m",
                "pybind11_stubgen",
                "pykv._core",
                "-o",
                folder,
                "--ignore-all-errors",
            ],
            check=True,
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        path = Path(folder) / "pykv" / "_core.pyi"
        if not path.exists():  # the module has submodules: a package of stubs
            path = Path(folder) / "pykv" / "_core" / "__init__.pyi"
        return subprocess.run(
            ["ruff", "format", "--stdin-filename", "_core.pyi", "-"],
            check=True,
            input=with_errors(path.read_text()),
            capture_output=True,
            text=True,
        ).stdout


def with_errors(stub: str) -> str:
    """Errors say that they are of `pykv`, where users find them, so the generator imports
    them from there; but they are made in `_core`, and `pykv` takes them from it."""
    from pykv import _core

    lines = []
    for line in stub.splitlines():
        made = getattr(_core, line.removeprefix("from pykv import "), None)
        if line.startswith("from pykv import ") and made is not None:
            bases = ", ".join(base.__name__ for base in made.__bases__)
            lines.append(f"class {made.__name__}({bases}): ...")
        else:
            lines.append(line)
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--write", action="store_true")
    mode.add_argument("--check", action="store_true")
    args = parser.parse_args()
    text = generate()
    if args.write:
        STUB.write_text(text)
        return 0
    committed = STUB.read_text() if STUB.exists() else ""
    if committed == text:
        return 0
    diff = difflib.unified_diff(committed.splitlines(), text.splitlines(), "committed", "generated")
    print("\n".join(diff))
    print("pykv/_core.pyi is out of date: run `make stubs` and commit it", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
