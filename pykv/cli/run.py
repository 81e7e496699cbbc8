"""`pykv run`: a chat in the terminal."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pykv._core import Error, InvalidArgument
from pykv.cli import config, output
from pykv.cli.options import (
    MAX_TOKENS,
    MODEL,
    POOL,
    PRECISION,
    RESUME_SPACING,
    SAMPLING,
    THREADS,
    sampling_of,
)

if TYPE_CHECKING:
    from pykv.cli.chat import Chat
    from pykv.inference import Engine
    from pykv.stream import Completion

EXAMPLES = """examples:
  pykv run                                      talk to SmolLM2
  pykv run model.gguf --system "Be brief." --temp 0
  echo "Why is the sky blue?" | pykv run --json
"""

HELP = """/system TEXT   set the system message; without TEXT, show it
/fork [NAME]   go on in a copy of this conversation
/switch NAME   go to another branch; without NAME, list them
/rewind [N]    take the last N exchanges back (1)
/retry         answer the last question again, with another seed
/stats         figures of the last answer and of the pool
/clear         forget this branch's exchanges
/help          this text
/exit          end; so does Ctrl-D
Ctrl-C stops an answer; what there is of it stays. A line that ends in \\ goes on in the
next; // begins a message with /."""

_MAX_TOKENS = dataclasses.replace(MAX_TOKENS, help="tokens of an answer", default=1024)


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "run",
        help="talk to a model in the terminal",
        description="A chat in the terminal; /help there lists its commands.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--system", default="", metavar="TEXT", help="system message")
    groups = {
        "": (MODEL, _MAX_TOKENS, PRECISION),
        "sampling": SAMPLING,
        "KV cache": (*POOL, RESUME_SPACING, THREADS),
    }
    config.declare(
        parser, groups, json_help="print each answer as a line of JSON", positional="as --model"
    )


def run(args: argparse.Namespace) -> int:
    from pykv import models
    from pykv.cli.chat import Chat
    from pykv.inference import Engine

    name = args.model or models.DEFAULT_MODEL
    terminal = sys.stdin.isatty() and not args.json
    with Engine.open(
        name,
        progress=_show_loading if output.can_move_cursor() else None,
        ctx_size=args.ctx_size,
        pool_bytes=args.pool_bytes,
        swa_full=args.swa_full,
        resume_bytes=args.resume_bytes,
        resume_spacing=args.resume_spacing,
        cache_type_k=args.cache_type_k,
        cache_type_v=args.cache_type_v,
        precision=args.precision,
        threads=args.threads,
    ) as engine:
        sampling = sampling_of(args)
        chat = Chat(engine, args.system, args.max_tokens, sampling)
        if terminal:
            print(f"{engine.runtime.model_id}. /help lists commands, Ctrl-D ends.")
        return Terminal(engine, chat, sampling, prompted=terminal, as_json=args.json).loop()


def _show_loading(stage: str, fraction: float) -> None:
    done = stage == "pool" and fraction >= 1
    text = "" if done else f"loading {stage} {fraction:.0%}"
    print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


