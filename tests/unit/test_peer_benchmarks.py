"""What the benchmarks beside peers share: workers, windows of text, rows. Nothing is timed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from benchmarks import precision_vs_peer as precision
from benchmarks.peers import worker
from benchmarks.peers.worker import Worker, WorkerError

ECHO = """
import sys
sys.path.insert(0, {peers!r})
from serve_requests import serve

def answer(request):
    print("what a peer says on stdout")
    if request["do"] == "fail":
        raise ValueError("no")
    if request["do"] == "end":
        sys.exit(3)
    return {{"got": request["value"]}}

serve(answer)
"""


@pytest.fixture
def echo(tmp_path: Path) -> Iterator[Worker]:
    script = tmp_path / "echo_worker.py"
    script.write_text(ECHO.format(peers=str(worker.HERE)))
    with Worker(sys.executable, str(script), []) as made:
        yield made


def test_a_worker_answers_in_order_whatever_the_peer_prints(echo: Worker) -> None:
    assert [echo.ask(do="echo", value=n)["got"] for n in range(3)] == [0, 1, 2]


def test_a_refusal_is_an_error_and_the_worker_lives_on(echo: Worker) -> None:
    with pytest.raises(WorkerError, match="echo_worker: ValueError: no"):
        echo.ask(do="fail")
    assert echo.ask(do="echo", value="é") == {"got": "é"}


def test_the_end_of_a_worker_is_an_error(echo: Worker) -> None:
    with pytest.raises(WorkerError, match="exit code 3"):
        echo.ask(do="end")


def test_windows_are_taken_from_every_text_in_turn() -> None:
    texts = [list(range(10)), list(range(100, 107)), [1, 2]]
    assert precision.windows(texts, 3, 13) == [
        [0, 1, 2], [100, 101, 102], [3, 4, 5], [103, 104, 105], [6, 7, 8],
    ]  # fmt: skip
    with pytest.raises(SystemExit, match="fewer than 16 tokens in windows of 3"):
        precision.windows(texts, 3, 16)


def test_rows_compare_with_the_peer_at_the_same_kv_type() -> None:
    found = {
        ("llama.cpp", "f16"): np.full(100, 2.0),
        ("pykv fast", "f16"): np.full(100, 2.2),
        ("llama.cpp", "q8_0"): np.full(100, 3.0),
        ("pykv fast", "q8_0"): np.full(100, 3.16),
        ("pykv exact", "q8_0"): np.full(100, 9.0),
    }
    rows = {row["row"]: row for row in precision.rows_of(found)}
    assert rows["KL mean, pykv fast, f16 KV"]["ratio"] == pytest.approx(1.1)
    assert rows["KL p99, pykv fast, q8_0 KV"]["ratio"] == pytest.approx(3.16 / 3)
    missed = [name for name, row in rows.items() if not row["ok"]]  # of the default path only
    assert missed == ["KL mean, pykv fast, f16 KV", "KL p99, pykv fast, f16 KV"]
    found["pykv fast", "f16"] = np.full(100, 2.09)
    assert all(row["ok"] for row in precision.rows_of(found))
