"""Every metric that the collector exposes. docs/metrics.md and monitoring/ are tested
against this list in both directions."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class MetricSpec:
    """Name as scraped (counters with `_total`), type, help text and labels."""

    name: str
    kind: str  # counter, gauge, histogram, info
    help: str
    labels: tuple[str, ...] = ()
    source: str = ""  # path in the snapshot, where one number or histogram is the value

    @property
    def kind_is_plain(self) -> bool:
        """One unlabelled number straight from the snapshot."""
        return self.kind in {"counter", "gauge"} and bool(self.source)


def _counter(name: str, help: str, labels: tuple[str, ...] = (), source: str = "") -> MetricSpec:
    return MetricSpec(name, "counter", help, labels, source)


def _gauge(name: str, help: str, labels: tuple[str, ...] = (), source: str = "") -> MetricSpec:
    return MetricSpec(name, "gauge", help, labels, source)


def _histogram(name: str, help: str, source: str) -> MetricSpec:
    return MetricSpec(name, "histogram", help, (), source)


CATALOGUE: tuple[MetricSpec, ...] = (
    _counter(
        "pykv_prefix_query_tokens_total",
        "Prompt tokens looked up in the prefix cache. Equals hits plus misses of all reasons.",
        ("tenant",),
    ),
    _counter(
        "pykv_prefix_hit_tokens_total",
        "Prompt tokens whose KV another request had computed.",
        ("tenant", "tier"),
    ),
    _counter(
        "pykv_prefix_miss_tokens_total",
        "Prompt tokens that had to be computed, by reason.",
        ("tenant", "reason"),
    ),
    _gauge(
        "pykv_cells",
        "Cells of each pool by state. The states of a pool add up to its capacity.",
        ("pool", "state"),
    ),
    _gauge(
        "pykv_pool_bytes",
        "Bytes of each pool: address space reserved, memory committed; hard budget of all.",
        ("pool", "kind"),
    ),
    _gauge(
        "pykv_resume_points",
        "Places from which layers with a window can continue.",
        source="cache.resume_points",
    ),
    _gauge("pykv_resume_bytes", "Bytes that resume points hold, and their budget.", ("kind",)),
    _counter(
        "pykv_resume_point_events_total",
        "Resume points made, used by a sequence, and dropped.",
        ("event",),
    ),
    _gauge(
        "pykv_state_slots",
        "Slots for states of recurrent layers; 0 if the model has none.",
        source="cache.states.slots",
    ),
    _gauge(
        "pykv_state_slots_used",
        "Slots that sequences, a step or resume points hold.",
        source="cache.states.slots_used",
    ),
    _gauge(
        "pykv_state_slots_resume",
        "Slots that resume points hold, alone or with others.",
        source="cache.states.slots_resume",
    ),
    _gauge(
        "pykv_state_bytes",
        "Committed memory of slots.",
        source="cache.states.bytes_committed",
    ),
    _counter("pykv_evicted_cells_total", "Cells evicted from the prefix tree.", ("reason",)),
    _counter(
        "pykv_alloc_failures_total",
        "Plans that did not fit into the free cells or bytes.",
        source="cache.alloc_failures",
    ),
    _counter("pykv_reclaim_ticks_total", "Looks at the watermarks.", source="cache.reclaim_ticks"),
    _counter(
        "pykv_reclaim_runs_total", "Ticks that evicted something.", source="cache.reclaim_runs"
    ),
    _counter(
        "pykv_compactions_total",
        "Compactions that moved cells.",
        source="cache.compactions",
    ),
    _counter(
        "pykv_compacted_cells_total",
        "Cells moved to make runs long and blocks free.",
        source="cache.compacted_cells",
    ),
    _histogram("pykv_reclaim_duration_seconds", "Time of a reclaim tick.", "reclaim_duration"),
    _gauge("pykv_sessions", "Open sessions by state.", ("state",)),
    _counter(
        "pykv_preempted_total",
        "Sessions that gave their cells back to let others go on.",
        source="preempted",
    ),
    _counter(
        "pykv_drafted_tokens_total", "Tokens guessed and computed ahead.", source="drafted_tokens"
    ),
    _counter(
        "pykv_accepted_tokens_total", "Guessed tokens that were right.", source="accepted_tokens"
    ),
    _counter("pykv_resumed_total", "Preempted sessions that went on.", source="resumed"),
    _histogram(
        "pykv_time_to_first_token_seconds",
        "From submission to the first generated token.",
        "time_to_first_token",
    ),
    _histogram(
        "pykv_inter_token_seconds", "Between two tokens of the same request.", "inter_token"
    ),
    _histogram("pykv_step_seconds", "Duration of an engine step.", "step_duration"),
    _counter(
        "pykv_prompt_tokens_total",
        "Prompt tokens, computed or reused, each request counted once.",
        source="prompt_tokens",
    ),
    _counter(
        "pykv_computed_prompt_tokens_total",
        "Prompt tokens really computed, recomputation after preemption included.",
        source="computed_prompt_tokens",
    ),
    _counter("pykv_generated_tokens_total", "Tokens generated.", source="generated_tokens"),
    _counter("pykv_requests_total", "Requests that ended, by outcome.", ("outcome",)),
    _gauge("pykv_queue_length", "Requests that wait to be started.", source="waiting"),
    _gauge("pykv_tuning_value", "Current value of each live setting.", ("field", "unit")),
    _gauge("pykv_config_generation", "Raised by one with every change of a live setting."),
    _counter(
        "pykv_admin_actions_total",
        "Actions on the admin service since it started.",
        ("action", "role", "result"),
    ),
    MetricSpec(
        "pykv_build_info",
        "info",
        "Version and build of the engine; the value is always 1.",
        ("version", "compiler", "build_type", "backend"),
        "build",
    ),
    MetricSpec(
        "pykv_config_info",
        "info",
        "What was fixed when the engine started; the value is always 1.",
        ("model", "cache_type_k", "cache_type_v", "threads"),
        "config",
    ),
)
