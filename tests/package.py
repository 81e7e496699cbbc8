"""Builds the wheel and uses it as a stranger would: an empty environment, another
folder, first without and then with the server's dependencies. Run by make test-package."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

# What must be inside the wheel beside Python files and the module.
EXPECTED = ["pykv/py.typed", "pykv/_core.pyi", "pykv/dashboard/__init__.py"]

# With the flags of `make build`: where ccache is used, its objects go into the wheel.
AS_DEVELOPED = ["-C", "cmake.define.PYKV_WERROR=ON"]


def run(*command: str, cwd: str) -> str:
    print("$", " ".join(command), flush=True)
    environment = {k: v for k, v in os.environ.items() if k not in {"PYTHONPATH", "VIRTUAL_ENV"}}
    done = subprocess.run(command, cwd=cwd, env=environment, text=True, stdout=subprocess.PIPE)
    if done.returncode != 0:
        print(done.stdout)
        sys.exit(f"failed with exit code {done.returncode}: {' '.join(command)}")
    return done.stdout


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        wheel_of = [sys.executable, "-m", "pip", "wheel", "--no-deps", "-w", folder, str(ROOT)]
        run(*wheel_of, *AS_DEVELOPED, cwd=folder)
        wheel = next(Path(folder).glob("pykv_cache-*.whl"))
        names = run(sys.executable, "-m", "zipfile", "-l", str(wheel), cwd=folder)
        for name in EXPECTED:
            if name not in names:
                sys.exit(f"{wheel.name} lacks {name}")
        run(sys.executable, "-m", "venv", f"{folder}/venv", cwd=folder)
        python = f"{folder}/venv/bin/python"
        run(python, "-m", "pip", "install", "-q", str(wheel), cwd=folder)
        run(python, "-c", "import pykv; pykv.build_info()", cwd=folder)
        run(python, str(ROOT / "examples" / "two_sessions.py"), cwd=folder)
        print(run(f"{folder}/venv/bin/pykv", "--version", cwd=folder))
        doctor = [f"{folder}/venv/bin/pykv", "doctor", "--port", "0", "--admin-port", "0"]
        print(run(*doctor, cwd=folder))
        run(python, "-m", "pip", "install", "-q", f"{wheel}[server]", cwd=folder)
        run(f"{folder}/venv/bin/pykv", "serve", "--help", cwd=folder)
        run(*doctor, cwd=folder)
        print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB, installed and used")


if __name__ == "__main__":
    main()
