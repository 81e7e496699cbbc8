"""One prefix, many sessions: stored once, hit without being consumed, freed without a trace."""

from __future__ import annotations

import numpy as np

import pykv

DIM = 32


def make(cells: int) -> pykv.Cache:
    return pykv.Cache(pykv.CacheConfig([pykv.Layer(1, DIM, DIM)], cells), threads=1)


def append(cache: pykv.Cache, *requests: tuple[int, int | list[int]]) -> None:
    plan = cache.plan(requests)
    assert plan is not None
    with cache.step(plan) as step:
        values = np.full((step.rows, 1, DIM), 0.5, np.float32)
        step.write(0, values, values)


def run_session(cache: pykv.Cache, tokens: list[int]) -> tuple[int, int]:
    """(sequence, tokens computed): opens, computes what is missing."""
    opened = cache.open(tokens)
    append(cache, (opened.sequence, tokens[opened.reused :]))
    return opened.sequence, len(tokens) - opened.reused


def test_the_second_session_computes_its_suffix_only() -> None:
    """C1: the first one is alive all the while."""
    cache = make(2048)
    prefix = list(range(300))
    a, _ = run_session(cache, prefix + [1000])
    b, computed = run_session(cache, prefix + [2000, 2001])
    assert computed == 2
    assert cache.shared_cells(a) == cache.shared_cells(b) == 300
    assert cache.stats()["cells_active"] == 303
    assert cache.stats()["match_hit_tokens"] == 300


def test_a_hit_never_consumes_what_it_hit() -> None:
    """C2: sessions A, C, A again; C shares only the system prompt."""
    cache = make(2048)
    system = list(range(100))
    text_a = system + list(range(1000, 1200))
    for text, expected in ((text_a, 300), (system + [7] * 50, 50), (text_a, 1), (text_a, 1)):
        seq, computed = run_session(cache, text)
        cache.erase(seq)
        assert computed == expected


def test_a_hundred_sessions_store_one_prompt_once() -> None:
    cache = make(16384)
    prompt = list(range(10_000))
    first, _ = run_session(cache, prompt + [1])
    for i in range(1, 100):
        assert run_session(cache, prompt + [10_000 + i])[1] == 1
    assert cache.stats()["cells_active"] == 10_100
    assert cache.stats()["sequences"] == 100
    cache.erase(first)
    assert cache.stats()["cells_active"] == 10_099
    cache.check_integrity()


def test_forks_cost_no_cells_and_grow_apart() -> None:
    cache = make(1024)
    root, _ = run_session(cache, list(range(200)))
    forks = [cache.fork(root) for _ in range(50)]
    assert cache.stats()["cells_active"] == 200
    append(cache, *((seq, [i]) for i, seq in enumerate(forks)))
    assert cache.stats()["cells_active"] == 250
    cache.erase(root)
    for seq in forks[1:]:
        cache.erase(seq)
    assert cache.stats()["cells_active"] == 201
    assert cache.bounds(forks[0]) == (0, 201)
    cache.check_integrity()


def test_sixteen_sessions_side_by_side_keep_long_runs() -> None:
    cache = make(16 * 512)
    seqs = [cache.create() for _ in range(16)]
    for _ in range(512):
        append(cache, *((seq, 1) for seq in seqs))
    assert max(len(cache.runs(seq)) for seq in seqs) <= 512 // 64 + 1
    assert cache.stats()["cells_free"] == 0


def test_a_fragmented_pool_fits_whatever_is_free() -> None:
    """C14: every second sequence goes, then one long one comes."""
    cache = make(1024)
    seqs = [cache.create() for _ in range(64)]
    for seq in seqs:
        append(cache, (seq, 16))
    for seq in seqs[::2]:
        cache.erase(seq)
    assert cache.stats()["cells_free"] == 512
    last = cache.create()
    assert cache.plan([(last, 513)]) is None
    append(cache, (last, 512))
    assert cache.bounds(last) == (0, 512) and cache.stats()["cells_free"] == 0
    cache.check_integrity()


def test_namespaces_never_share() -> None:
    cache = make(256)
    tokens = list(range(50))
    append(cache, (cache.create(namespace=1), tokens))
    assert cache.match(tokens, namespace=1) == 50
    assert cache.match(tokens, namespace=2) == cache.match(tokens) == 0
    assert cache.open(tokens, namespace=2).reused == 0


def test_tokens_without_ids_are_never_shared() -> None:
    cache = make(256)
    seq = cache.create()
    append(cache, (seq, [1, 2]))
    append(cache, (seq, 3))
    append(cache, (seq, [4, 5]))
    assert cache.exact_upto(seq) == 2
    assert cache.match([1, 2, 4, 5]) == 2
    cache.remove(seq, (2, 7))  # the inexact tail is gone: exact again
    append(cache, (seq, [4, 5]))
    assert cache.match([1, 2, 4, 5]) == 4


def test_max_reuse_limits_the_hit() -> None:
    cache = make(256)
    append(cache, (cache.create(), list(range(20))))
    assert cache.open(list(range(20))).reused == 19
    assert cache.open(list(range(30))).reused == 20
    assert cache.open(list(range(20)), max_reuse=5).reused == 5
    assert cache.open(list(range(20)), max_reuse=0).reused == 0
    assert cache.open([]).reused == 0
