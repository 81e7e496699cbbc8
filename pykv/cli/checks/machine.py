"""Processor, kernels, threads and memory."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from pykv import _core
from pykv.cli.checks import Finding
from pykv.cli.output import size, visible
from pykv.memory import free_bytes, limit_bytes

# What kernels use, or could use, in the order of their age.
_FEATURES = (
    "sse4_2", "avx", "f16c", "fma", "avx2", "avx_vnni", "avx512f", "avx512bw", "avx512_vnni",
    "avx512_bf16", "avx512_fp16", "amx_tile", "amx_int8", "amx_bf16",
    "asimd", "asimdhp", "asimddp", "i8mm", "bf16", "sve", "sve2",
)  # fmt: skip
_SMALL = 512 << 20  # bytes; less leaves no room for a useful pool


def check_machine(threads: int, root: Path = Path("/")) -> list[Finding]:
    """`threads` as asked for, 0: all cores. `root`: where proc and sys are (tests)."""
    return [_system(), _processor(root), _kernels(threads), _threads(threads), _memory(root)]


def _system() -> Finding:
    info = _core.build_info()
    found = (
        f"pykv {info['version']} ({info['backend']}, {info['build_type']}, {info['compiler']}), "
        f"Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    )
    if info["build_type"] in ("Release", "RelWithDebInfo"):
        return Finding("system", "ok", found)
    advice = "this is a slow build; build with CMAKE_BUILD_TYPE=Release"
    return Finding("system", "note", found, advice)


def _processor(root: Path) -> Finding:
    name, features = "", set()
    try:
        lines = (root / "proc/cpuinfo").read_text().splitlines()
    except OSError:
        return Finding("processor", "note", "unknown: there is no /proc/cpuinfo")
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            name = visible(value.strip())
        elif key.strip() in ("flags", "Features"):
            features = set(value.split())
            break
    known = " ".join(feature for feature in _FEATURES if feature in features)
    return Finding("processor", "ok", f"{name or platform.machine()}: {known or 'no features'}")


def _kernels(threads: int) -> Finding:
    backend = _core.Backend(threads=max(1, threads))
    best = _core.Backend.available_isas()
    found = f"{backend.isa} in use; this machine has {', '.join(best)}"
    if backend.isa == best[-1]:
        return Finding("kernels", "ok", found)
    return Finding("kernels", "note", found, f"a slower tier was forced; {best[-1]} is faster")


def _threads(threads: int) -> Finding:
    cores = _core.Backend(threads=0).threads
    machine = os.cpu_count() or cores
    found = f"{threads or cores} used, {cores} cores usable of {machine}"
    if threads > cores:
        advice = f"more threads than cores make every step slower; use --threads {cores} or 0"
        return Finding("threads", "problem", found, advice)
    if cores < machine:
        return Finding("threads", "ok", found + " (affinity or container limit)")
    return Finding("threads", "ok", found)


def _memory(root: Path) -> Finding:
    free, limit = free_bytes(root), limit_bytes(root)
    found = f"{size(free)} free"
    if limit is not None:
        found += f", container limit {size(limit)}"
    if free < _SMALL:
        advice = "end other programs, raise the container's limit, or use --pool-bytes"
        return Finding("memory", "problem", found, advice)
    return Finding("memory", "ok", found)
