"""`pykv eval`: the numbers against NumPy, the formats, and what is refused."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from benchmarks.precision import store_like_the_cache
from pykv import _core
from pykv.bench import chart
from pykv.bench.perplexity import PerplexityBench, PerplexityOptions, divergence
from pykv.cli import main
from pykv.cli.eval import type_pairs
from pykv.tokenizer import Tokenizer
from tests.reference.decoder_forward import DecoderReference, log_softmax
from tests.reference.gguf_files import write_tiny_model

WINDOW = 31  # odd: 15 tokens before the half, 15 counted


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("eval") / "tiny.gguf")


@pytest.fixture(scope="module")
def text() -> str:
    return "".join(random.Random(3).choices("the cat sat on a mat ", k=200))


@pytest.fixture(scope="module")
def windows(tiny: Path, text: str) -> list[list[int]]:
    ids = Tokenizer.from_gguf(_core.GgufFile(tiny)).encode(text)
    return [ids[i : i + WINDOW] for i in range(0, len(ids) - WINDOW + 1, WINDOW)]


def in_numpy(reference: DecoderReference, windows: list[list[int]]) -> Any:
    """Log probabilities [windows * counted, vocab], and the tokens that follow."""
    half = WINDOW // 2
    log_p = [log_softmax(reference.logits(window))[half : WINDOW - 1] for window in windows]
    return np.concatenate(log_p), [token for window in windows for token in window[half + 1 :]]


@pytest.fixture(scope="module")
def options(tiny: Path) -> PerplexityOptions:
    types = [("f32", "f32"), ("q8_0", "q8_0"), ("q4_0", "f16")]
    return PerplexityOptions(tiny, types, window=WINDOW, precision="exact", threads=1)


def test_perplexity_and_divergence_are_numpys(
    tiny: Path, text: str, windows: list[list[int]], options: PerplexityOptions
) -> None:
    assert len(windows) > 2
    result = PerplexityBench(options, text).run()
    reference = DecoderReference(tiny, np.float64)
    exact, following = in_numpy(reference, windows)
    assert (result.windows, result.positions) == (len(windows), len(following))
    nll = -exact[np.arange(len(following)), following]
    assert result.exact.perplexity == pytest.approx(np.exp(nll.mean()), rel=1e-5)
    error = np.exp(nll.mean()) * nll.std(ddof=1) / len(nll) ** 0.5
    assert result.exact.perplexity_error == pytest.approx(error, rel=1e-4)
    assert result.types[0].perplexity == result.exact.perplexity
    assert result.types[0].kl_max == 0 and result.types[0].same_best == 1
    for found, types in zip(result.types[1:], options.types[1:], strict=True):
        reference.store = store_like_the_cache(types, True)
        stored, _ = in_numpy(reference, windows)
        kl = np.sum(np.exp(exact) * (exact - stored), axis=-1)
        assert found.kl_mean == pytest.approx(kl.mean(), rel=0.05)
        assert found.kl_p99 == pytest.approx(np.quantile(kl, 0.99), rel=0.2)
        own = np.exp(-stored[np.arange(len(following)), following].mean())
        assert found.perplexity == pytest.approx(own, rel=1e-3)
        assert (found.type_k, found.type_v) == types
    assert result.types[1].kl_mean < result.types[2].kl_mean


def test_the_divergence_is_from_the_exact_distribution() -> None:
    exact, other = np.log([[0.5, 0.5], [0.9, 0.1]]), np.log([[0.9, 0.1], [0.9, 0.1]])
    wanted = 0.5 * np.log(0.5 / 0.9) + 0.5 * np.log(0.5 / 0.1)
    assert divergence(exact, other) == pytest.approx([wanted, 0.0])


def test_steps_do_not_change_the_numbers(
    text: str, options: PerplexityOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = PerplexityBench(options, text).run()
    monkeypatch.setattr("pykv.bench.perplexity._CHUNK", 4)
    assert PerplexityBench(options, text).run() == whole


def test_progress_ends_at_the_number_of_tokens(text: str, options: PerplexityOptions) -> None:
    bench = PerplexityBench(replace(options, windows=2), text)
    done: list[int] = []
    result = bench.run(done.append)
    assert sum(done) == bench.tokens == 2 * WINDOW * 4
    assert result.windows == 2


def test_the_begin_token_takes_the_first_place(gemma3_gguf: Any) -> None:
    tokenizer = Tokenizer.from_gguf(gemma3_gguf)
    options = PerplexityOptions(Path("x"), [], window=8)
    cut = PerplexityBench._cut(
        tokenizer, "one two three four five six seven eight nine ten " * 3, options
    )
    assert len(cut) == 4
    assert {window[0] for window in cut} == {tokenizer.bos_id}


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"window": 1000}, "has 1[0-9]+ tokens and a window takes 1000; give a longer text"),
     ({"window": 1040}, "a window takes 1040")],
)  # fmt: skip
def test_texts_and_windows_must_fit(
    text: str, options: PerplexityOptions, changes: Any, message: str
) -> None:
    with pytest.raises(_core.InvalidArgument, match=message):
        PerplexityBench(replace(options, **changes), text)


def test_a_window_longer_than_the_context_is_refused(text: str, options: PerplexityOptions) -> None:
    with pytest.raises(_core.InvalidArgument, match="context of 1024; use --window 1024"):
        PerplexityBench(replace(options, window=1025), text * 20)


def test_table_json_and_picture(
    tiny: Path, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, picture = tmp_path / "text.txt", tmp_path / "kl.svg"
    source.write_text(text)
    command = ["eval", str(source), "-m", str(tiny), "--window", "32", "-ctk", "q8_0,q4_0"]
    assert main.main([*command, "-ctv", "f16", "--plot", str(picture)]) == 0
    shown = capsys.readouterr()
    lines = shown.out.splitlines()
    assert [line.split("  ")[0] for line in lines[2:5]] == ["exact", "q8_0 / f16", "q4_0 / f16"]
    assert "windows of 32 tokens, precision fast" in lines[5]
    assert shown.err == ""  # no progress bar where stderr is not a terminal
    texts = [t.text for t in ElementTree.parse(picture).iter() if t.tag.endswith("text")]
    assert {"q8_0 / f16", "q4_0 / f16"} <= set(texts)
    assert main.main([*command, "--json", "--precision", "exact", "--chunks", "1"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["windows"], report["positions"], report["precision"]) == (1, 15, "exact")
    assert [(t["type_k"], t["type_v"]) for t in report["types"]] == [
        ("q8_0", "q8_0"), ("q4_0", "q4_0"),
    ]  # fmt: skip
    assert report["exact"]["kl_mean"] == 0 < report["types"][0]["kl_mean"]


def test_types_come_in_pairs() -> None:
    assert type_pairs(["f16", "q8_0"], ["q4_0"]) == [("f16", "q4_0"), ("q8_0", "q4_0")]
    assert type_pairs(["f16"], ["f16", "q8_0"]) == [("f16", "f16"), ("f16", "q8_0")]
    assert type_pairs(["f16", "f32"], ["f32", "f16"]) == [("f16", "f32"), ("f32", "f16")]
    with pytest.raises(_core.InvalidArgument, match="names 2 types and --cache-type-v 3"):
        type_pairs(["f16"] * 2, ["f16"] * 3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.txt"], "cannot read missing.txt: No such file"),
        (["bytes.txt"], "bytes.txt is not UTF-8 text"),
        (["short.txt"], "has 2 tokens and a window takes 512"),
        (["short.txt", "--plot", "x.png"], "name a file that ends in .svg, not x.png"),
        (["short.txt", "--plot", "nowhere/x.svg"], "there is no folder"),
    ],
)
def test_what_cannot_be_evaluated_is_said(
    tiny: Path,
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bytes.txt").write_bytes(b"\xff")
    (tmp_path / "short.txt").write_text("the")
    assert main.main(["eval", *arguments, "-m", str(tiny)]) == 1
    assert message in capsys.readouterr().err


def test_lists_of_types_in_the_configuration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "pykv.toml"
    file.write_text('[eval]\ncache_type_k = ["q8_0", "iq4_nl"]\n')
    command = ["eval", "x", "--config", str(file), "--print-config", "--json"]
    assert main.main(command) == 0
    assert json.loads(capsys.readouterr().out)["cache_type_k"]["value"] == ["q8_0", "iq4_nl"]
    with pytest.raises(SystemExit):
        main.main(["eval", "x", "-ctk", "q8_0,x"])
    assert "'x' is not one of f32" in capsys.readouterr().err


def test_bars_are_drawn_to_scale() -> None:
    bars = [chart.Bar("a <b>", 2.0, "two", target=4.0), chart.Bar("c", 0.0, "none")]
    root = ElementTree.fromstring(chart.svg("t & u", bars))
    widths = [float(r.get("width", 0)) for r in root if r.tag.endswith("rect")][1:]
    assert widths == [210, 0]
    assert [t.text for t in root if t.tag.endswith("text")][:2] == ["t & u", "a <b>"]
    tenfold = [chart.Bar("a", 1.0, ""), chart.Bar("b", 10.0, "")]
    root = ElementTree.fromstring(chart.svg("t", tenfold, logarithmic=True))
    widths = [float(r.get("width", 0)) for r in root if r.tag.endswith("rect")][1:]
    assert widths == [210, 420]
