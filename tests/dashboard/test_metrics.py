"""/metrics: names, types, sums, and that looking changes nothing (CASES.md C28, C29)."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open
from prometheus_client.parser import text_string_to_metric_families as parse_plain

from pykv.dashboard.metric_names import CATALOGUE
from pykv.dashboard.metrics import MAX_TENANTS, OTHER, TenantLabels
from tests.dashboard.conftest import Admin
from tests.dashboard.fake_client import BOUNDS, tenant

OPEN_METRICS = "application/openmetrics-text; version=1.0.0"
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def scrape(admin: Admin, accept: str = "text/plain") -> str:
    headers = admin.token | {"Accept": accept}
    response = admin.browser().get("/metrics", headers=headers)
    assert response.status_code == 200
    return str(response.text)


def samples(text: str) -> Samples:
    found: Samples = {}
    for family in parse_plain(text):
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in found, f"{key} twice"
            found[key] = sample.value
    return found


def value(found: Samples, name: str, **labels: str) -> float:
    return found[(name, tuple(sorted(labels.items())))]


def test_types_and_help_as_in_the_catalogue(admin: Admin) -> None:
    kinds = {"info": "gauge"}
    families = {f.name: f for f in parse_plain(scrape(admin))}
    for spec in CATALOGUE:
        family = families.pop(spec.name.removesuffix("_total"))
        assert (family.type, family.documentation) == (kinds.get(spec.kind, spec.kind), spec.help)
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == set(spec.labels)
    assert not families


def test_names_follow_the_rules() -> None:
    assert len({s.name for s in CATALOGUE}) == len(CATALOGUE)
    for spec in CATALOGUE:
        assert spec.name.startswith("pykv_") and ":" not in spec.name
        assert spec.name.endswith("_total") == (spec.kind == "counter")
        assert not spec.name.endswith(("_ratio", "_ms", "_percent", "_per_second"))
        assert spec.help.endswith(".")


def test_described_and_collected_are_the_same(admin: Admin) -> None:
    text = scrape(admin)
    for spec in CATALOGUE:
        assert f"# HELP {spec.name} " in text


@pytest.mark.parametrize("accept", ["text/plain", OPEN_METRICS, ""])
def test_both_text_formats_parse(admin: Admin, accept: str) -> None:
    parse = parse_open if "openmetrics" in accept else parse_plain
    names = {f.name for f in parse(scrape(admin, accept))}
    assert "pykv_prefix_query_tokens" in names


def test_one_snapshot_per_scrape(admin: Admin) -> None:
    before = admin.engine.snapshots_taken
    scrape(admin)
    assert admin.engine.snapshots_taken == before + 1


def test_two_scrapers_of_an_idle_server_agree(admin: Admin) -> None:
    first = samples(scrape(admin))
    for _ in range(5):
        scrape(admin)  # the other scraper
        admin.get("/api/v1/overview")
    assert samples(scrape(admin)) == first


def test_counters_never_fall_and_nothing_is_a_rate(admin: Admin) -> None:
    counters = {s.name for s in CATALOGUE if s.kind == "counter"}
    before = samples(scrape(admin))
    for _ in range(50):
        admin.engine.advance(20)
        after = samples(scrape(admin))
        for key, earlier in before.items():
            if key[0] in counters or key[0].endswith(("_bucket", "_count", "_sum")):
                assert after[key] >= earlier, key
        before = after


def test_states_add_up_to_the_capacity(admin: Admin) -> None:
    for _ in range(20):
        found = samples(scrape(admin))
        total = sum(v for (name, _), v in found.items() if name == "pykv_cells")
        assert total == admin.engine.data["cache"]["cells_capacity"]
        admin.engine.advance(100)


def test_queries_are_hits_plus_misses(admin: Admin) -> None:
    admin.engine.advance(7)
    found = samples(scrape(admin))

    def total(name: str) -> float:
        return sum(v for (n, _), v in found.items() if n == name)

    assert total("pykv_prefix_query_tokens_total") == total("pykv_prefix_hit_tokens_total") + total(
        "pykv_prefix_miss_tokens_total"
    )


def test_values_are_the_snapshot_s(admin: Admin) -> None:
    found, data = samples(scrape(admin)), admin.engine.data
    cache: dict[str, Any] = data["cache"]
    assert value(found, "pykv_cells", pool="full", state="idle") == cache["cells_idle"]
    assert value(found, "pykv_pool_bytes", pool="full", kind="budget") == cache["bytes_budget"]
    assert value(found, "pykv_evicted_cells_total", reason="demand") == 3072
    assert value(found, "pykv_alloc_failures_total") == 3
    assert value(found, "pykv_reclaim_ticks_total") == cache["reclaim_ticks"]
    assert value(found, "pykv_sessions", state="generating") == 5
    assert value(found, "pykv_queue_length") == 1
    assert value(found, "pykv_requests_total", outcome="rejected") == 4
    assert value(found, "pykv_prompt_tokens_total") == data["prompt_tokens"]
    assert value(found, "pykv_computed_prompt_tokens_total") == data["computed_prompt_tokens"]
    assert value(found, "pykv_preempted_total") == 2
    assert value(found, "pykv_drafted_tokens_total") == 40
    assert value(found, "pykv_accepted_tokens_total") == 30
    assert value(found, "pykv_tuning_value", field="queue_length", unit="requests") == 1024
    miss = value(found, "pykv_prefix_miss_tokens_total", tenant="acme", reason="last_token")
    assert miss == data["tenants"]["acme"]["miss_tokens"]["last_token"]


def test_histogram_buckets_are_cumulative(admin: Admin) -> None:
    found = samples(scrape(admin))
    histogram = admin.engine.data["time_to_first_token"]
    buckets = [
        value(found, "pykv_time_to_first_token_seconds_bucket", le=le)
        for le in [*(str(b) for b in BOUNDS), "+Inf"]
    ]
    assert buckets == sorted(buckets)
    assert buckets[-1] == sum(histogram["counts"])
    assert value(found, "pykv_time_to_first_token_seconds_count") == buckets[-1]
    assert value(found, "pykv_time_to_first_token_seconds_sum") == histogram["sum"]


def test_info_metrics(admin: Admin) -> None:
    found = samples(scrape(admin))
    labels = admin.engine.build_info()
    assert value(found, "pykv_build_info", **labels) == 1
    assert value(found, "pykv_config_info", **admin.engine.config_info()) == 1


def test_actions_and_generation(admin: Admin) -> None:
    admin.put("/api/v1/tuning", {"generation": 1, "values": {"parallel": 8}})
    admin.put("/api/v1/tuning", {"generation": 1, "values": {"parallel": 9}})
    found = samples(scrape(admin))
    name = "pykv_admin_actions_total"
    assert value(found, name, action="tune", role="admin", result="ok") == 1
    assert value(found, name, action="tune", role="admin", result="conflict") == 1
    assert value(found, "pykv_config_generation") == 2


def test_tenants_are_bounded_and_keep_their_label() -> None:
    labels = TenantLabels()
    first = {f"t{i}": tenant(1000 - i, 0, 0) for i in range(MAX_TENANTS + 20)}
    given = labels.of(first)
    assert sum(v != OTHER for v in given.values()) == MAX_TENANTS
    assert given["t0"] == "t0" and given[f"t{MAX_TENANTS}"] == OTHER
    later = first | {"huge": tenant(10**9, 0, 0)}
    assert labels.of(later) == given | {"huge": OTHER}


def test_a_crowd_of_tenants_in_one_scrape(admin: Admin) -> None:
    admin.engine.data["tenants"] = {f'te"n\\ant\n{i}': tenant(100, 40, 1) for i in range(300)}
    found = samples(scrape(admin))
    query = [v for (n, _), v in found.items() if n == "pykv_prefix_query_tokens_total"]
    assert len(query) == MAX_TENANTS + 1 and sum(query) == 300 * 100
