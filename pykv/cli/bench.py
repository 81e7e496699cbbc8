"""`pykv bench`: measurements that anyone can run."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from pykv.cli.options import integer

EXAMPLES = """examples:
  pykv bench batched -npp 1024 -ntg 64 -npl 1,4,16 -pps
  pykv bench batched -npp 512 -ntg 32 -npl 1,8 -ctk q8_0 -ctv q8_0 --output-format jsonl
"""

LARGEST = 1 << 24  # tokens or cells of one measurement

positive = integer(1, LARGEST)
non_negative = integer(0, LARGEST)
threads = integer(0, 1024)


def positive_list(text: str) -> list[int]:
    """Comma-separated counts."""
    return [positive(part.strip()) for part in text.split(",")]


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
    add("-m", "--model", default=None, help="model name or GGUF file")
    add("-c", "--ctx-size", type=non_negative, default=0, help="cells of the pool (as needed)")
    add("-b", "--batch-size", type=positive, default=512, help="prompt tokens a pass (512)")
    add("-npp", type=positive_list, default=[512], metavar="A,B", help="prompt lengths (512)")
    add("-ntg", type=positive_list, default=[64], metavar="A,B", help="generated tokens (64)")
    add("-npl", type=positive_list, default=[1, 4, 16], metavar="A,B", help="sequences (1,4,16)")
    add("-pps", action="store_true", help="all sequences share one prompt")
    add("-ctk", "--cache-type-k", default="f16", help="f32, f16 or q8_0 (f16)")
    add("-ctv", "--cache-type-v", default="f16", help="f32, f16 or q8_0 (f16)")
    add("-t", "--threads", type=threads, default=0, help="threads (all cores)")
    add("--output-format", choices=["md", "jsonl"], default="md", help="table or JSON lines")


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
        threads=args.threads,
    )
    total = sum((pp if args.pps else pp * pl) + tg * pl for pp, tg, pl in options.rows())
    console = Console(stderr=True)
    measured = 0
    bench = batched.BatchedBench(options)
    if args.output_format == "md":
        print(batched.MARKDOWN_HEAD, flush=True)
    with Progress(console=console, transient=True, disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("tokens", total=total)
        for row in bench.run(lambda tokens: progress.advance(task, tokens)):
            text = batched.markdown(row) if args.output_format == "md" else batched.json_line(row)
            print(text, flush=True)
            measured += 1
    if measured < len(options.rows()):
        left_out = len(options.rows()) - measured
        print(f"rows above --ctx-size {args.ctx_size}, left out: {left_out}", file=sys.stderr)
    return 0
