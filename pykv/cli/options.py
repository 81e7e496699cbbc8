"""The options that commands share: one definition of flag, type, range, default and help.

An option can also come from the environment (``PYKV_CTX_SIZE``) or the configuration file
(``ctx_size``); pykv.cli.config puts the three together.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pykv import _core

COUNT_MAX = 2**31 - 1
TOKENS_MAX = 1 << 24  # tokens or cells of one measurement


def integer(low: int, high: int) -> Callable[[str], int]:
    """Parses a whole number in low … high."""

    def parse(text: str) -> int:
        if not re.fullmatch(r"[+-]?[0-9]{1,20}", text):
            raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a whole number")
        value = int(text)
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{value} is not in {low} … {high}")
        return value

    return parse


def number(low: float, high: float) -> Callable[[str], float]:
    """Parses a finite number in low … high."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{text[:40]!r} is not in {low:g} … {high:g}")
        return value

    return parse


def integers(low: int, high: int) -> Callable[[str], list[int]]:
    """Parses whole numbers between commas."""
    one = integer(low, high)
    return lambda text: [one(part.strip()) for part in text.split(",")]


def one_of(names: Sequence[str]) -> Callable[[str], str]:
    """Parses one of `names`."""

    def parse(text: str) -> str:
        if text not in names:
            raise argparse.ArgumentTypeError(f"{text[:40]!r} is not one of {', '.join(names)}")
        return text

    return parse


def several_of(names: Sequence[str]) -> Callable[[str], list[str]]:
    """Parses some of `names` between commas."""
    one = one_of(names)
    return lambda text: [one(part.strip()) for part in text.split(",")]


def client_name(text: str) -> str:
    """Parses a name that clients can write."""
    if not re.fullmatch(r"[\x21-\x7e]{1,256}", text):
        raise argparse.ArgumentTypeError("a name has 1 … 256 printable ASCII characters, no spaces")
    return text


def text_or_stdin(given: str | None, command: str) -> str:
    """The text of an argument; read from stdin if there is none, or for "-"."""
    if given is not None and given != "-":
        return given
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise _core.InvalidArgument(f"[pykv {command}] stdin is not UTF-8 text: {error}") from None


@dataclass(frozen=True)
class Option:
    """One option of a command.

    Attributes:
        flags: as written on the command line, the long one last.
        help: what it does; the default is added.
        parse: from text to the value; raises ArgumentTypeError. None: a switch.
        default: of a type that `parse` gives.
        unset: words for the default where the value does not say it.
        names: the values there are, for completion.
        metavar: what stands for the value in the help.
    """

    flags: tuple[str, ...]
    help: str
    parse: Callable[[str], Any] | None
    default: Any
    unset: str = ""
    names: tuple[str, ...] = ()
    metavar: str | None = None

    @property
    def key(self) -> str:
        """Name in the configuration file, and of the attribute."""
        return self.flags[-1].lstrip("-").replace("-", "_")

    @property
    def variable(self) -> str:
        """Name in the environment."""
        return f"PYKV_{self.key.upper()}"

    def add_to(self, group: Any) -> None:
        """Adds the flag to a parser; without it on the command line, nothing is set."""
        missing = argparse.SUPPRESS
        if self.parse is None:
            switch = argparse.BooleanOptionalAction
            group.add_argument(*self.flags, action=switch, default=missing, help=self.help)
            return
        value = ",".join(map(str, self.default)) if isinstance(self.default, list) else self.default
        group.add_argument(
            *self.flags,
            type=self.parse,
            default=missing,
            metavar=self.metavar or self.key.upper(),
            help=f"{self.help} ({self.unset or value})",
        )


KV_TYPES = tuple(_core.kv_types())
_KV = ", ".join(KV_TYPES)

MODEL = Option(("-m", "--model"), "model name or GGUF file", str, None, "smollm2-135m")
CTX_SIZE = Option(
    ("-c", "--ctx-size"), "cells of the pool, one token each", integer(0, COUNT_MAX), 0,
    "as memory allows", metavar="CELLS",
)  # fmt: skip
POOL_BYTES = Option(
    ("--pool-bytes",), "bytes of the pool", integer(0, 2**48), 0, "as the cells need",
    metavar="BYTES",
)  # fmt: skip
CACHE_TYPE_K = Option(
    ("-ctk", "--cache-type-k"), f"stored keys: {_KV}", one_of(KV_TYPES), "f16",
    names=KV_TYPES, metavar="TYPE",
)  # fmt: skip
CACHE_TYPE_V = Option(
    ("-ctv", "--cache-type-v"), "stored values, of the same types", one_of(KV_TYPES), "f16",
    names=KV_TYPES, metavar="TYPE",
)  # fmt: skip
SWA_FULL = Option(
    ("--swa-full",), "layers with a window keep all tokens, not only what it reaches", None, False
)
RESUME_BYTES = Option(
    ("--resume-bytes",), "bytes of resume points of windows and states, 0: none",
    integer(0, 2**48), None, "a tenth of the pool", metavar="BYTES",
)  # fmt: skip
RESUME_SPACING = Option(
    ("--resume-spacing",), "tokens between them in a long sequence, 0: none there",
    integer(0, COUNT_MAX), 512, metavar="N",
)  # fmt: skip
PRECISIONS = tuple(_core.precisions())
PRECISION = Option(
    ("--precision",), "exact (float32), fast (8-bit activations) or fastest (bf16 attention)",
    one_of(PRECISIONS), "fast", names=PRECISIONS,
)  # fmt: skip
THREADS = Option(("-t", "--threads"), "threads", integer(0, 1024), 0, "all cores", metavar="N")

