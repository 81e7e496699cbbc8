"""An engine's answers without an engine: plausible figures that move with `advance()`."""

from __future__ import annotations

import copy
from typing import Any

BOUNDS = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0]


def histogram(counts: dict[float, int], total: float) -> dict[str, Any]:
    """`counts` by upper bound; what is not named is 0."""
    return {
        "bounds": list(BOUNDS),
        "counts": [counts.get(b, 0) for b in BOUNDS] + [0],
        "sum": total,
    }


def tenant(query: int, hit: int, last: int) -> dict[str, Any]:
    misses = {"first_seen": query - hit - last, "last_token": last}
    return {"query_tokens": query, "hit_tokens": hit, "miss_tokens": misses}


def session(request: int, state: str, name: str, tokens: tuple[int, int, int], age: float) -> Any:
    prompt, cached, generated = tokens
    return {
        "request": request,
        "tenant": name,
        "state": state,
        "prompt_tokens": prompt,
        "cached_tokens": cached,
        "computed_tokens": prompt - cached if state == "generating" else (prompt - cached) // 2,
        "generated_tokens": generated,
        "age_seconds": age,
    }


def first_snapshot() -> dict[str, Any]:
    tenants = {"acme": tenant(412_310, 371_950, 320), "globex": tenant(96_440, 58_212, 171)}
    tenants["default"] = tenant(18_020, 4_110, 64)
    sessions = [
        session(2301, "generating", "acme", (2048, 1984, 210), 9.4),
        session(2304, "generating", "acme", (2112, 1984, 174), 8.1),
        session(2309, "generating", "globex", (890, 512, 121), 5.6),
        session(2311, "generating", "default", (340, 0, 96), 4.4),
        session(2315, "generating", "acme", (2090, 1984, 33), 1.7),
        session(2317, "prefilling", "globex", (3120, 512, 0), 0.9),
        session(2318, "waiting", "default", (1500, 0, 0), 0.2),
    ]
    return {
        "number": 48_210,
        "steps": 48_209,
        "uptime_seconds": 7_384.2,
        "cache": {
            "cells_capacity": 65_536,
            "cells_computing": 64,
            "cells_active": 9_812,
            "cells_pinned": 0,
            "cells_resume": 0,
            "cells_idle": 41_338,
            "cells_free": 14_322,
            "bytes_reserved": 65_536 * 46_080,
            "bytes_committed": 51_840 * 46_080,
            "bytes_per_cell": 46_080,
            "bytes_budget": 65_536 * 46_080,
            "sequences": 6,
            "tree_nodes": 1_812,
            "tree_tokens": 50_914,
            "evicted_cells_watermark": 120_448,
            "evicted_cells_demand": 3_072,
            "evicted_cells_request": 0,
            "match_query_tokens": 526_770,
            "match_hit_tokens": 434_272,
            "alloc_failures": 3,
            "cells_copied": 0,
            "compactions": 0,
            "compacted_cells": 0,
            "states": {
                "slots": 0,
                "slots_used": 0,
                "slots_resume": 0,
                "bytes_per_slot": 0,
                "bytes_committed": 0,
            },
            "k_bytes_rewritten": 0,
            "reclaim_ticks": 48_209,
            "reclaim_runs": 371,
            "match_no_resume_point_tokens": 0,
            "resume_points": 0,
            "resume_points_made": 0,
            "resume_points_used": 0,
            "resume_points_dropped": 0,
            "resume_bytes": 0,
            "resume_bytes_budget": 0,
            "pools": [
                {
                    "window": None,
                    "layers": 30,
                    "cells_capacity": 65_536,
                    "cells_computing": 64,
                    "cells_active": 9_812,
                    "cells_pinned": 0,
                    "cells_resume": 0,
                    "cells_idle": 41_338,
                    "cells_free": 14_322,
                    "bytes_reserved": 65_536 * 46_080,
                    "bytes_committed": 51_840 * 46_080,
                    "bytes_per_cell": 46_080,
                }
            ],
            "generation": 991_201,
        },
        "watermarks": {"low": 0.05, "high": 0.10},
        "limits": {
            "parallel": 16,
            "batch_size": 256,
            "prefill_chunk": 256,
            "queue_length": 1024,
            "ageing_seconds": 30.0,
            "gap_factor": 2.22,
            "draft_max": 0,
        },
        "tenants": tenants,
        "prompt_tokens": 526_770,
        "computed_prompt_tokens": 93_610,
        "generated_tokens": 301_455,
        "requests": {
            "stop": 1_902,
            "length": 388,
            "cancelled": 21,
            "failed": 1,
            "timeout": 0,
            "rejected": 4,
        },
        "drafted_tokens": 40,
        "accepted_tokens": 30,
        "preempted": 2,
        "resumed": 2,
        "waiting": 1,
        "prefilling": 1,
        "generating": 5,
        "sessions": sessions,
        "time_to_first_token": histogram(
            {0.05: 400, 0.1: 1200, 0.25: 520, 0.5: 160, 1.0: 30}, 298.0
        ),
        "inter_token": histogram({0.01: 90_000, 0.025: 190_000, 0.05: 18_000, 0.1: 1_140}, 4_890.0),
        "step_duration": histogram({0.01: 20_000, 0.025: 26_000, 0.05: 2_000, 0.1: 209}, 760.0),
        "reclaim_duration": histogram({0.001: 48_100, 0.0025: 100, 0.005: 9}, 3.1),
    }


