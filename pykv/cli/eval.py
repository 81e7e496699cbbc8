"""`pykv eval`: what storing K and V in fewer bits costs on a text."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pykv._core import Error, InvalidArgument
from pykv.cli import config, output
from pykv.cli.options import (
    EVAL_TYPE_K,
    EVAL_TYPE_V,
    MODEL,
    PRECISION,
    SWA_FULL,
    THREADS,
    WINDOW,
    WINDOWS,
    text_or_stdin,
)

if TYPE_CHECKING:
    from pykv.bench.perplexity import PerplexityOptions, PerplexityResult, TypeResult

EXAMPLES = """examples:
  pykv eval book.txt                              f16, q8_0 and q4_0
  pykv eval book.txt -ctk q8_0,q4_0 -ctv q8_0     K in two types, V always in q8_0
  pykv eval book.txt --chunks 4 --json --plot kl.svg

As llama.cpp's perplexity: windows of 512 tokens that each start anew, of which the second
half counts. KL is the distance from the exact pass: float32 layers, f32 KV.
"""

_STATISTICS = ("KL mean", "median", "p99", "max")


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "eval",
        help="measure what each KV type costs on a text",
        description="Perplexity of a text and KL divergence from the exact pass, per KV type.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("file", metavar="FILE", help="text, UTF-8; -: read it from stdin")
    parser.add_argument("--plot", metavar="FILE", type=Path, help="also draw the mean KL (SVG)")
    options = (MODEL, EVAL_TYPE_K, EVAL_TYPE_V, PRECISION, WINDOW, WINDOWS, SWA_FULL, THREADS)
    config.declare(parser, {"": options}, json_help="print everything as JSON")


def run(args: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.progress import Progress

    from pykv import models
    from pykv.bench import chart
    from pykv.bench.perplexity import PerplexityBench, PerplexityOptions

    pairs = type_pairs(args.cache_type_k, args.cache_type_v or args.cache_type_k)
    if args.plot is not None:
        chart.check_path(args.plot)
    options = PerplexityOptions(
        model=models.resolve(args.model or models.DEFAULT_MODEL),
        types=pairs,
        window=args.window,
        windows=args.chunks,
        precision=args.precision,
        swa_full=args.swa_full,
        threads=args.threads,
    )
    bench = PerplexityBench(options, _text(args.file))
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("tokens", total=bench.tokens)
        result = bench.run(lambda tokens: progress.advance(task, tokens))
    if args.plot is not None:
        chart.write(args.plot, _picture(result, options))
    if args.json:
        print(json.dumps(_report(result, options)))
    else:
        print(_table(result, options))
    return 0


def type_pairs(kinds_k: list[str], kinds_v: list[str]) -> list[tuple[str, str]]:
    """Pairs of two lists: equally long ones in order, one type with each of the other list.
    Raises InvalidArgument for others."""
    if len(kinds_v) == 1:
        kinds_v = kinds_v * len(kinds_k)
    elif len(kinds_k) == 1:
        kinds_k = kinds_k * len(kinds_v)
    if len(kinds_k) != len(kinds_v):
        raise InvalidArgument(
            f"[pykv eval] --cache-type-k names {len(kinds_k)} types and --cache-type-v "
            f"{len(kinds_v)}; give as many of both, or one of either"
        )
    return list(zip(kinds_k, kinds_v, strict=True))


def _text(name: str) -> str:
    if name == "-":
        return text_or_stdin(None, "eval")
    try:
        return Path(name).read_text(encoding="utf-8")
    except OSError as error:
        raise Error(f"[pykv eval] cannot read {name}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"[pykv eval] {name} is not UTF-8 text: {error}") from None


def _name(result: TypeResult) -> str:
    same = result.type_k == result.type_v
    return result.type_k if same else f"{result.type_k} / {result.type_v}"


def _table(result: PerplexityResult, options: PerplexityOptions) -> str:
    head = ["KV type", "bytes/token", "perplexity", "±", *_STATISTICS, "same best"]
    rows = [
        (
            name,
            f"{each.bytes_per_token:,}",
            f"{each.perplexity:.4f}",
            f"{each.perplexity_error:.4f}",
            *(f"{v:.2e}" for v in (each.kl_mean, each.kl_median, each.kl_p99, each.kl_max)),
            f"{each.same_best:.2%}",
        )
        for name, each in [("exact", result.exact), *((_name(r), r) for r in result.types)]
    ]
    facts = (
        f"{result.positions:,} positions of {result.windows} windows of {options.window} tokens, "
        f"precision {options.precision}; KL in nats from the exact pass"
    )
    return f"{output.table(head, rows, right=range(1, len(head)))}\n{facts}"


def _report(result: PerplexityResult, options: PerplexityOptions) -> dict[str, Any]:
    return {
        "model": str(options.model),
        "window": options.window,
        "precision": options.precision,
        **dataclasses.asdict(result),
    }


def _picture(result: PerplexityResult, options: PerplexityOptions) -> str:
    from pykv.bench.chart import Bar, svg

    bars = [
        Bar(_name(each), each.kl_mean, f"{each.kl_mean:.2e}, perplexity {each.perplexity:.3f}")
        for each in result.types
    ]
    title = f"{options.model.name}: mean KL from the exact pass, nats (logarithmic)"
    return svg(title, bars, logarithmic=True)
