"""The admin service on a real engine with a tiny model: the snapshot has the shape that
the fake one has, and changes reach the engine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pykv import _core
from pykv.dashboard.app import AppOptions, create_app
from pykv.dashboard.client import InProcessClient
from pykv.dashboard.errors import InvalidValue
from pykv.dashboard.secrets_store import SecretsStore
from pykv.dashboard.tuning import FIELDS, check
from tests.dashboard.conftest import CHEAP, Admin, Browser, ManualClock
from tests.dashboard.fake_client import first_snapshot
from tests.dashboard.test_metrics import samples, scrape, value
from tests.reference.gguf_files import write_tiny_model

CELLS = 1024
COMMON = list(range(40, 140))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny.gguf")


@pytest.fixture
def runtime(tiny: Path) -> Any:
    backend = _core.Backend(threads=1)
    model = _core.Model(_core.GgufFile(tiny), backend)
    cache = _core.Cache(layers=model.layer_table, backend=backend, cells=CELLS)
    engine = _core.Engine(model, cache)
    return SimpleNamespace(engine=engine, cache=cache, model_id="tiny")


@pytest.fixture
def real(runtime: Any, tmp_path: Path) -> Admin:
    clock = ManualClock()
    store = SecretsStore.open(tmp_path / "state", cost=CHEAP)
    client: Any = InProcessClient(runtime)
    app = create_app(client, store, AppOptions(clock=clock))
    app.test_client_class = Browser
    return Admin(app, client, store, clock)


def run(runtime: Any, suffix: int, tenant: str) -> None:
    """One request to its end, by steps in this thread."""
    runtime.engine.submit([*COMMON, suffix], 4, temperature=0.0, tenant=tenant)
    while runtime.engine.step_once():
        runtime.engine.drain()


def shape(document: Any) -> Any:
    """Nested names and types, without the keys that depend on traffic."""
    if isinstance(document, dict):
        return {k: shape(v) for k, v in document.items() if k not in {"tenants", "sessions"}}
    if isinstance(document, list):
        return "list"
    return "number" if isinstance(document, int | float) else type(document).__name__


def test_the_fake_snapshot_has_the_real_shape(runtime: Any) -> None:
    run(runtime, 1, "a")
    runtime.engine.submit(COMMON, 50)
    runtime.engine.step_once()
    real_one, fake = runtime.engine.snapshot(), first_snapshot()
    assert shape(real_one) == shape(fake)
    assert shape(real_one["tenants"]["a"]) == shape(fake["tenants"]["acme"])
    assert shape(real_one["sessions"][0]) == shape(fake["sessions"][0])


def test_figures_of_two_requests_with_one_prefix(real: Admin, runtime: Any) -> None:
    run(runtime, 1, "a")
    run(runtime, 2, "b")
    document = real.get("/api/v1/overview")
    prefix = document["prefix"]
    assert (prefix["query_tokens"], prefix["hit_tokens"]) == (202, 100)
    assert sum(prefix["miss_tokens"].values()) == 102
    assert document["requests"]["length"] == 2
    assert document["tokens"]["generated"] == 8
    assert sum(document["cells"]["states"].values()) == CELLS == document["cells"]["capacity"]
    found = samples(scrape(real))
    assert value(found, "pykv_prefix_hit_tokens_total", tenant="b", tier="pool") == 100
    assert value(found, "pykv_time_to_first_token_seconds_count") == 2
    assert value(found, "pykv_inter_token_seconds_count") == 6
    assert sum(v for (name, _), v in found.items() if name == "pykv_cells") == CELLS
    kinds = {"cache_type_k": "", "cache_type_v": "", "threads": ""}
    assert value(found, "pykv_config_info", model="tiny", **kinds) == 1


def test_two_scrapers_of_an_idle_engine_agree(real: Admin, runtime: Any) -> None:  # C28
    run(runtime, 1, "a")
    first = samples(scrape(real))
    for _ in range(3):
        scrape(real)
    assert samples(scrape(real)) == first


def test_states_add_up_in_every_step(real: Admin, runtime: Any) -> None:  # C29
    for i in range(6):
        runtime.engine.submit([*COMMON, i], 30, tenant=f"t{i % 2}")
    steps = 0
    while runtime.engine.step_once():
        runtime.engine.drain()
        found = samples(scrape(real))
        assert sum(v for (name, _), v in found.items() if name == "pykv_cells") == CELLS
        steps += 1
    assert steps > 30


def test_a_change_reaches_the_running_engine(real: Admin, runtime: Any) -> None:
    runtime.engine.start()
    try:
        values = {"low": 0.2, "high": 0.4, "parallel": 2, "prefill_chunk": 16}
        response = real.put("/api/v1/tuning", {"generation": 1, "values": values})
        assert response.status_code == 200, response.text
    finally:
        runtime.engine.stop()
    snapshot = runtime.engine.snapshot()
    assert snapshot["watermarks"] == {"low": 0.2, "high": 0.4}
    assert snapshot["limits"] == {
        "parallel": 2, "batch_size": 256, "prefill_chunk": 16, "queue_length": 1024,
        "ageing_seconds": 30.0, "gap_factor": 2.22, "draft_max": 0,
    }  # fmt: skip


def test_ranges_and_defaults_are_the_engine_s(runtime: Any) -> None:
    """What the form allows the engine takes, and one beyond it refuses."""
    setters: dict[str, Callable[..., None]] = {
        "limits": runtime.engine.set_limits,
        "watermarks": lambda **v: runtime.engine.set_watermarks(**{"low": 0.0, "high": 1.0} | v),
    }
    snapshot = runtime.engine.snapshot()
    for field in FIELDS:
        assert snapshot[field.group][field.name] == field.default
        # parallel <= batch_size is checked apart
        room = {"batch_size": 8192} if field.name == "parallel" else {}
        room = {"parallel": 1} if field.name == "batch_size" else room
        for end, step in ((field.minimum, -1), (field.maximum, 1)):
            setters[field.group](**room | {field.name: end})
            with pytest.raises(ValueError):
                setters[field.group](**room | {field.name: end + step})
    with pytest.raises(ValueError):
        runtime.engine.set_limits(parallel=9, batch_size=8)
    with pytest.raises(InvalidValue):
        check({"parallel": 9, "batch_size": 8}, {f.name: f.default for f in FIELDS})
