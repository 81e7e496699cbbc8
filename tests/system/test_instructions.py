"""Work of a fixed size takes no more instructions than it did.

``python -m tests.system.test_instructions --write`` records what it takes now, after a change
that is meant to. Another compiler makes other code, so only the recorded one is held closely.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pykv import _core

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build/dev"
RECORD = Path(__file__).with_name("instructions.json")
RECORDED: dict[str, object] = json.loads(RECORD.read_text()) if RECORD.exists() else {}
TOLERANCE = 1.03
OTHER_COMPILER = 1.5

TIERS = ("avx512", "avx512_bf16")


def counts() -> dict[str, int]:
    """Instructions of each kind of work on the AVX2 tier, which valgrind knows."""
    program = BUILD / "tests/instructions/fixed_work"
    kinds = subprocess.run([program], capture_output=True, text=True, check=True).stdout.split()
    return {kind: count(program, kind) for kind in kinds}


def count(program: Path, kind: str) -> int:
    valgrind = shutil.which("valgrind")
    assert valgrind, "valgrind is not installed"
    command = [
        valgrind,
        "--tool=callgrind",
        "--callgrind-out-file=/dev/null",
        "--toggle-collect=counted_work",
        str(program),
        kind,
    ]
    environment = {**os.environ, "PYKV_ISA": "avx2"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    found = re.search(r"Collected : (\d+)", done.stderr)
    assert found, done.stderr
    return int(found[1])


def body_size(tier: str) -> dict[str, int]:
    """Instructions of a tier's code, and those of them that move vectors to or from the stack:
    valgrind does not know AVX-512."""
    (code,) = BUILD.glob(f"CMakeFiles/pykv_core.dir/cpp/src/kernels/kernels_{tier}.cpp.o")
    command = ["objdump", "-d", "--no-show-raw-insn", str(code)]
    listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    lines = [line for line in listing.splitlines() if re.match(r"\s+[0-9a-f]+:\t", line)]
    spilled = sum(bool(re.search(r"vmov\w+.*zmm.*\(%rsp\)|\(%rsp.*zmm", line)) for line in lines)
    return {f"{tier}_body": len(lines), f"{tier}_spills": spilled}


def all_sizes() -> dict[str, int]:
    sizes = counts()
    for tier in TIERS:
        sizes |= body_size(tier)
    return sizes


@pytest.fixture(scope="module")
def sizes() -> dict[str, int]:
    return all_sizes()


def test_every_kind_of_work_is_recorded(sizes: dict[str, int]) -> None:
    recorded = RECORDED["instructions"]
    assert isinstance(recorded, dict)
    assert set(recorded) == set(sizes)


def test_nothing_takes_more_than_it_did(sizes: dict[str, int]) -> None:
    same = RECORDED["compiler"] == _core.build_info()["compiler"]
    limit = TOLERANCE if same else OTHER_COMPILER
    recorded = RECORDED["instructions"]
    assert isinstance(recorded, dict)
    grown = {
        kind: f"{size}, was {recorded[kind]}"
        for kind, size in sizes.items()
        if size > recorded[kind] * limit + 64
    }
    assert not grown, f"--write records them, if that is meant: {grown}"


def write() -> None:
    record = {"compiler": _core.build_info()["compiler"], "instructions": all_sizes()}
    RECORD.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit(__doc__)
    write()
