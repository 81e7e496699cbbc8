"""Prometheus metrics: one engine snapshot per scrape, counters only where two scrapers
must agree, bounded labels. The catalogue (metric_names.py) is the single list of names.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from prometheus_client.core import CollectorRegistry, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)

from .client import EngineClient, Snapshot
from .history import STATES
from .metric_names import CATALOGUE, MetricSpec
from .overview import EVICT_REASONS, RESUME_EVENTS
from .tuning import BY_NAME, current_values

POOL = "full"  # of the layers that keep all tokens
TIER = "pool"
OUTCOMES = ("stop", "length", "cancelled", "failed", "timeout", "rejected")
MAX_TENANTS = 50
OTHER = "other"

Labels = tuple[str, ...]
Samples = dict[Labels, float]
ActionCounts = Callable[[], dict[tuple[str, str, str], int]]


class TenantLabels:
    """Gives the first MAX_TENANTS tenants (largest first) a label of their own for good.

    A tenant never moves between its own label and `other`: that would look like a
    counter reset to Prometheus.
    """

    def __init__(self) -> None:
        self._named: set[str] = set()
        self._lock = threading.Lock()

    def of(self, tenants: dict[str, dict[str, Any]]) -> dict[str, str]:
        with self._lock:
            by_size = sorted(tenants, key=lambda name: (-tenants[name]["query_tokens"], name))
            for name in by_size:
                if len(self._named) < MAX_TENANTS and name != OTHER:
                    self._named.add(name)
            return {name: name if name in self._named else OTHER for name in tenants}


def pool_name(pool: dict[str, Any]) -> str:
    """`full`, or kind and size of the window whose layers it has, such as `standard_512`."""
    return POOL if pool["window"] is None else "{}_{}".format(*pool["window"])


class PykvCollector:
    """Registers with a prometheus_client registry. Safe from any thread."""

    def __init__(
        self,
        client: EngineClient,
        *,
        actions: ActionCounts,
        generation: Callable[[], int],
    ) -> None:
        self._client = client
        self._actions = actions
        self._generation = generation
        self._tenants = TenantLabels()

    def describe(self) -> Iterable[Metric]:
        """Every family without samples."""
        return [_family(spec) for spec in CATALOGUE]

    def collect(self) -> Iterator[Metric]:
        """Every family, all from one snapshot."""
        snapshot = self._client.snapshot()
        samples = self._samples(snapshot)
        for spec in CATALOGUE:
            family = _family(spec)
            if isinstance(family, HistogramMetricFamily):
                _add_histogram(family, snapshot[spec.source])
            elif spec.kind == "info":
                family.add_metric([str(v) for v in self._info(spec).values()], 1)
            else:
                for labels, value in samples[spec.name].items():
                    family.add_metric(labels, value)
            yield family

    def _info(self, spec: MetricSpec) -> dict[str, str]:
        facts = self._client.build_info() if spec.source == "build" else self._client.config_info()
        return {label: facts.get(label, "") for label in spec.labels}

    def _samples(self, snapshot: Snapshot) -> dict[str, Samples]:
        cache = snapshot["cache"]
        limits = current_values(snapshot)
        states = ("waiting", "prefilling", "generating")
        plain: dict[str, float] = {
            spec.name: _at(snapshot, spec.source) for spec in CATALOGUE if spec.kind_is_plain
        }
        labelled: dict[str, Samples] = {
            "pykv_cells": {
                (pool_name(pool), state): pool[f"cells_{state}"]
                for pool in cache["pools"]
                for state in STATES
            },
            "pykv_pool_bytes": {
                (pool_name(pool), kind): pool[f"bytes_{kind}"]
                for pool in cache["pools"]
                for kind in ("reserved", "committed")
            }
            | {(POOL, "budget"): cache["bytes_budget"]},
            "pykv_resume_point_events_total": {
                (event,): cache[f"resume_points_{event}"] for event in RESUME_EVENTS
            },
            "pykv_resume_bytes": {
                ("used",): cache["resume_bytes"],
                ("budget",): cache["resume_bytes_budget"],
            },
            "pykv_evicted_cells_total": {(r,): cache[f"evicted_cells_{r}"] for r in EVICT_REASONS},
            "pykv_sessions": {(s,): snapshot[s] for s in states},
            "pykv_requests_total": {
                (o,): snapshot["requests"].get(o, 0)
                for o in (*OUTCOMES, *sorted(set(snapshot["requests"]) - set(OUTCOMES)))
            },
            "pykv_tuning_value": {(n, BY_NAME[n].unit): v for n, v in limits.items()},
            "pykv_config_generation": {(): self._generation()},
            "pykv_admin_actions_total": {k: float(v) for k, v in self._actions().items()},
        }
        for name, value in plain.items():
            labelled[name] = {(): value}
        return labelled | self._prefix_samples(snapshot["tenants"])

    def _prefix_samples(self, tenants: dict[str, dict[str, Any]]) -> dict[str, Samples]:
        query: Samples = {}
        hit: Samples = {}
        miss: Samples = {}
        labels = self._tenants.of(tenants)
        for name, counters in tenants.items():
            label = labels[name]
            query[(label,)] = query.get((label,), 0) + counters["query_tokens"]
            hit[(label, TIER)] = hit.get((label, TIER), 0) + counters["hit_tokens"]
            for reason, tokens in counters["miss_tokens"].items():
                miss[(label, reason)] = miss.get((label, reason), 0) + tokens
        return {
            "pykv_prefix_query_tokens_total": query,
            "pykv_prefix_hit_tokens_total": hit,
            "pykv_prefix_miss_tokens_total": miss,
        }


def _at(snapshot: Snapshot, path: str) -> float:
    value: Any = snapshot
    for part in path.split("."):
        value = value[part]
    return float(value)


def _family(spec: MetricSpec) -> Any:
    kinds: dict[str, Any] = {
        "counter": CounterMetricFamily,
        "gauge": GaugeMetricFamily,
        "info": GaugeMetricFamily,
    }
    if spec.kind == "histogram":
        return HistogramMetricFamily(spec.name, spec.help)
    return kinds[spec.kind](spec.name, spec.help, labels=spec.labels)


def _add_histogram(family: HistogramMetricFamily, histogram: dict[str, Any]) -> None:
    cumulative, buckets = 0, []
    bounds = [*(repr(float(b)) for b in histogram["bounds"]), "+Inf"]
    for bound, count in zip(bounds, histogram["counts"], strict=True):
        cumulative += count
        buckets.append((bound, float(cumulative)))
    family.add_metric([], buckets, histogram["sum"])


class Exporter:
    """A registry with only our collector, and its text form."""

    def __init__(self, collector: PykvCollector) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(collector)

    def render(self, accept: str) -> tuple[bytes, str]:
        """(body, content type) in the format that the `Accept` header prefers."""
        encoder, content_type = choose_encoder(accept)
        return encoder(self.registry), content_type
