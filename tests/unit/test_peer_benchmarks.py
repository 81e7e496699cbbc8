"""What the benchmarks beside peers share: workers, windows of text, rows. Nothing is timed."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from benchmarks import logits, peer_logits, vs_peers
from benchmarks import precision_vs_peer as precision
from benchmarks.peers import rows, worker
from benchmarks.peers.rows import Case
from benchmarks.peers.worker import Worker, WorkerError
from pykv import _core
from tests.reference.gguf_files import write_tiny_model

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
    made = {row["row"]: row for row in precision.rows_of(found)}
    assert made["KL mean, pykv fast, f16 KV"]["ratio"] == pytest.approx(1.1)
    assert made["KL p99, pykv fast, q8_0 KV"]["ratio"] == pytest.approx(3.16 / 3)
    missed = [name for name, row in made.items() if not row["ok"]]  # of the default path only
    assert missed == ["KL mean, pykv fast, f16 KV", "KL p99, pykv fast, f16 KV"]
    found["pykv fast", "f16"] = np.full(100, 2.09)
    assert all(row["ok"] for row in precision.rows_of(found))


def test_cases_name_their_rows() -> None:
    assert Case(1024, 64, 1, prefill=True).rows() == [
        "prefill 1,024", "decode, 1 session, after 1,024",
    ]  # fmt: skip
    assert Case(16, 64, 1).rows() == ["decode, 1 session, short"]
    assert Case(4096, 8, 16).rows() == ["decode, 16 sessions on one 4,096 prompt"]
    named = {name for case in rows.CASES for name in case.rows()}
    for targets in rows.TARGETS.values():
        assert set(targets) <= named  # else a target would never be looked at


def test_speeds_are_medians_of_turns() -> None:
    runs = [
        (("pykv", "f16"), {"t_pp": t, "t_tg": 2.0, "peak_rss_bytes": 1}) for t in (1.0, 4.0, 2.0)
    ] + [(("openvino", "u8"), {"t_pp": 0.5, "t_tg": 1.0})]
    prefill, decode = rows.speeds(Case(100, 5, 4, prefill=True), runs)
    assert prefill["pykv", "f16"] == rows.Speed(50.0, (100 - 25) / 50)
    assert prefill["openvino", "u8"] == rows.Speed(200.0, 0.0)
    assert decode["pykv", "f16"].median == 10.0
    (only,) = rows.speeds(Case(100, 5, 4), runs)
    assert only == decode


def test_records_compare_with_the_best_peer_and_with_own_f16() -> None:
    name = "decode, 1 session, after 4,096"  # targets: 2.2 at f16, 2.5 at the best type
    measured = {
        (program, kind): rows.Speed(speed, 0.1)
        for program, kind, speed in [
            ("pykv", "f16", 224.0), ("pykv", "q8_0", 240.0), ("pykv", "q4_0", 210.0),
            ("llama-cpp", "f16", 52.0), ("llama-cpp", "q8_0", 40.0), ("openvino", "u8", 100.0),
        ]
    }  # fmt: skip
    found = rows.records(name, measured, "llama")
    made = {record["row"].removeprefix(f"{name}, "): record for record in found}
    assert {key: record["ratio"] for key, record in made.items()} == pytest.approx(
        {"f16 KV": 2.24, "q8_0 KV": 2.4, "q4_0 KV": 2.1, "own q8_0 / f16": 240 / 224,
         "own q4_0 / f16": 210 / 224}
    )  # fmt: skip
    assert {key for key, record in made.items() if not record["ok"]} == {"q8_0 KV"}
    assert made["q8_0 KV"]["target"] == 2.5 and made["q4_0 KV"]["target"] is None
    assert made["f16 KV"]["best_peer"] == "openvino u8"
    assert made["f16 KV"]["peers"]["llama-cpp q8_0"] == 40.0
    assert all(record["target"] is None or "own" in record["row"]
               for record in rows.records(name, measured, "qwen3"))  # fmt: skip


def test_a_row_without_peers_has_no_ratio() -> None:
    (record,) = rows.records("prefill 1,024", {("pykv", "f16"): rows.Speed(7.0, 0.0)}, "llama")
    assert (record["ratio"], record["peer"], record["ok"]) == (None, None, True)
    assert vs_peers.line(record).startswith("| prefill 1,024, f16 KV | 7 |")
    assert "rect" in vs_peers.picture([record])


def test_a_peer_that_fails_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    class Fake:
        def __init__(self, fails: bool) -> None:
            self.fails, self.asked = fails, 0

        def ask(self, **request: object) -> dict[str, float]:
            self.asked += 1
            if self.fails:
                raise WorkerError("cannot load")
            return {"t_pp": 1.0, "t_tg": 1.0}

    programs = vs_peers.Programs.__new__(vs_peers.Programs)
    fakes = {"pykv": Fake(False), "llama-cpp": Fake(True), "openvino": Fake(False)}
    programs._workers = dict(fakes)  # type: ignore[arg-type]
    for _ in range(2):
        runs = programs.turn(Case(16, 1, 1), ["f16", "q8_0"])
        assert [who for who, _ in runs] == [
            ("pykv", "f16"), ("openvino", "u8"), ("pykv", "q8_0"),
        ]  # fmt: skip
    assert fakes["llama-cpp"].asked == 1
    assert capsys.readouterr().err == "left out: cannot load\n"
    fakes["pykv"].fails = True
    with pytest.raises(SystemExit, match="cannot load"):
        programs.turn(Case(16, 1, 1), ["f16"])


def test_our_worker_measures_a_tiny_model(tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "tiny.gguf")
    with Worker(sys.executable, "pykv_worker.py", ["-m", str(model), "-t", "1"]) as ours:
        kinds = {"cache_type_k": "q8_0", "cache_type_v": "f16"}
        run = ours.ask(do="run", prompt=8, generate=2, sessions=2, **kinds)
        assert run["t_pp"] > 0 and run["t_tg"] > 0
        with pytest.raises(WorkerError, match="KeyError"):
            ours.ask(do="run")


@pytest.mark.parametrize("text", ["", "1024", "1024/64", "1/2/0", "a/b/c"])
def test_wrong_cases_are_usage_errors(text: str) -> None:
    with pytest.raises(SystemExit) as left:
        vs_peers.arguments(["--cases", text])
    assert left.value.code == 2


def test_flags_choose_what_is_measured() -> None:
    assert vs_peers.arguments(["--cases", "1024/64/4"]).cases == [Case(1024, 64, 4, prefill=True)]
    quick, full = vs_peers.arguments(["--quick"]), vs_peers.arguments([])
    assert (quick.types, quick.repeat) == (["f16"], 1)
    assert (full.types, full.repeat, full.cases) == (["f16", "q8_0", "q4_0"], 3, rows.CASES)


def test_a_busy_machine_is_mentioned(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("os.getloadavg", lambda: (1.5, 0.0, 0.0))
    vs_peers.warn_of_load(4)
    assert capsys.readouterr().err == ""
    vs_peers.warn_of_load(2)
    assert "load is 1.5" in capsys.readouterr().err


def test_recorded_logits_are_read_back_and_compared() -> None:
    logits = np.random.default_rng(1).normal(size=(300, 21))
    facts = {"a": peer_logits.facts_of(logits)}
    read = json.loads(peer_logits.text_of(facts))["cases"]
    assert read == facts
    assert peer_logits.differences(read, facts) == []
    logits[299, 7] += 1e-3
    changed = {"a": peer_logits.facts_of(logits)}
    assert len(peer_logits.differences(read, changed)) == 1
    assert len(peer_logits.differences(read, {})) == 1


def test_a_model_without_golden_answers_is_not_compared_with_those_of_another(
    tmp_path: Path,
) -> None:
    path = write_tiny_model(tmp_path / "tiny.gguf")
    model = _core.Model(_core.GgufFile(path), _core.Backend(threads=1))
    with pytest.raises(SystemExit, match=r"of [0-9,]+ tokens; .* 49,152 \(smollm2\), 262,144"):
        logits.golden_text(model, 100)
