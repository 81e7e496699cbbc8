"""Who changed what: append-only, in memory and as one JSON line per change on disk.

Rows are never changed or removed. The memory keeps the newest ones; the file keeps all.
"""

from __future__ import annotations

import json
import os
import threading
from collections import deque
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .clock import Clock, iso
from .errors import AdminError

_TAIL_BYTES = 256 * 1024
_KEPT = 1000


@dataclass(frozen=True)
class Actor:
    """Who asked, and from where."""

    name: str
    role: str
    address: str


@dataclass(frozen=True)
class AuditRow:
    """One change or one refused try."""

    number: int  # from 1, over restarts too
    time: str  # RFC 3339, UTC
    who: str
    role: str
    address: str
    action: str  # tune, login, logout
    before: dict[str, Any]
    after: dict[str, Any]
    reason: str
    result: str  # ok, pending, invalid, conflict, failed, refused, limited
    generation: int  # of the configuration, after the action

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class AuditLog:
    """Rows of one state folder. Safe from any thread."""

    def __init__(self, path: Path | None, clock: Clock) -> None:
        """`path` None keeps rows in memory only. An existing file is continued."""
        self._path = path
        self._clock = clock
        self._lock = threading.Lock()
        self._rows: deque[AuditRow] = deque(_read_tail(path) if path else (), maxlen=_KEPT)
        self._counts: dict[tuple[str, str, str], int] = {}

    def append(
        self,
        actor: Actor,
        action: str,
        result: str,
        *,
        before: dict[str, Any] | None = None,
        after: dict[str, Any] | None = None,
        reason: str = "",
        generation: int | None = None,
    ) -> AuditRow:
        """Writes the row through to disk before it returns it."""
        with self._lock:
            row = AuditRow(
                number=self._rows[-1].number + 1 if self._rows else 1,
                time=iso(self._clock.wall()),
                who=actor.name,
                role=actor.role,
                address=actor.address,
                action=action,
                before=before or {},
                after=after or {},
                reason=reason,
                result=result,
                generation=self._last_generation() if generation is None else generation,
            )
            self._write(row)
            self._rows.append(row)
            key = (action, actor.role, result)
            self._counts[key] = self._counts.get(key, 0) + 1
            return row

    def rows(self, limit: int = _KEPT, *, action: str | None = None) -> list[AuditRow]:
        """Newest first."""
        with self._lock:
            chosen = [r for r in reversed(self._rows) if action is None or r.action == action]
            return chosen[:limit]

    def counts(self) -> dict[tuple[str, str, str], int]:
        """(action, role, result) -> rows since this process started."""
        with self._lock:
            return dict(self._counts)

    def last_generation(self) -> int:
        with self._lock:
            return self._last_generation()

    def _last_generation(self) -> int:
        return self._rows[-1].generation if self._rows else 1

    def _write(self, row: AuditRow) -> None:
        if self._path is None:
            return
        line = json.dumps(row.to_dict(), separators=(",", ":")) + "\n"
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            descriptor = os.open(self._path, flags, 0o600)
            try:
                os.write(descriptor, line.encode())
            finally:
                os.close(descriptor)
        except OSError as error:
            raise AdminError(
                f"[AuditLog.append] cannot write {self._path}: {error.strerror}; "
                "free space there or make it writable; the change was not kept"
            ) from error


def _read_tail(path: Path) -> list[AuditRow]:
    """The newest whole rows. A line cut short by a crash is passed over."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            lines = file.read(_TAIL_BYTES).splitlines()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise AdminError(
            f"[AuditLog.open] cannot read {path}: {error.strerror}; "
            "make it readable for this user, or set XDG_STATE_HOME to another"
        ) from error
    rows = []
    for line in lines:
        try:
            rows.append(AuditRow(**json.loads(line)))
        except (ValueError, TypeError, RecursionError):
            continue
    return rows