HOST = Option(("--host",), "address of the API", str, "127.0.0.1")
PORT = Option(("--port",), "port of the API, 0: any", integer(0, 65535), 8080)
ADMIN_PORT = Option(("--admin-port",), "port of the dashboard, 0: any", integer(0, 65535), 8081)
ALIAS = Option(
    ("-a", "--alias"), "name of the model towards clients", client_name, None, "its own name"
)
PARALLEL = Option(
    ("-np", "--parallel"), "sequences decoded in a step", integer(1, 4096), 16, metavar="N"
)
BATCH_SIZE = Option(
    ("-b", "--batch-size"), "tokens computed in a step", integer(1, 8192), 256, metavar="N"
)
DRAFT_MAX = Option(
    ("--draft-max",), "tokens guessed and computed ahead, 0: none", integer(0, 32), 0, metavar="N"
)
DEFAULT_PRIORITY = Option(
    ("--default-priority",), "of requests that give none, higher goes first", integer(-100, 100), 0,
    metavar="N",
)  # fmt: skip
DEFAULT_TIMEOUT = Option(
    ("--default-timeout",), "seconds for requests that give no timeout, 0: any",
    number(0, 86400), 0.0, "0", metavar="SECONDS",
)  # fmt: skip
VERBOSE = Option(("-v", "--verbose"), "log each request", None, False)

MAX_TOKENS = Option(("-n", "--max-tokens"), "tokens", integer(1, COUNT_MAX), 128, metavar="N")
TEMP = Option(("--temp",), "temperature, 0: greedy", number(0, 100), 0.8)
TOP_K = Option(("--top-k",), "best tokens considered, 0: all", integer(0, COUNT_MAX), 40)
TOP_P = Option(("--top-p",), "their probability, 1: off", number(0, 1), 0.95)
MIN_P = Option(("--min-p",), "least of the best's, 0: off", number(0, 1), 0.05)
TYPICAL_P = Option(("--typical-p",), "probability of what is typical, 1: off", number(0, 1), 1.0)
TOP_N_SIGMA = Option(
    ("--top-n-sigma",), "deviations below the best, negative: off", number(-1, 1000), -1.0
)
REPEAT_PENALTY = Option(
    ("--repeat-penalty",), "on tokens seen before, 1: off", number(1e-3, 1000), 1.0
)
REPEAT_LAST_N = Option(
    ("--repeat-last-n",), "tokens that penalties see, 0: none, -1: all", integer(-1, COUNT_MAX),
    64, metavar="N",
)  # fmt: skip
PRESENCE_PENALTY = Option(
    ("--presence-penalty",), "once on each token seen, 0: off", number(-2, 2), 0.0
)
FREQUENCY_PENALTY = Option(
    ("--frequency-penalty",), "each time it was seen, 0: off", number(-2, 2), 0.0
)
SEED = Option(("--seed",), "same seed, same text", integer(0, 2**64 - 1), 0)

NPP = Option(("-npp",), "prompt lengths", integers(1, TOKENS_MAX), [512], metavar="A,B")
NTG = Option(("-ntg",), "generated tokens", integers(1, TOKENS_MAX), [64], metavar="A,B")
NPL = Option(("-npl",), "sequences", integers(1, TOKENS_MAX), [1, 4, 16], metavar="A,B")

EVAL_TYPE_K = Option(
    ("-ctk", "--cache-type-k"), f"types of stored keys to measure: {_KV}", several_of(KV_TYPES),
    ["f16", "q8_0", "q4_0"], names=KV_TYPES, metavar="A,B",
)  # fmt: skip
EVAL_TYPE_V = Option(
    ("-ctv", "--cache-type-v"), "of stored values: as many, or one", several_of(KV_TYPES), None,
    "those of the keys", names=KV_TYPES, metavar="A,B",
)  # fmt: skip
WINDOW = Option(("--window",), "tokens of a window", integer(8, TOKENS_MAX), 512, metavar="N")
WINDOWS = Option(("--chunks",), "windows measured, 0: all", integer(0, TOKENS_MAX), 0, metavar="N")

POOL = (CTX_SIZE, POOL_BYTES, CACHE_TYPE_K, CACHE_TYPE_V, SWA_FULL, RESUME_BYTES)
SAMPLING = (
    TEMP, TOP_K, TOP_P, MIN_P, TYPICAL_P, TOP_N_SIGMA, REPEAT_PENALTY, REPEAT_LAST_N,
    PRESENCE_PENALTY, FREQUENCY_PENALTY, SEED,
)  # fmt: skip

ALL = (
    MODEL, *POOL, RESUME_SPACING, PRECISION, THREADS, HOST, PORT, ADMIN_PORT, ALIAS, PARALLEL,
    BATCH_SIZE, DRAFT_MAX, DEFAULT_PRIORITY, DEFAULT_TIMEOUT, VERBOSE,
    MAX_TOKENS, *SAMPLING, NPP, NTG, NPL, WINDOW, WINDOWS,
)  # fmt: skip
"""Every option that the environment and the configuration file may set."""


def sampling_of(args: argparse.Namespace) -> dict[str, Any]:
    """What was said by the options of `SAMPLING`, under the engine's names."""
    values = {option.key: getattr(args, option.key) for option in SAMPLING}
    return {"temperature": values.pop("temp"), **values}
