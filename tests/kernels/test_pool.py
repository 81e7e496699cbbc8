"""Pool memory and everything that is refused at the border of the backend."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pykv import _core
from tests.kernels.arrays import normal
from tests.kernels.kv import Pool, Shape, contiguous

SHAPE = Shape(16, 8, 2, 2, "f16", "f32")


@pytest.fixture
def pool(backend: Any) -> Pool:
    return Pool(backend, SHAPE, blocks=4)


def write(pool: Pool, rng: np.random.Generator, cells: Any) -> None:
    k, v = (normal(rng, len(cells), width) for width in SHAPE.widths())
    pool.backend.write_kv(pool.handle, 0, k, v, np.asarray(cells))


def test_committed_blocks_are_zero_also_the_second_time(
    pool: Pool, rng: np.random.Generator
) -> None:
    write(pool, rng, np.arange(256))
    pool.backend.release_blocks(pool.handle, [1, 2])
    pool.backend.commit_blocks(pool.handle, [2, 1])
    k, v = pool.stored(contiguous(256))
    assert not k[64:192].any() and not v[64:192].any()
    assert k[:64].any() and v[192:].any()


def test_blocks_that_are_not_committed_are_refused_never_touched(
    pool: Pool, rng: np.random.Generator
) -> None:
    pool.backend.release_blocks(pool.handle, [1])
    q = normal(rng, 1, SHAPE.heads * SHAPE.k_dim)
    for cell in (64, 127, 256, 2**32 - 1):
        with pytest.raises(_core.InvalidArgument, match=f"cell {cell}"):
            write(pool, rng, [0, cell])
        with pytest.raises(_core.InvalidArgument, match=f"cell {cell}"):
            pool.backend.read_kv(pool.handle, 0, np.array([cell]), SHAPE.widths())
        with pytest.raises(_core.InvalidArgument, match="cell"):
            pool.attend(q, [(0, 0, 1), (1, cell, 1)], 1)
    with pytest.raises(_core.InvalidArgument, match="cell 64"):
        pool.attend(q, contiguous(200), 0)


@pytest.mark.parametrize(
    ("operation", "blocks", "message"),
    [
        ("commit_blocks", [0], "committed already"),
        ("commit_blocks", [4], "the pool has 4"),
        ("release_blocks", [0, 0], "named twice"),
        ("release_blocks", [2**32 - 1], "the pool has 4"),
    ],
)
def test_wrong_blocks_are_refused_and_nothing_changes(
    pool: Pool, rng: np.random.Generator, operation: str, blocks: list[int], message: str
) -> None:
    with pytest.raises(_core.InvalidArgument, match=message):
        getattr(pool.backend, operation)(pool.handle, blocks)
    write(pool, rng, np.arange(256))


def test_release_twice_is_refused(pool: Pool) -> None:
    pool.backend.release_blocks(pool.handle, [3])
    with pytest.raises(_core.InvalidArgument, match="block 3 is not committed"):
        pool.backend.release_blocks(pool.handle, [3])


def test_a_reservation_costs_no_memory_and_an_absurd_one_is_refused(backend: Any) -> None:
    layers = [_core.LayerSpec(kv_heads=8, k_dim=128)] * 32
    huge = backend.create_pool(layers, "f16", "f16", 20_000)  # 160 GiB of addresses
    backend.commit_blocks(huge, [19_999])
    backend.destroy_pool(huge)
    with pytest.raises(_core.OutOfMemory, match="address space"):
        backend.create_pool(layers, "f16", "f16", 2**26 - 1)
    for blocks in (0, 2**26):
        with pytest.raises(_core.InvalidArgument, match=f"{blocks} blocks"):
            backend.create_pool(layers, "f16", "f16", blocks)


def test_handles_of_destroyed_pools_stay_dead(pool: Pool) -> None:
    pool.backend.destroy_pool(pool.handle)
    other = Pool(pool.backend, SHAPE, blocks=1)
    assert other.handle != pool.handle
    for call in (pool.backend.destroy_pool, lambda p: pool.backend.commit_blocks(p, [0])):
        with pytest.raises(_core.InvalidArgument, match=f"handle {pool.handle}"):
            call(pool.handle)


def test_cells_named_twice_are_refused(pool: Pool, rng: np.random.Generator) -> None:
    with pytest.raises(_core.InvalidArgument, match="cell 7 is named twice"):
        write(pool, rng, [7, 9, 7])
    write(pool, rng, [9, 8, 7])  # descending is fine


@pytest.mark.parametrize(
    ("segments", "groups", "message"),
    [
        ([(0, 0, 10, 0, 0)], [(0, 0, 0, 0, 1, 0)], "not empty"),
        ([(0, 0, 10, 0, 0)], [(0, 3, 0, 0, 1, 0)], "end at 2"),
        ([(0, 0, 10, 0, 0)], [(1, 1, 0, 0, 1, 0), (0, 1, 0, 0, 1, 0)], "ascend"),
        ([(0, 0, 10, 0, 0)], [(0, 2, -1, 0, 1, 0)], "positions from -1"),
        ([(0, 0, 10, 0, 0)], [(0, 2, 2**31 - 2, 0, 1, 0)], "the limit is"),
        ([(0, 0, 10, 0, 0)], [(0, 2, 0, 0, 1, 2**31 - 2)], "the limit is"),
        ([(0, 0, 10, 0, 0)], [(0, 2, 0, 0, 2, 0)], "segments 0 to 2 of 1"),
        ([(0, 0, 10, 0, 0)], [(0, 2, 0, 2**32 - 1, 1, 0)], "of 1"),
        ([(0, 0, 10, 0, 0)], [(0, 2, 9, 0, 1, 9)], "no segment has slot 10 at position 10"),
        ([(0, 0, 10, 0, 0)], [(0, 2, 3, 0, 1, 4)], "no segment has slot 4 at position 3"),
        ([(1, 0, 10, 0, 1)], [(0, 2, 0, 0, 1, 0)], "no segment has slot 0 at position 0"),
        ([(0, 0, 1, 0, 0), (2, 5, 5, 0, 2)], [(0, 2, 0, 0, 2, 0)], "no segment has slot 1"),
        ([(0, 0, 10, 0, 0)], [(0, 2, 0, 0, 0, 0)], "no segment has slot 0"),
        ([(0, 0, 5, 0, 0), (5, 5, 5, 0, 4)], [(0, 2, 0, 0, 2, 0)], "slots must ascend"),
        ([(0, 0, 5, 0, 0), (3, 5, 5, 0, 5)], [(0, 2, 0, 0, 2, 0)], "positions not descend"),
        ([(0, 0, 0, 0, 0)], [(0, 2, 0, 0, 1, 0)], "length 0"),
        ([(-1, 0, 5, 0, 0)], [(0, 2, 0, 0, 1, 0)], "at position -1"),
        ([(2**31 - 2, 0, 2, 0, 0)], [(0, 2, 0, 0, 1, 0)], "positions and slots 0 to"),
        ([(0, 0, 2, 0, 2**32 - 2)], [(0, 2, 0, 0, 1, 0)], "positions and slots 0 to"),
        ([(0, 0, 2**31 - 2, 0, 0)], [(0, 2, 0, 0, 1, 0)], "the pool has 256"),
        ([(0, 0, 2**32 - 1, 0, 0)], [(0, 2, 0, 0, 1, 0)], "positions and slots 0 to"),
        ([(0, 0, 10, 3, 0)], [(0, 2, 0, 0, 1, 0)], "rotation 3, but the rope of K is not known"),
    ],
)
def test_batches_that_do_not_add_up_are_refused(
    pool: Pool, rng: np.random.Generator, segments: Any, groups: Any, message: str
) -> None:
    q = normal(rng, 2, SHAPE.heads * SHAPE.k_dim)
    with pytest.raises(_core.InvalidArgument, match=message):
        pool.backend.attend(
            pool.handle, 0, q, segments=segments, groups=groups, heads=SHAPE.heads, scale=0.25,
            out_width=SHAPE.heads * SHAPE.v_dim,
        )  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"heads": 3}, "3 heads"),
        ({"heads": 0}, "0 heads"),
        ({"heads": 2}, "q has width 64, needed is 32"),
        ({"scale": float("nan")}, "scale"),
        ({"softcap": float("inf")}, "softcap"),
        ({"softcap": -1.0}, "softcap"),
        ({"sinks": [0.0] * 3}, "3 sinks; needed is one for each of 4"),
        ({"sinks": [0.0, float("nan"), 0.0, 0.0]}, "sinks of head 1"),
        ({"alibi_slopes": [0.0] * 5}, "5 alibi_slopes"),
        ({"alibi_slopes": [float("inf")] * 4}, "alibi_slopes of head 0"),
        ({"window": ("none", 4)}, "window size 4"),
        ({"window": ("chunked", 0)}, "window size 0"),
        ({"window": ("sliding", 4)}, "sliding"),
        ({"rope": _core.RopeParams(dims=18)}, "within the head size 16"),
        ({"out_width": 33}, "out has width 33, needed is 32"),
        ({"layer": 1}, "layer 1 of 1"),
        ({"pool": 12345}, "handle 12345"),
    ],
)
def test_wrong_parameters_are_refused(
    pool: Pool, rng: np.random.Generator, changed: dict[str, Any], message: str
) -> None:
    arguments = {
        "pool": pool.handle, "layer": 0, "q": normal(rng, 1, 64), "segments": [(0, 0, 1, 0, 0)],
        "groups": [(0, 1, 0, 0, 1, 0)], "heads": 4, "scale": 0.25, "out_width": 32,
    }  # fmt: skip
    pool.backend.attend(**arguments)
    with pytest.raises(_core.InvalidArgument, match=message):
        pool.backend.attend(**(arguments | changed))


def test_construction_is_checked() -> None:
    with pytest.raises(_core.InvalidArgument, match="sse9"):
        _core.Backend(isa="sse9")
    with pytest.raises(_core.InvalidArgument, match="1025 threads; the limit is 1024"):
        _core.Backend(threads=1025)
    backend = _core.Backend(threads=1)
    with pytest.raises(_core.InvalidArgument, match="4294967295 threads"):
        backend.set_threads(2**32 - 1)
    assert backend.threads == 1
    assert backend.isa == _core.Backend.available_isas()[-1]
    assert _core.Backend.available_isas()[0] == "scalar"


def test_a_variable_forces_a_tier(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYKV_ISA", "scalar")
    assert _core.Backend(threads=1).isa == _core.Backend(threads=1, isa="auto").isa == "scalar"
    best = _core.Backend.available_isas()[-1]
    assert _core.Backend(threads=1, isa=best).isa == best, "who asks for a tier gets it"
    monkeypatch.setenv("PYKV_ISA", "sse9")
    with pytest.raises(_core.InvalidArgument, match='PYKV_ISA "sse9" is unknown; use one of auto'):
        _core.Backend(threads=1)
