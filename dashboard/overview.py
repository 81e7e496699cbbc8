"""One snapshot as the JSON document that the overview page and scripts read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .client import Snapshot
from .clock import Clock, iso
from .history import History, Sample, cells_by_state, token_totals


def overview(snapshot: Snapshot, history: History, clock: Clock) -> dict[str, Any]:
    """Counters since start, and under `recent` what about the last minute brought."""
    now = Sample.of(snapshot, clock)
    past = history.recent(now)
    cache = snapshot["cache"]
    open_sessions = {s: snapshot[s] for s in ("waiting", "prefilling", "generating")}
    return {
        "time": iso(now.wall),
        "time_seconds": round(now.wall, 3),
        "snapshot": snapshot["number"],
        "uptime_seconds": snapshot["uptime_seconds"],
        "steps": snapshot["steps"],
        "prefix": _prefix(snapshot, now, past),
        "cells": {"capacity": cache["cells_capacity"], "states": cells_by_state(snapshot)},
        "bytes": {k: cache[f"bytes_{k}"] for k in ("reserved", "committed", "budget", "per_cell")},
        "pools": [dict(pool) for pool in cache["pools"]],
        "states": dict(cache["states"]),
        "resume_points": {
            "count": cache["resume_points"],
            "bytes": cache["resume_bytes"],
            "bytes_budget": cache["resume_bytes_budget"],
            **{event: cache[f"resume_points_{event}"] for event in RESUME_EVENTS},
        },
        "evicted_cells": {r: cache[f"evicted_cells_{r}"] for r in EVICT_REASONS},
        "reclaim": {"ticks": cache["reclaim_ticks"], "runs": cache["reclaim_runs"]},
        "alloc_failures": cache["alloc_failures"],
        "tokens": {
            "prompt": snapshot["prompt_tokens"],
            "computed_prompt": snapshot["computed_prompt_tokens"],
            "generated": snapshot["generated_tokens"],
        },
        "requests": dict(snapshot["requests"]),
        "preempted": snapshot["preempted"],
        "resumed": snapshot["resumed"],
        "open_sessions": open_sessions,
        "queue_length": snapshot["waiting"],
        "limits": dict(snapshot["limits"]),
        "watermarks": dict(snapshot["watermarks"]),
        "latency": {
            name: _latency(snapshot[name], getattr(past, name, None))
            for name in ("time_to_first_token", "inter_token")
        },
        "tenants": _tenants(snapshot),
        "sessions": list(snapshot["sessions"]),
        "sessions_total": sum(open_sessions.values()),
    }


EVICT_REASONS = ("watermark", "demand", "request")
RESUME_EVENTS = ("made", "used", "dropped")


def ratio(part: float, whole: float) -> float | None:
    """None where nothing was asked yet, which is not the same as 0."""
    return part / whole if whole else None


def _prefix(snapshot: Snapshot, now: Sample, past: Sample | None) -> dict[str, Any]:
    query, hit = token_totals(snapshot)
    misses: dict[str, int] = {}
    for tenant in snapshot["tenants"].values():
        for reason, tokens in tenant["miss_tokens"].items():
            misses[reason] = misses.get(reason, 0) + tokens
    recent_query = query - past.query_tokens if past else 0
    recent_hit = hit - past.hit_tokens if past else 0
    return {
        "query_tokens": query,
        "hit_tokens": hit,
        "miss_tokens": misses,
        "hit_ratio": ratio(hit, query),
        "recent": {
            "seconds": round(now.monotonic - past.monotonic, 3) if past else 0.0,
            "query_tokens": recent_query,
            "hit_tokens": recent_hit,
            "hit_ratio": ratio(recent_hit, recent_query),
        },
    }


def _tenants(snapshot: Snapshot) -> list[dict[str, Any]]:
    rows = [
        {
            "tenant": name,
            "query_tokens": t["query_tokens"],
            "hit_tokens": t["hit_tokens"],
            "miss_tokens": dict(t["miss_tokens"]),
            "hit_ratio": ratio(t["hit_tokens"], t["query_tokens"]),
        }
        for name, t in snapshot["tenants"].items()
    ]
    return sorted(rows, key=lambda row: (-row["query_tokens"], row["tenant"]))


def _latency(histogram: dict[str, Any], past: Sequence[int] | None) -> dict[str, Any]:
    counts = list(histogram["counts"])
    bounds = histogram["bounds"]
    recent = [now - then for now, then in zip(counts, past, strict=True)] if past else counts
    total = sum(counts)
    return {
        "count": total,
        "mean_seconds": ratio(histogram["sum"], total),
        "p50_seconds": quantile(0.5, bounds, counts),
        "p95_seconds": quantile(0.95, bounds, counts),
        "recent": {
            "count": sum(recent),
            "p50_seconds": quantile(0.5, bounds, recent),
            "p95_seconds": quantile(0.95, bounds, recent),
        },
    }


def quantile(q: float, bounds: Sequence[float], counts: Sequence[int]) -> float | None:
    """Estimate from bucket counts, linear inside a bucket as PromQL's histogram_quantile.

    `counts` has one entry more than `bounds`; what lies in the last one (above all
    bounds) is reported as the highest bound. None if there are no observations.
    """
    total = sum(counts)
    if total == 0:
        return None
    rank, seen, low = q * total, 0, 0.0
    for bound, count in zip(bounds, counts, strict=False):
        if count and seen + count >= rank:
            return low + (bound - low) * (rank - seen) / count
        seen += count
        low = bound
    return float(bounds[-1]) if bounds else None
