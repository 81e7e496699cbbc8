"""Time as a parameter, so that tests need neither sleeps nor the time of day."""

from __future__ import annotations

import time
from datetime import datetime, timezone
from typing import Protocol


class Clock(Protocol):
    """Where the admin service reads time and waits."""

    def wall(self) -> float:
        """Seconds since 1970 (UTC)."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go back."""
        ...

    def wait(self, seconds: float) -> None:
        """Blocks the calling thread."""
        ...


class SystemClock:
    """The machine's clock."""

    def wall(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)


def iso(seconds: float) -> str:
    """`seconds` since 1970 as RFC 3339 in UTC with milliseconds."""
    moment = datetime.fromtimestamp(seconds, tz=timezone.utc)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"
