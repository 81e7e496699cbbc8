"""The control plane at scale: pools of a million cells, also in the worst shapes, from C++
(benchmarks/control_plane/) and from Python with int32 arrays (benchmarks/python_pools.py).
Medians of single calls. Prints tables, writes JSON, exits 3 when a target is missed.

    python -m benchmarks.control_plane [--shapes tree,chain,star,singles,comb,windows]
        [--program FILE] [--peer-python PYTHON --peer-cells 8000,60000,200000] [--json FILE]

The C++ program is built into build/control_plane unless --program names one. --peer-python is
the Python of an environment with llama-cpp-python, whose seq_cp and seq_rm are then measured
too (a tiny random model, unified pool), beside fork and remove here.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.python_pools import Pool

ROOT = Path(__file__).resolve().parents[1]
SHAPES = "tree,chain,star,singles,comb,windows"
TARGETS = {
    "fork": 5.0,
    "match 4096": 50.0,
    "plan + commit 16 x 1": 5.0,
    "plan + commit 1 x 16": 5.0,
    "remove 4096 private": 20.0,
    "remove 4096 shared": 20.0,
    "evict a leaf": 2.0,
    "stats": 1000.0,
    "metadata per cell": 32.0,
}

Row = dict[str, Any]


def record(row: str, value: float, unit: str) -> Row:
    """`target` is the most that `value` may be. Steps that also move a window have none."""
    shape, call = row.split(",")[0], row.split(": ")[-1]
    target = None if shape == "windows" and call.startswith("plan") else TARGETS.get(call)
    return {
        "row": row,
        "value": value,
        "unit": unit,
        "peer": None,
        "limit": None,
        "ratio": None if target is None else value / target,
        "target": target,
        "ok": target is None or value <= target,
    }


def build() -> Path:
    folder = ROOT / "build" / "control_plane"
    configure = ["cmake", "-S", str(ROOT), "-B", str(folder), "-DCMAKE_BUILD_TYPE=Release"]
    configure += ["-DPYKV_PYTHON=OFF", "-DPYKV_BENCHMARKS=ON"]
    subprocess.run(configure, check=True, stdout=sys.stderr)
    compile_it = ["cmake", "--build", str(folder), "--target", "control_plane", "-j2"]
    subprocess.run(compile_it, check=True, stdout=sys.stderr)
    return folder / "benchmarks" / "control_plane"


def from_cpp(program: Path, shape: str) -> list[Row]:
    done = subprocess.run([str(program), shape], check=True, capture_output=True, text=True)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return [record(f"{shape}, C++: {r['row']}", r["value"], r["unit"]) for r in lines]


def from_python(shape: str) -> list[Row]:
    return [record(f"{shape}, Python: {row}", value, "us") for row, value in Pool(shape).measure()]


def from_peer(python: Path, cells: str) -> list[Row]:
    script = Path(__file__).parent / "peers" / "llama_cpp_control.py"
    done = subprocess.run(
        [str(python), str(script), "--cells", cells], check=True, capture_output=True, text=True
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return [record(f"llama.cpp, {r['cells']:,} cells: {r['row']}", r["us"], "us") for r in lines]


def table(rows: Iterable[Row]) -> None:
    for row in rows:
        target = "" if row["target"] is None else f"≤ {row['target']:g}"
        verdict = "" if row["target"] is None else "ok" if row["ok"] else "MISSED"
        print(
            f"{row['row']:<52} {row['value']:12.2f} {row['unit']:<3} {target:>7} {verdict}",
            flush=True,
        )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shapes", default=SHAPES)
    parser.add_argument("--program", type=Path, help="the C++ program, if it is built already")
    parser.add_argument("--peer-python", type=Path, help="Python of an environment with llama_cpp")
    parser.add_argument("--peer-cells", default="8000,60000,200000")
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    options = parser.parse_args(argv)
    program = options.program or build()
    rows: list[Row] = []
    for shape in options.shapes.split(","):
        for measured in (from_cpp(program, shape), from_python(shape)):
            table(measured)
            rows += measured
    if options.peer_python:
        measured = from_peer(options.peer_python, options.peer_cells)
        table(measured)
        rows += measured
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    return 0 if all(row["ok"] for row in rows) else 3


if __name__ == "__main__":
    sys.exit(main())
