"""`pykv bench batched`: formulas, formats, and the work it really does."""

import json
from pathlib import Path

import pytest

from pykv import _core
from pykv.bench import batched
from pykv.bench.batched import MARKDOWN_HEAD, BatchedBench, BatchedOptions, BatchedRow, markdown
from pykv.cli.main import main
from tests.reference.gguf_files import write_tiny_model


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("bench") / "tiny.gguf")


def measure(model: Path, **changes: object) -> list[BatchedRow]:
    settings: dict[str, object] = {"npp": [20], "ntg": [3], "npl": [1, 4], "batch_size": 8}
    options = BatchedOptions(model=model, **{**settings, **changes})  # type: ignore[arg-type]
    return list(BatchedBench(options).run())


def test_a_shared_prompt_is_computed_once(tiny: Path) -> None:
    for row in measure(tiny, shared_prompt=True):
        assert row.n_kv == 20 + row.pl * 3
        assert row.computed_tokens == 20 + row.pl * 3


def test_prompts_of_their_own_are_computed_each(tiny: Path) -> None:
    for row in measure(tiny):
        assert row.n_kv == row.pl * (20 + 3)
        assert row.computed_tokens == row.pl * (20 + 3)


def test_a_shared_prompt_is_stored_once(tiny: Path) -> None:
    own, shared = (measure(tiny, npp=[200], npl=[8], shared_prompt=s)[0] for s in (False, True))
    assert shared.kv_bytes * 3 < own.kv_bytes


def test_rows_that_do_not_fit_are_left_out(tiny: Path) -> None:
    assert [row.pl for row in measure(tiny, shared_prompt=True, ctx_size=30)] == [1]


def test_rows_left_out_are_mentioned(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["-m", str(tiny), "-npp", "20", "-ntg", "3", "-npl", "1,4", "-c", "30", "-t", "1"]
    assert main(["bench", "batched", *flags]) == 0
    assert capsys.readouterr().err == "rows above --ctx-size 30, left out: 1\n"


@pytest.mark.parametrize("row", [(1 << 24, 1, 4), (1, 1 << 24, 4), (8, 8, 1 << 22)])
def test_rows_beyond_the_memory_are_refused(
    tiny: Path, row: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batched, "free_bytes", lambda: 1 << 20)
    npp, ntg, npl = ([n] for n in row)
    with pytest.raises(_core.InvalidArgument, match="1048576 are free; ask for less with -npp"):
        measure(tiny, npp=npp, ntg=ntg, npl=npl)


def test_the_order_of_rows_is_the_original_s(tiny: Path) -> None:
    options = BatchedOptions(model=tiny, npp=[1, 2], ntg=[3, 4], npl=[5, 6])
    assert options.rows()[:5] == [(1, 3, 5), (1, 3, 6), (1, 4, 5), (1, 4, 6), (2, 3, 5)]


def test_speeds_follow_the_formulas(tiny: Path) -> None:
    options = BatchedOptions(model=tiny, npp=[], ntg=[], npl=[])
    facts = {"pp": 100, "tg": 10, "pl": 4, "t_pp": 2.0, "t_tg": 0.5, "options": options}
    shared = BatchedRow(n_kv=140, shared_prompt=True, **facts)  # type: ignore[arg-type]
    own = BatchedRow(n_kv=440, shared_prompt=False, **facts)  # type: ignore[arg-type]
    assert (shared.speed_pp, shared.speed_tg, shared.t, shared.speed) == (50, 80, 2.5, 56)
    assert (own.speed_pp, own.speed_tg, own.speed) == (200, 80, 176)
    head, line = MARKDOWN_HEAD.splitlines()[0], markdown(shared)
    assert [len(c) for c in head.split("|")] == [len(c) for c in line.split("|")]


def test_json_lines_name_types_and_memory(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["-npp", "8", "-ntg", "2", "-npl", "2", "-pps", "-ctk", "q8_0", "-ctv", "f32"]
    command = ["bench", "batched", "-m", str(tiny), "--output-format", "jsonl", *flags]
    assert main(command) == 0
    row = json.loads(capsys.readouterr().out)
    assert (row["pp"], row["tg"], row["pl"], row["n_kv"], row["is_pp_shared"]) == (8, 2, 2, 12, 1)
    assert (row["cache_type_k"], row["cache_type_v"]) == ("q8_0", "f32")
    assert row["kv_bytes"] > 0
    assert row["peak_rss_bytes"] > 1 << 20


@pytest.mark.parametrize(
    "flags",
    [["-npp", "0"], ["-npp", "-5"], ["-npp", "1,,2"], ["-npl", "99999999999"], ["-t", "5000"],
     ["-npp", "x"], ["--output-format", "xml"], ["-c", "-1"]],
)  # fmt: skip
def test_wrong_flags_are_usage_errors(flags: list[str], tiny: Path) -> None:
    with pytest.raises(SystemExit) as left:
        main(["bench", "batched", "-m", str(tiny), *flags])
    assert left.value.code == 2


def test_a_wrong_kv_type_names_the_right_ones(
    tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["-npp", "8", "-ntg", "1", "-npl", "1", "-ctk", "q3_x"]
    with pytest.raises(SystemExit) as left:
        main(["bench", "batched", "-m", str(tiny), *flags])
    assert left.value.code == 2
    assert "q8_0" in capsys.readouterr().err
