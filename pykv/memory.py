"""How much memory this process may still use: the machine's, or its container's limit."""

from __future__ import annotations

import os
from pathlib import Path

# Larger limits mean "none" (version 1 writes a number near 2**63).
_NO_LIMIT = 1 << 60
# Where control groups of version 2 and of version 1 are mounted.
_MOUNT_2, _MOUNT_1 = "sys/fs/cgroup", "sys/fs/cgroup/memory"


def free_bytes(root: Path = Path("/")) -> int:
    """Bytes that can be allocated without swapping, by the tightest limit that is known.

    Args:
        root: where ``proc`` and ``sys`` are mounted (tests).
    """
    free = [_machine(root), *_version_2(root), *_version_1(root)]
    return max(0, min(free))


def limit_bytes(root: Path = Path("/")) -> int | None:
    """The tightest limit of a container or control group around this process; None if
    there is none."""
    files = [
        *(folder / "memory.max" for folder in _groups(root, "0::", root / _MOUNT_2)),
        *(
            folder / "memory.limit_in_bytes"
            for folder in _groups(root, ":memory:", root / _MOUNT_1)
        ),
    ]
    numbers = [limit for limit in map(_number, files) if limit is not None and limit < _NO_LIMIT]
    return min(numbers, default=None)


def _machine(root: Path) -> int:
    """Linux: MemAvailable. Elsewhere half of the physical memory, a guess on the safe side."""
    try:
        for line in (root / "proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def _version_2(root: Path) -> list[int]:
    """Free bytes of each enclosing group that has a limit. Reclaimable file cache, which
    counts as used there, is added back."""
    free = []
    for folder in _groups(root, "0::", root / _MOUNT_2):
        limit = _number(folder / "memory.max")
        used = _number(folder / "memory.current")
        if limit is not None and used is not None and limit < _NO_LIMIT:
            free.append(limit - used + _field(folder / "memory.stat", "inactive_file"))
    return free


def _version_1(root: Path) -> list[int]:
    free = []
    for folder in _groups(root, ":memory:", root / _MOUNT_1):
        limit = _number(folder / "memory.limit_in_bytes")
        used = _number(folder / "memory.usage_in_bytes")
        if limit is not None and used is not None and limit < _NO_LIMIT:
            cached = _field(folder / "memory.stat", "total_inactive_file")
            free.append(limit - used + cached)
    return free


def _groups(root: Path, marker: str, mount: Path) -> list[Path]:
    """The group of this process and those around it. Inside a container the mount is the
    container's own group, whatever /proc says."""
    folders = [mount]
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return folders
    for line in lines:
        if marker in line:
            own = mount / line.rsplit(":", 1)[1].lstrip("/")
            while own != mount and mount in own.parents:
                folders.append(own)
                own = own.parent
    return folders


def _number(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _field(path: Path, name: str) -> int:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return 0
    for line in lines:
        if line.startswith(name + " "):
            return int(line.split()[1])
    return 0
