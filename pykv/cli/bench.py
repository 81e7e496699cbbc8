"""`pykv bench`: measurements that anyone can run."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from typing import Any

from pykv.cli import config
from pykv.cli.options import (
    BATCH_SIZE,
    CACHE_TYPE_K,
    CACHE_TYPE_V,
    CTX_SIZE,
    MODEL,
    NPL,
    NPP,
    NTG,
    PRECISION,
    RESUME_BYTES,
    RESUME_SPACING,
    SWA_FULL,
    THREADS,
    TOKENS_MAX,
    integer,
)

EXAMPLES = """examples:
  pykv bench batched -npp 1024 -ntg 64 -npl 1,4,16 -pps
  pykv bench batched -npp 512 -ntg 32 -npl 1,8 -ctk q8_0 -ctv q8_0 --output-format jsonl
"""

_CELLS = dataclasses.replace(CTX_SIZE, parse=integer(0, TOKENS_MAX), unset="as needed")
_BATCH = dataclasses.replace(
    BATCH_SIZE, help="prompt tokens a pass", parse=integer(1, TOKENS_MAX), default=512
)


def add_parser(subparsers: Any) -> None:
    bench = subparsers.add_parser("bench", help="measure speed and memory")
    kinds = bench.add_subparsers(dest="bench", required=True, metavar="KIND")
    parser = kinds.add_parser(
        "batched",
        help="prompts and generation in batches, as llama-batched-bench does",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("-pps", action="store_true", help="all sequences share one prompt")
    add("--output-format", choices=["md", "jsonl"], default="md", help="table or JSON lines")
    kinds = (CACHE_TYPE_K, CACHE_TYPE_V, SWA_FULL, RESUME_BYTES, RESUME_SPACING, PRECISION)
    options = (MODEL, _CELLS, _BATCH, NPP, NTG, NPL, *kinds, THREADS)
    config.declare(parser, {"": options}, json_help="the same as --output-format jsonl")


def run(args: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.progress import Progress

    from pykv import models
    from pykv.bench import batched

    options = batched.BatchedOptions(
        model=models.resolve(args.model or models.DEFAULT_MODEL),
        npp=args.npp,
        ntg=args.ntg,
        npl=args.npl,
        shared_prompt=args.pps,
        ctx_size=args.ctx_size,
        batch_size=args.batch_size,
        cache_type_k=args.cache_type_k,
        cache_type_v=args.cache_type_v,
        swa_full=args.swa_full,
        resume_bytes=args.resume_bytes,
        resume_spacing=args.resume_spacing,
        precision=args.precision,
        threads=args.threads,
    )
    total = sum((pp if args.pps else pp * pl) + tg * pl for pp, tg, pl in options.rows())
    console = Console(stderr=True)
    as_table = args.output_format == "md" and not args.json
    measured = 0
    bench = batched.BatchedBench(options)
    if as_table:
        print(batched.MARKDOWN_HEAD, flush=True)
    with Progress(console=console, transient=True, disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("tokens", total=total)
        for row in bench.run(lambda tokens: progress.advance(task, tokens)):
            text = batched.markdown(row) if as_table else batched.json_line(row)
            print(text, flush=True)
            measured += 1
    if measured < len(options.rows()):
        left_out = len(options.rows()) - measured
        print(f"rows above --ctx-size {args.ctx_size}, left out: {left_out}", file=sys.stderr)
    return 0
