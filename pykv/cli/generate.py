"""`pykv generate`: one text, streamed to stdout."""

from __future__ import annotations

import argparse
import json
import select
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pykv._core import Error, InvalidArgument
from pykv.cli import config
from pykv.cli.options import (
    MAX_TOKENS,
    MODEL,
    POOL,
    PRECISION,
    RESUME_SPACING,
    SAMPLING,
    THREADS,
    sampling_of,
    text_or_stdin,
)

if TYPE_CHECKING:
    from pykv.runtime import Runtime

EXAMPLES = """examples:
  pykv generate -p "The capital of France is" -n 16 --temp 0
  pykv generate --chat -p "Why is the sky blue?"
  cat notes.txt | pykv generate -p - -n 64 --json
"""


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "generate",
        help="continue a text or answer one question",
        description="Streams generated text to stdout, figures to stderr.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("-p", "--prompt", help="text to continue; -: read it from stdin")
    add("--chat", action="store_true", help="answer the prompt as a user's message")
    config.declare(
        parser,
        {
            "": (MODEL, MAX_TOKENS, PRECISION),
            "sampling": SAMPLING,
            "KV cache": (*POOL, RESUME_SPACING, THREADS),
        },
        json_help="print text and figures as JSON, at the end",
    )


def run(args: argparse.Namespace) -> int:
    if args.prompt is None:
        args.usage_error("-p/--prompt is missing")
    from pykv import models
    from pykv.runtime import Runtime, RuntimeOptions

    prompt = text_or_stdin(args.prompt, "generate")
    options = RuntimeOptions(
        model=args.model or models.DEFAULT_MODEL,
        ctx_size=args.ctx_size,
        pool_bytes=args.pool_bytes,
        swa_full=args.swa_full,
        resume_bytes=args.resume_bytes,
        resume_spacing=args.resume_spacing,
        cache_type_k=args.cache_type_k,
        cache_type_v=args.cache_type_v,
        precision=args.precision,
        threads=args.threads,
    )
    runtime = Runtime.open(options)
    try:
        tokens = prompt_tokens(runtime, prompt, chat=args.chat)
        report = _generate(runtime, tokens, args)
    finally:
        runtime.close()
    if args.json:
        print(json.dumps(report, ensure_ascii=False))
    else:
        print(flush=True)
        print(_figures(report), file=sys.stderr)
    return 0


def prompt_tokens(runtime: Runtime, prompt: str, *, chat: bool) -> list[int]:
    """Token ids of a text, or of a chat with this one message. Raises `InvalidArgument`
    for an empty prompt."""
    if chat:
        text = runtime.template.render([{"role": "user", "content": prompt}])
        tokens = runtime.tokenizer.encode(text, parse_special=True)
    else:
        tokens = runtime.tokenizer.encode(prompt)
    if not tokens:
        raise InvalidArgument("[pykv generate] the prompt has no tokens; give some text with -p")
    return tokens


def _generate(runtime: Runtime, tokens: list[int], args: argparse.Namespace) -> dict[str, Any]:
    """Runs the request, writing text as it comes unless JSON was asked for."""
    engine = runtime.engine
    engine.start()
    request = engine.submit(
        tokens,
        args.max_tokens,
        **sampling_of(args),
        stop_tokens=sorted(runtime.tokenizer.eog_ids),
    )
    decoder = runtime.tokenizer.stream()
    pieces: list[str] = []
    for event in _events(engine):
        if event.request != request or event.kind == "started":
            continue
        pieces.append(decoder.feed(event.token) if event.kind == "token" else decoder.flush())
        if not args.json:
            print(pieces[-1], end="", flush=True)
        if event.kind == "finished":
            if event.reason == "failed":
                raise Error(event.error)
            return _report("".join(pieces), event)
    raise AssertionError('unreachable: events end with "finished"')


def _events(engine: Any) -> Iterator[Any]:
    """Events of the engine as they come; waits without using the processor."""
    while True:
        select.select([engine.notify_fd()], [], [])
        yield from engine.drain()


def _report(text: str, end: Any) -> dict[str, Any]:
    """Text and figures; seconds as the engine measured them."""
    seconds = end.generate_seconds
    after_first = max(0, end.generated_tokens - 1)
    return {
        "text": text,
        "finish_reason": end.reason,
        "prompt_tokens": end.prompt_tokens,
        "cached_tokens": end.cached_tokens,
        "generated_tokens": end.generated_tokens,
        "time_to_first_token": end.queue_seconds + end.prompt_seconds,
        "generate_seconds": seconds,
        "tokens_per_second": after_first / seconds if seconds > 0 else 0.0,
    }


def _figures(report: dict[str, Any]) -> str:
    return (
        f"{report['prompt_tokens']} prompt tokens ({report['cached_tokens']} reused), "
        f"first token after {report['time_to_first_token'] * 1000:.0f} ms; "
        f"{report['generated_tokens']} generated, {report['tokens_per_second']:.1f} tokens/s; "
        f"ended by {report['finish_reason']}"
    )
