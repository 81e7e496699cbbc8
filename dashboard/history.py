"""The last quarter of an hour of counters, sampled in this process.

The page draws its chart from it at once after loading, and recent ratios come from it.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from typing import Any

from .client import EngineClient, Snapshot
from .clock import Clock

SPAN = 900.0  # seconds kept
INTERVAL = 2.0  # seconds between samples
RECENT = 60.0  # seconds that "recent" figures cover


def token_totals(snapshot: Snapshot) -> tuple[int, int]:
    """(query tokens, hit tokens) over all tenants."""
    tenants = snapshot["tenants"].values()
    return sum(t["query_tokens"] for t in tenants), sum(t["hit_tokens"] for t in tenants)


@dataclass(frozen=True)
class Sample:
    """Counters (they only grow) and cells at one moment."""

    wall: float
    monotonic: float
    query_tokens: int
    hit_tokens: int
    prompt_tokens: int
    generated_tokens: int
    steps: int
    cells: dict[str, int]
    time_to_first_token: tuple[int, ...]  # bucket counts
    inter_token: tuple[int, ...]

    @classmethod
    def of(cls, snapshot: Snapshot, clock: Clock) -> Sample:
        query, hit = token_totals(snapshot)
        return cls(
            wall=clock.wall(),
            monotonic=clock.monotonic(),
            query_tokens=query,
            hit_tokens=hit,
            prompt_tokens=snapshot["prompt_tokens"],
            generated_tokens=snapshot["generated_tokens"],
            steps=snapshot["steps"],
            cells=cells_by_state(snapshot),
            time_to_first_token=tuple(snapshot["time_to_first_token"]["counts"]),
            inter_token=tuple(snapshot["inter_token"]["counts"]),
        )


STATES = ("computing", "active", "pinned", "resume", "idle", "free")


def cells_by_state(snapshot: Snapshot) -> dict[str, int]:
    """Cells in each state; they add up to the capacity."""
    return {state: snapshot["cache"][f"cells_{state}"] for state in STATES}


class History:
    """A ring of samples, and the thread that takes them. Safe from any thread."""

    def __init__(self, client: EngineClient, clock: Clock) -> None:
        self._client = client
        self._clock = clock
        self._lock = threading.Lock()
        self._samples: deque[Sample] = deque(maxlen=int(SPAN / INTERVAL))
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def sample(self) -> None:
        """Takes one sample now."""
        taken = Sample.of(self._client.snapshot(), self._clock)
        with self._lock:
            self._samples.append(taken)

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="pykv-admin-history", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        self.sample()
        while not self._stop.wait(INTERVAL):
            self.sample()

    def recent(self, now: Sample) -> Sample | None:
        """The youngest sample at least RECENT old, else the oldest; None if there is none."""
        with self._lock:
            best = self._samples[0] if self._samples else None
            for sample in self._samples:
                if sample.monotonic > now.monotonic - RECENT:
                    break
                best = sample
        return best

    def table(self) -> dict[str, Any]:
        """Columns and rows, oldest first. Counters, not rates: readers subtract."""
        counters = ("query_tokens", "hit_tokens", "prompt_tokens", "generated_tokens", "steps")
        with self._lock:
            samples = list(self._samples)
        rows = [
            [round(s.wall, 3), *(getattr(s, name) for name in counters), *s.cells.values()]
            for s in samples
        ]
        fields = ["time", *counters, *(f"cells_{state}" for state in STATES)]
        return {"interval_seconds": INTERVAL, "fields": fields, "rows": rows}
