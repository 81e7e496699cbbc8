"""Horizontal bars as an SVG file: all that the measurements here need of a chart."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from pykv._core import Error, InvalidArgument

_ROW, _LABEL, _BARS, _TEXT, _HEAD = 24, 300, 420, 200, 44  # pixels


@dataclass(frozen=True)
class Bar:
    """`text` stands behind the bar; a line marks `target`, where there is one."""

    label: str
    value: float
    text: str
    target: float | None = None


def svg(title: str, bars: Sequence[Bar], *, logarithmic: bool = False) -> str:
    """The picture. Bars start at 0, with `logarithmic` at a tenth of the least value above 0."""
    values = [v for bar in bars for v in (bar.value, bar.target) if v is not None and v > 0]
    high = max(values, default=1.0)
    low = min(values, default=1.0) / 10

    def length(value: float) -> float:
        if value <= 0 or not math.isfinite(value):
            return 0.0
        if logarithmic:
            return _BARS * math.log(value / low) / math.log(high / low)
        return _BARS * value / high

    width, height = _LABEL + _BARS + _TEXT, _HEAD + _ROW * len(bars) + 8
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="13">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="8" y="24" font-size="15" font-weight="bold">{escape(title)}</text>',
    ]
    for place, bar in enumerate(bars):
        top = _HEAD + place * _ROW
        lines += [
            f'<text x="{_LABEL - 8}" y="{top + 15}" text-anchor="end">{escape(bar.label)}</text>',
            f'<rect x="{_LABEL}" y="{top + 3}" width="{length(bar.value):.1f}" height="16" '
            'fill="#3b6fb6"/>',
            f'<text x="{_LABEL + _BARS + 8}" y="{top + 15}">{escape(bar.text)}</text>',
        ]
        if bar.target is not None:
            x = _LABEL + length(bar.target)
            lines.append(
                f'<line x1="{x:.1f}" y1="{top}" x2="{x:.1f}" y2="{top + 22}" stroke="#c0392b" '
                'stroke-width="2"/>'
            )
    return "\n".join([*lines, "</svg>"]) + "\n"


def check_path(path: Path) -> None:
    """Raises InvalidArgument if no picture can be written there; before measuring."""
    if path.suffix != ".svg":
        raise InvalidArgument(f"--plot writes SVG; name a file that ends in .svg, not {path.name}")
    if not path.resolve().parent.is_dir():
        raise InvalidArgument(f"--plot: there is no folder {path.resolve().parent}")


def write(path: Path, picture: str) -> None:
    """Raises Error if it cannot be written."""
    try:
        path.write_text(picture, encoding="utf-8")
    except OSError as error:
        raise Error(f"--plot: cannot write {path}: {error.strerror}") from error
