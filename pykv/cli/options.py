"""Types of command-line values that several commands share."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable


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
