"""A real model behind HTTP, and what of llama.cpp's answers it must repeat."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from pykv.runtime import Runtime, RuntimeOptions
from pykv.server import create_app
from tests.server.fakes import served


@contextmanager
def serving(path: Path) -> Iterator[httpx.Client]:
    options = RuntimeOptions(model=str(path), ctx_size=8192)
    with (
        Runtime.open(options) as runtime,
        served(create_app(runtime)) as url,
        httpx.Client(base_url=url, timeout=300) as client,
    ):
        yield client


def names(entry: Any) -> str:
    return str(entry["id"])


def certain_length(entry: Any, gap: float) -> int:
    """Tokens up to the first whose lead over the next best, in nats, is less than `gap`."""
    for index, top in enumerate(entry["top10"]):
        if top[0][1] - top[1][1] < gap:
            return index
    return len(entry["top10"])