class FakeClient:
    """An EngineClient. `lag` snapshots pass before a change shows, as in a busy engine."""

    def __init__(self, *, lag: int = 0) -> None:
        self.data = first_snapshot()
        self.snapshots_taken = 0
        self.refuse: str = ""  # message of the ValueError that the setters raise
        self._lag = lag
        self._waiting: list[tuple[int, str, dict[str, Any]]] = []

    def snapshot(self) -> dict[str, Any]:
        self.snapshots_taken += 1
        due = [w for w in self._waiting if w[0] <= self.snapshots_taken]
        self._waiting = [w for w in self._waiting if w[0] > self.snapshots_taken]
        for _, group, values in due:
            self.data[group].update(values)
        return copy.deepcopy(self.data)

    def set_watermarks(self, low: float, high: float) -> None:
        self._set("watermarks", {"low": low, "high": high})

    def set_limits(self, **limits: int) -> None:
        self._set("limits", dict(limits))

    def _set(self, group: str, values: dict[str, Any]) -> None:
        if self.refuse and group == "limits":
            raise ValueError(self.refuse)
        self._waiting.append((self.snapshots_taken + 1 + self._lag, group, values))

    def build_info(self) -> dict[str, str]:
        return {"version": "0.1.0", "compiler": "GNU 12", "build_type": "Release", "backend": "cpu"}

    def config_info(self) -> dict[str, str]:
        return {
            "model": "smollm2-135m", "cache_type_k": "f16", "cache_type_v": "q8_0", "threads": "2",
        }  # fmt: skip

    def advance(self, steps: int = 1, *, hit: int = 96, miss: int = 20, generated: int = 5) -> None:
        """`steps` engine steps, each with so many tokens of tenant acme."""
        data, acme = self.data, self.data["tenants"]["acme"]
        data["number"] += steps
        data["steps"] += steps
        data["uptime_seconds"] += 0.02 * steps
        acme["query_tokens"] += (hit + miss) * steps
        acme["hit_tokens"] += hit * steps
        acme["miss_tokens"]["first_seen"] += miss * steps
        data["prompt_tokens"] += (hit + miss) * steps
        data["computed_prompt_tokens"] += miss * steps
        data["generated_tokens"] += generated * steps
        data["inter_token"]["counts"][4] += generated * steps
        data["inter_token"]["sum"] += 0.02 * generated * steps
        cache = data["cache"]
        taken = min(miss * steps, cache["cells_free"])
        cache["cells_free"] -= taken
        cache["cells_idle"] += taken
        if cache["cells_free"] < 0.05 * cache["cells_capacity"]:
            evicted = min(cache["cells_idle"], 8 * 1024)
            cache["cells_idle"] -= evicted
            cache["cells_free"] += evicted
            cache["evicted_cells_watermark"] += evicted
            cache["reclaim_runs"] += 1
