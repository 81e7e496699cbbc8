"""Loading keeps weights once: the file's pages are given back tensor by tensor. And a run takes
little beside weights and KV."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.reference.gguf_files import TinyModel, write_split_model, write_tiny_model

ROOT = Path(__file__).resolve().parents[2]
MIB = 1 << 20
SPEC = TinyModel(
    layers=4, width=1024, heads=8, kv_heads=8, head_dim=128, feed_forward=2048, weight_type="F16"
)
LARGEST_TENSOR = 1024 * 2048 * 2
SLACK = 16 * MIB  # the allocator's, large pages that are used in part
PROGRAM = """
import json, sys
from pykv import _core

def kib(key):
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key + ":"))

backend = _core.Backend(threads=2)
before = kib("VmRSS")
gguf = _core.GgufFile(sys.argv[1])
model = _core.Model(gguf, backend)
print(json.dumps({
    "peak": (kib("VmHWM") - before) * 1024,
    "after": (kib("VmRSS") - before) * 1024,
    "weights": model.weight_bytes,
}))
"""


@pytest.mark.parametrize("split", [False, True])
def test_peak_is_the_weights_and_a_tensor(tmp_path: Path, split: bool) -> None:
    if split:
        path = write_split_model(tmp_path, SPEC, tensors=9)[0]
    else:
        path = write_tiny_model(tmp_path / "model.gguf", SPEC)
    command = [sys.executable, "-c", PROGRAM, str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["weights"] > 80 * MIB
    assert found["peak"] <= found["weights"] + LARGEST_TENSOR + SLACK
    assert found["after"] <= found["weights"] + SLACK


def test_a_benchmark_takes_weights_and_kv_and_little_else(tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "model.gguf", SPEC)
    command = [sys.executable, "-m", "pykv", "bench", "batched", "-m", str(path), "--json", "-pps"]
    command += ["-npp", "1024", "-ntg", "4", "-npl", "16", "-c", "2048", "-t", "2"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    row = json.loads(done.stdout)
    assert row["weight_bytes"] > 80 * MIB and row["kv_bytes"] >= 1088 * 4 * 8 * 128 * 2 * 2
    assert row["peak_rss_bytes"] <= row["weight_bytes"] + row["kv_bytes"] + 100_000_000
