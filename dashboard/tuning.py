"""Live change of the thresholds: what may change, checks, versions, audit.

Every change raises the generation by one. A change names the generation it was based
on; if another one came between, it is refused and the other change is shown.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from .audit import Actor, AuditLog, AuditRow
from .client import EngineClient, Snapshot
from .clock import Clock
from .errors import AdminError, InvalidValue

Number = int | float
Values = dict[str, Number]

_APPLY_SECONDS = 2.0  # a step is shorter; after that a change is reported as pending
_POLL_SECONDS = 0.02
_REASON_CHARS = 200


@dataclass(frozen=True)
class Field:
    """One value an operator may change."""

    name: str
    group: str  # watermarks, limits: the engine call that takes it
    default: Number
    minimum: Number
    maximum: Number
    unit: str
    description: str

    @property
    def integer(self) -> bool:
        return isinstance(self.default, int)


# Ranges and defaults as in `Watermarks` (policy.h) and `EngineLimits` (engine.h).
FIELDS = (
    Field(
        "low", "watermarks", 0.05, 0.0, 1.0, "fraction of the pool",
        "Reclaim starts when less than this much of the pool is free. Not above high.",
    ),
    Field(
        "high", "watermarks", 0.10, 0.0, 1.0, "fraction of the pool",
        "Reclaim evicts idle prefixes until this much of the pool is free. Larger: fewer "
        "runs, but more prefixes lost.",
    ),
    Field(
        "parallel", "limits", 16, 1, 4096, "sequences",
        "Sequences decoded per step. More: higher throughput, slower single answers. "
        "Not above batch_size.",
    ),
    Field(
        "batch_size", "limits", 256, 1, 8192, "tokens per step",
        "Budget of one step: one token per generating sequence, the rest for prompts.",
    ),
    Field(
        "prefill_chunk", "limits", 256, 1, 8192, "tokens per step",
        "Most prompt tokens per step while others generate. Smaller: steadier answers; larger: "
        "earlier first tokens.",
    ),
    Field(
        "queue_length", "limits", 1024, 1, 1 << 20, "requests",
        "Requests that may wait. Further ones are refused at once.",
    ),
    Field(
        "ageing_seconds", "limits", 30.0, 0.0, 86400.0, "seconds",
        "Waiting so long weighs as much as one more of priority, so that nobody starves. 0: "
        "waiting weighs nothing.",
    ),
    Field(
        "gap_factor", "limits", 2.22, 0.0, 100.0, "times the step",
        "A step with prompts takes about so many times as long as one without, predicted from "
        "the steps before. Smaller: steadier answers; larger: earlier first tokens. From 1.1, or "
        "0: always prefill_chunk.",
    ),
    Field(
        "draft_max", "limits", 0, 0, 32, "tokens",
        "Tokens at most that a step computes ahead for a session, guessed from its own text. "
        "Answers do not change; texts that repeat themselves come faster.",
    ),
)  # fmt: skip
BY_NAME = {field.name: field for field in FIELDS}


class Conflict(AdminError):
    """Another change came first; `changes` are the ones since the version seen."""

    def __init__(self, seen: int, current: int, changes: list[AuditRow]) -> None:
        super().__init__(
            f"[Tuning.apply] the change was based on generation {seen}, but the current one "
            f"is {current}; look at the other change and send again with generation {current}"
        )
        self.changes = changes


def current_values(snapshot: Snapshot) -> Values:
    """The values that the engine runs with."""
    return {f.name: snapshot[f.group][f.name] for f in FIELDS}


def check(values: Mapping[str, Any], before: Values) -> Values:
    """`before` with `values` laid over it. InvalidValue names field, value and limit."""
    after = dict(before)
    for name, value in values.items():
        field = BY_NAME.get(name)
        if field is None:
            raise InvalidValue(
                f"[Tuning.apply] unknown field {name!r}; known: {', '.join(BY_NAME)}",
                field=str(name),
                value=value,
            )
        after[name] = _in_range(field, value)
    _ordered(after, "low", "high", set(values))
    _ordered(after, "parallel", "batch_size", set(values))
    return after


def _in_range(field: Field, value: Any) -> Number:
    kind = "an integer" if field.integer else "a number"
    limit = f"{kind} from {field.minimum} to {field.maximum} ({field.unit})"
    number: Number | None = None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and field.minimum <= value <= field.maximum:  # also false for NaN
        number = value
        if field.integer:
            number = int(value) if value == int(value) else None
    if number is None:
        raise InvalidValue(
            f"[Tuning.apply] {field.name} = {value!r} is out of range; give {limit}",
            field=field.name,
            value=value,
            limit=limit,
        )
    return number


def _ordered(values: Values, lower: str, upper: str, changed: set[str]) -> None:
    if values[lower] > values[upper]:
        blamed, limit = (
            (lower, f"at most {upper} = {values[upper]}")
            if lower in changed or upper not in changed
            else (upper, f"at least {lower} = {values[lower]}")
        )
        raise InvalidValue(
            f"[Tuning.apply] {blamed} = {values[blamed]} must be {limit}; change both together",
            field=blamed,
            value=values[blamed],
            limit=limit,
        )


class Tuning:
    """Reads and changes the thresholds of one engine. Safe from any thread."""

    def __init__(self, client: EngineClient, audit: AuditLog, clock: Clock) -> None:
        self._client = client
        self._audit = audit
        self._clock = clock
        self._lock = threading.Lock()
        self._generation = audit.last_generation()
        self._known: Values | None = None
        self._pending_from: Values | None = None

    @property
    def generation(self) -> int:
        return self._generation

    def read(self) -> dict[str, Any]:
        """Generation and fields with current value, default, range, unit, description."""
        with self._lock:
            values = self._observe()
            return self._view(values)

    def _view(self, values: Values) -> dict[str, Any]:
        fields = [asdict(f) | {"integer": f.integer, "current": values[f.name]} for f in FIELDS]
        return {"generation": self._generation, "fields": fields}

    def _observe(self) -> Values:
        """Current values. A change that came from elsewhere is a new generation."""
        values = current_values(self._client.snapshot())
        if self._known is None or values == self._known:
            self._known, self._pending_from = values, None
        elif values != self._pending_from:
            before, self._known, self._pending_from = self._known, values, None
            self._generation += 1
            engine = Actor("engine", "engine", "")
            self._note(engine, "ok", before, values, "changed outside the admin service")
        return values

    def apply(
        self, values: Mapping[str, Any], *, seen: int, actor: Actor, reason: str = ""
    ) -> dict[str, Any]:
        """Changes the given fields, all or none, and returns the new view.

        Raises Conflict if `seen` is not the current generation, InvalidValue if a value
        is not allowed (by this check or by the engine). Each outcome leaves an audit row.
        `view["applied"]` is false if the engine has not taken the values over yet.
        """
        reason = reason[:_REASON_CHARS]
        with self._lock:
            before = self._observe()
            if seen != self._generation:
                changes = [r for r in self._audit.rows(action="tune") if _newer(r, seen)]
                self._note(actor, "conflict", before, dict(values), reason)
                raise Conflict(seen, self._generation, changes)
            try:
                after = check(values, before)
            except InvalidValue:
                self._note(actor, "invalid", before, dict(values), reason)
                raise
            if after == before:
                return self._view(before) | {"applied": True}
            try:
                self._send(before, after)
            except ValueError as error:
                self._note(actor, "failed", before, after, reason)
                raise InvalidValue(f"{error}", field=", ".join(values)) from error
            return self._settle(actor, before, after, reason)

    def _send(self, before: Values, after: Values) -> None:
        def of(group: str, source: Values) -> dict[str, Any]:
            return {f.name: source[f.name] for f in FIELDS if f.group == group}

        marks = of("watermarks", after)
        if marks != of("watermarks", before):
            self._client.set_watermarks(marks["low"], marks["high"])
        if of("limits", after) != of("limits", before):
            try:
                self._client.set_limits(**of("limits", after))
            except Exception:
                old = of("watermarks", before)
                self._client.set_watermarks(old["low"], old["high"])
                raise

    def _settle(self, actor: Actor, before: Values, after: Values, reason: str) -> dict[str, Any]:
        """Waits until the engine's snapshot shows the values, for at most two seconds."""
        deadline = self._clock.monotonic() + _APPLY_SECONDS
        applied = current_values(self._client.snapshot()) == after
        while not applied and self._clock.monotonic() < deadline:
            self._clock.wait(_POLL_SECONDS)
            applied = current_values(self._client.snapshot()) == after
        self._generation += 1
        self._known = after
        self._pending_from = None if applied else before
        try:
            self._note(actor, "ok" if applied else "pending", before, after, reason)
        except AdminError:  # no change without its row
            self._send(after, before)
            raise
        return self._view(after if applied else before) | {"applied": applied}

    def _note(
        self, actor: Actor, result: str, before: Values, after: Mapping[str, Any], reason: str
    ) -> None:
        old, new = _difference(before, after)
        self._audit.append(
            actor,
            "tune",
            result,
            before=old,
            after=new,
            reason=reason,
            generation=self._generation,
        )


def _difference(before: Values, after: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Old and new values of the fields that differ."""
    changed = {k: v for k, v in after.items() if k not in before or before[k] != v}
    return {k: before[k] for k in changed if k in before}, changed


def _newer(row: AuditRow, seen: int) -> bool:
    return row.generation > seen and row.result in {"ok", "pending"}