class Terminal:
    """Reads lines, does what they say. One object for each chat."""

    def __init__(
        self,
        engine: Engine,
        chat: Chat,
        sampling: dict[str, Any],
        *,
        prompted: bool,
        as_json: bool,
    ) -> None:
        """`sampling`: the options that the chat uses; /retry changes the seed. `prompted`:
        somebody types."""
        self._engine = engine
        self._chat = chat
        self._sampling = sampling
        self._prompted = prompted
        self._json = as_json
        self._failed = False

    def loop(self) -> int:
        """Until the input ends; the exit code is 1 if a line failed that nobody typed."""
        if self._prompted:
            _edit_lines()
        while (line := self._read()) is not None:
            try:
                if not self._do(line.strip()):
                    break
            except (Error, TimeoutError) as error:
                self._failed = True
                print(f"{output.paint('error:', 'red')} {error}", file=sys.stderr)
        if self._prompted:
            print()
        return 0 if self._prompted or not self._failed else 1

    def _read(self) -> str | None:
        """A line, with those that it goes on in; None at the end of the input."""
        lines: list[str] = []
        while True:
            try:
                prompt = "… " if lines else f"{self._chat.branch}> "
                line = input(prompt if self._prompted else "")
            except EOFError:
                return "\n".join(lines) if lines else None
            except KeyboardInterrupt:
                if not self._prompted:
                    raise
                print("\n(Ctrl-D or /exit ends)")
                lines = []
                continue
            lines.append(line.removesuffix("\\"))
            if not line.endswith("\\"):
                return "\n".join(lines)

    def _do(self, line: str) -> bool:
        """One line; False: the last one."""
        if not line.startswith("/") or line.startswith("//"):
            if line:
                self._answer(line.removeprefix("/"))
            return True
        word, _, rest = line.partition(" ")
        if word in ("/exit", "/quit"):
            return False
        commands: dict[str, Callable[[str], None]] = {
            "/help": lambda rest: print(HELP),
            "/system": self._system,
            "/fork": self._fork,
            "/switch": self._switch,
            "/rewind": self._rewind,
            "/retry": self._retry,
            "/stats": lambda rest: print(self._stats()),
            "/clear": self._clear,
        }
        if word not in commands:
            raise InvalidArgument(
                f"there is no command {word[:40]}; /help lists them, and // begins a message with /"
            )
        commands[word](rest.strip())
        return True

    def _answer(self, question: str) -> None:
        answer = None
        try:
            answer = self._chat.ask(question)
            for piece in answer:
                if not self._json:
                    print(printable(piece), end="", flush=True)
        except KeyboardInterrupt:
            if not self._prompted:
                raise
            if answer is None:
                print("\n(not asked)")
                return
            answer.cancel()
        completion = answer.keep()
        if self._json:
            print(
                json.dumps(_report(self._chat.branch, completion), ensure_ascii=False), flush=True
            )
            return
        print(flush=True)
        if completion.finish_reason != "stop":
            print(f"({self._why_cut(completion)})")

    def _why_cut(self, completion: Completion) -> str:
        if completion.finish_reason != "length":
            return completion.finish_reason
        if completion.prompt_tokens + completion.generated_tokens < self._engine.context:
            return "cut at --max-tokens"
        return "cut at the end of the context; /rewind or /clear makes room"

    def _system(self, text: str) -> None:
        if text:
            self._chat.system = text
        else:
            print(printable(self._chat.system) or "(none)")

    def _fork(self, name: str) -> None:
        self._chat.fork(name or self._chat.free_name())

    def _switch(self, name: str) -> None:
        if name:
            self._chat.switch(name)
            return
        for each, count in self._chat.branches.items():
            mark = "*" if each == self._chat.branch else " "
            print(f"{mark} {printable(each)}, exchanges: {count}")

    def _rewind(self, count: str) -> None:
        if count and not (count.isascii() and count.isdigit() and len(count) < 10):
            raise InvalidArgument(f"/rewind takes a number of exchanges, not {count[:40]!r}")
        for each in self._chat.rewind(int(count or 1)):
            print(f"(taken back: {printable(each.question.splitlines()[0])})")

    def _retry(self, rest: str) -> None:
        if not self._chat.exchanges:
            raise InvalidArgument("/retry needs a question to answer again; this branch has none")
        (last,) = self._chat.rewind(1)
        self._sampling["seed"] += 1
        try:
            self._answer(last.question)
        except Error:
            self._chat.exchanges.append(last)
            raise

    def _clear(self, rest: str) -> None:
        if self._chat.exchanges:
            self._chat.rewind(len(self._chat.exchanges))

    def _stats(self) -> str:
        stats = self._engine.stats()
        cache, last = stats["cache"], self._chat.last
        rows = [
            ("branch", f"{self._chat.branch}, exchanges: {len(self._chat.exchanges)}"),
            ("conversation", f"{self._chat.tokens():,} tokens of {self._engine.context:,}"),
        ]
        if last is not None:
            rows += [(name, text) for name, text in _figures(last).items()]
        asked, computed = stats["prompt_tokens"], stats["computed_prompt_tokens"]
        if asked:
            rows.append(("reused in all", f"{1 - computed / asked:.0%} of {asked:,} prompt tokens"))
        used = cache["cells_active"] + cache["cells_idle"]
        rows.append(("pool", f"{used:,} of {cache['cells_capacity']:,} cells hold tokens"))
        return output.facts(rows)


def printable(text: str) -> str:
    """The text with control and format characters but line breaks and tabs as escapes: an
    answer cannot move the cursor or change the terminal."""
    return "".join(char if char in "\n\t" else output.visible(char) for char in text)


def _figures(last: Completion) -> dict[str, str]:
    after_first = max(0, last.generated_tokens - 1)
    speed = after_first / last.generate_seconds if last.generate_seconds > 0 else 0.0
    wait = (last.queue_seconds + last.prompt_seconds) * 1000
    return {
        "last prompt": f"{last.prompt_tokens:,} tokens, {last.cached_tokens:,} reused",
        "first token": f"after {wait:.0f} ms",
        "last answer": f"{last.generated_tokens:,} tokens, {speed:.1f} tokens/s",
    }


def _report(branch: str, last: Completion) -> dict[str, Any]:
    return {
        "branch": branch,
        "text": last.text,
        "finish_reason": last.finish_reason,
        "prompt_tokens": last.prompt_tokens,
        "cached_tokens": last.cached_tokens,
        "generated_tokens": last.generated_tokens,
        "time_to_first_token": last.queue_seconds + last.prompt_seconds,
        "generate_seconds": last.generate_seconds,
    }


def _edit_lines() -> None:
    """Arrow keys and a history of this run, where Python has readline."""
    try:
        importlib.import_module("readline")
    except ImportError:
        return
