"""What commands print on a terminal: tables and a little colour."""

from __future__ import annotations

import os
import sys
import unicodedata
from collections.abc import Sequence

_COLOURS = {"green": 32, "yellow": 33, "red": 31, "bold": 1}


def table(head: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[int] = ()) -> str:
    """Columns aligned by what a terminal shows; those in `right` to the right."""
    lines = [list(head), *([*row] for row in rows)]
    widths = [max(map(width, column)) for column in zip(*lines, strict=True)]
    made = []
    for line in lines:
        cells = []
        for place, (cell, size) in enumerate(zip(line, widths, strict=True)):
            space = " " * (size - width(cell))
            cells.append(space + cell if place in right else cell + space)
        made.append("  ".join(cells).rstrip())
    made.insert(1, "  ".join("-" * size for size in widths))
    return "\n".join(made)


def width(text: str) -> int:
    """Columns of a terminal that a text takes: wide characters two, marks none."""
    return sum(
        0 if unicodedata.combining(char) else 1 + (unicodedata.east_asian_width(char) in "WF")
        for char in text
    )


def visible(text: str) -> str:
    """The text with line breaks, control and format characters as escapes: nothing in it
    can move the cursor or pose as our own words."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def facts(rows: Sequence[tuple[str, str]]) -> str:
    """Names and what they are, aligned."""
    size = max(len(name) for name, _ in rows)
    return "\n".join(f"{name.ljust(size)}  {value}" for name, value in rows)


def paint(text: str, colour: str) -> str:
    """The text in colour, if stdout is a terminal that shows it and NO_COLOR is not set."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    if plain or not sys.stdout.isatty():
        return text
    return f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m"


def can_move_cursor() -> bool:
    """Whether stderr is a terminal that can overwrite a line."""
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


def size(count: float) -> str:
    """Bytes for people: 98.4 MB as 93.8 MiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            break
        count /= 1024
    return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
