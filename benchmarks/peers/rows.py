"""What is measured beside the peers, what is to be reached, and how rows are made of times."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

OURS = "pykv"
OWN_RATIOS = {"q8_0": 1.0, "q4_0": 0.9}  # of our own speed at f16


@dataclass(frozen=True)
class Case:
    """One prompt, then `generate` tokens for each of `sessions` sessions that share it.

    `prefill` and `decode` say which of the two speeds are rows of the table.
    """

    prompt: int
    generate: int
    sessions: int
    prefill: bool = False
    decode: bool = True

    def rows(self) -> list[str]:
        names = [f"prefill {self.prompt:,}"] if self.prefill else []
        if self.decode:
            after = f"after {self.prompt:,}" if self.prompt > SHORT else "short"
            many = f"{self.sessions} sessions on one {self.prompt:,} prompt"
            names.append("decode, " + (f"1 session, {after}" if self.sessions == 1 else many))
        return names


SHORT = 64
CASES = (
    Case(512, 2, 1, prefill=True, decode=False),
    Case(16, 64, 1),
    Case(1024, 64, 1, prefill=True),
    Case(2048, 2, 1, prefill=True, decode=False),
    Case(4096, 32, 1, prefill=True),
    Case(1024, 64, 4),
    Case(1024, 64, 16),
    Case(1024, 64, 32),
    Case(4096, 32, 16),
)
QUICK_CASES = (
    Case(16, 32, 1),
    Case(1024, 16, 1, prefill=True),
    Case(1024, 16, 16),
    Case(4096, 8, 16, prefill=True),
)

# Row -> KV type ("" for every one) -> least ratio to the best peer.
TARGETS: dict[str, dict[str, dict[str, float]]] = {
    "llama": {
        "prefill 1,024": {"f16": 1.25},
        "prefill 4,096": {"f16": 1.25, "q8_0": 1.25},
        "decode, 1 session, short": {"f16": 2.5},
        "decode, 1 session, after 4,096": {"f16": 2.2, "best": 2.5},
        "decode, 16 sessions on one 1,024 prompt": {"f16": 3.5},
        "decode, 32 sessions on one 1,024 prompt": {"f16": 3.5},
        "decode, 16 sessions on one 4,096 prompt": {"f16": 5.5},
    },
    "gemma3": {
        "prefill 1,024": {"f16": 2.0},
        "decode, 1 session, short": {"f16": 1.3},
        "decode, 16 sessions on one 1,024 prompt": {"f16": 3.0},
        "decode, 32 sessions on one 1,024 prompt": {"f16": 3.0},
    },
}


@dataclass(frozen=True)
class Speed:
    """Tokens per second of one program at one KV type: median of its runs, and
    (max - min) / median."""

    median: float
    spread: float

    @classmethod
    def of(cls, samples: Sequence[float]) -> Speed:
        middle = statistics.median(samples)
        return cls(middle, (max(samples) - min(samples)) / middle)


Speeds = Mapping[tuple[str, str], Speed]  # by program and KV type


def speeds(case: Case, samples: Iterable[tuple[tuple[str, str], dict[str, Any]]]) -> list[Speeds]:
    """Of the case's rows, in their order, from the runs of every program and KV type."""
    found: list[dict[tuple[str, str], list[float]]] = [{} for _ in case.rows()]
    tokens = [(case.prompt, "t_pp")] if case.prefill else []
    if case.decode:
        tokens.append((case.sessions * case.generate, "t_tg"))
    for who, run in samples:
        for row, (count, key) in zip(found, tokens, strict=True):
            row.setdefault(who, []).append(count / float(run[key]))
    return [{who: Speed.of(values) for who, values in row.items()} for row in found]


def records(name: str, measured: Speeds, architecture: str) -> list[dict[str, Any]]:
    """One record for each of our KV types beside the best peer at any of its own, and one
    for each beside our own f16."""
    targets = TARGETS.get(architecture, {}).get(name, {})
    peers = {who: speed for who, speed in measured.items() if who[0] != OURS}
    best = max(peers, key=lambda who: peers[who].median, default=None)
    ours = {kind: speed for (who, kind), speed in measured.items() if who == OURS}
    fastest = max(ours, key=lambda kind: ours[kind].median, default="")
    made = []
    for kind, speed in ours.items():
        target = max(
            (targets[key] for key in (kind, *(["best"] * (kind == fastest))) if key in targets),
            default=None,
        )
        peer = peers[best].median if best else None
        made.append(_record(f"{name}, {kind} KV", speed, peer, target))
        made[-1]["best_peer"] = " ".join(best) if best else None
        made[-1]["peers"] = {" ".join(who): each.median for who, each in peers.items()}
    for kind, least in OWN_RATIOS.items():
        if kind in ours and "f16" in ours:
            own = _record(f"{name}, own {kind} / f16", ours[kind], ours["f16"].median, least)
            made.append(own | {"best_peer": f"{OURS} f16", "peers": {}})
    return made


def _record(row: str, speed: Speed, peer: float | None, target: float | None) -> dict[str, Any]:
    ratio = speed.median / peer if peer else None
    return {
        "row": row,
        "value": speed.median,
        "unit": "tokens/s",
        "peer": peer,
        "limit": None,
        "ratio": ratio,
        "target": target,
        "ok": target is None or ratio is None or ratio >= target,
        "spread": speed.spread,
    }
