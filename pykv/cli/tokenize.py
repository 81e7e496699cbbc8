"""`pykv tokenize`: how a model cuts a text."""

from __future__ import annotations

import argparse
import json
import re
from typing import TYPE_CHECKING, Any

from pykv._core import InvalidArgument
from pykv.cli import config, output
from pykv.cli.options import MODEL, text_or_stdin

if TYPE_CHECKING:
    from pykv.tokenizer import Tokenizer

EXAMPLES = """examples:
  pykv tokenize "Hello world"                 ids and pieces, one a line
  pykv tokenize --ids "Hello world"           the ids alone
  pykv tokenize --count < prompt.txt          how many tokens a file has
  pykv tokenize -m gemma3-270m --json "naïve"
  pykv tokenize --decode "19556 905"          from ids to text

Only the vocabulary is read, so this also works for models that the engine cannot run.
"""


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "tokenize",
        help="show how a model cuts a text into tokens",
        description="Prints the tokens of a text: id, type and piece.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("text", nargs="?", help="the text; without it, or with -, it is read from stdin")
    add("--no-special", action="store_true", help="without the begin and end tokens of the model")
    add("--parse-special", action="store_true", help="read control tokens written in the text")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--ids", action="store_true", help="print the ids only, in one line")
    what.add_argument("--count", action="store_true", help="print the number of tokens only")
    what.add_argument("--decode", action="store_true", help="the text is ids; print their text")
    config.declare(parser, {"": (MODEL,)}, json_help="print everything as JSON")


def run(args: argparse.Namespace) -> int:
    from pykv import models
    from pykv._core import GgufFile
    from pykv.tokenizer import Tokenizer

    path = models.resolve(args.model or models.DEFAULT_MODEL)
    text = text_or_stdin(args.text, "tokenize")
    tokenizer = Tokenizer.from_gguf(GgufFile(path))
    if args.decode:
        ids = _ids(text)
        shown = tokenizer.decode(ids)
        print(json.dumps({"ids": ids, "text": shown}, ensure_ascii=False) if args.json else shown)
        return 0
    ids = tokenizer.encode(text, add_special=not args.no_special, parse_special=args.parse_special)
    if args.json:
        print(json.dumps(_report(tokenizer, ids), ensure_ascii=False))
    elif args.count:
        print(len(ids))
    elif args.ids:
        print(" ".join(map(str, ids)))
    else:
        rows = [(str(i), _kind(tokenizer, i), piece(tokenizer, i)) for i in ids]
        print(output.table(("id", "type", "piece"), rows, right=(0,)))
    return 0


def piece(tokenizer: Tokenizer, token: int) -> str:
    """A token for people: in quotes, with what cannot be seen written as an escape."""
    data = tokenizer.token_bytes(token)
    try:
        return f'"{output.visible(data.decode())}"'
    except UnicodeDecodeError:
        return "".join(f"\\x{byte:02x}" for byte in data)


def _ids(text: str) -> list[int]:
    words = re.split(r"[\s,\[\]]+", text.strip(" \t\r\n[],"))
    if not all(re.fullmatch(r"[0-9]{1,10}", word) for word in words):
        raise InvalidArgument(
            "[pykv tokenize] --decode takes token ids, separated by spaces or commas"
        )
    return [int(word) for word in words]


def _kind(tokenizer: Tokenizer, token: int) -> str:
    return tokenizer.token_type(token).name.lower()


def _report(tokenizer: Tokenizer, ids: list[int]) -> dict[str, Any]:
    pieces = []
    for token in ids:
        data = tokenizer.token_bytes(token)
        entry: dict[str, Any] = {"id": token, "type": _kind(tokenizer, token)}
        try:
            entry["piece"] = data.decode()
        except UnicodeDecodeError:
            entry["bytes"] = list(data)
        pieces.append(entry)
    return {
        "model": tokenizer.kind,
        "pre": tokenizer.pre,
        "vocab_size": tokenizer.vocab_size,
        "count": len(ids),
        "ids": ids,
        "tokens": pieces,
    }
