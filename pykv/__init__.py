"""pykv: one shared KV cache for all sessions of an LLM service.

The names below load on first use, so that ``import pykv`` costs nothing.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pykv._core import (
        Busy,
        CorruptModel,
        Error,
        IntegrityError,
        InvalidArgument,
        OutOfCells,
        OutOfMemory,
        StalePlan,
        Unsupported,
        UnsupportedModel,
        build_info,
    )
    from pykv.cache import Cache, Plan
    from pykv.cache_types import CacheConfig, Layer, Opened, Rope, Run, Span
    from pykv.inference import Engine
    from pykv.saved import Restored, Saved
    from pykv.session import Session
    from pykv.step import Step
    from pykv.stream import Completion, Stream

__all__ = [
    "Busy",
    "Cache",
    "CacheConfig",
    "Completion",
    "CorruptModel",
    "Engine",
    "Error",
    "IntegrityError",
    "InvalidArgument",
    "Layer",
    "Opened",
    "OutOfCells",
    "OutOfMemory",
    "Plan",
    "Restored",
    "Rope",
    "Run",
    "Saved",
    "Session",
    "Span",
    "StalePlan",
    "Step",
    "Stream",
    "Unsupported",
    "UnsupportedModel",
    "build_info",
]

_HOMES = {
    "Cache": "pykv.cache",
    "Completion": "pykv.stream",
    "Engine": "pykv.inference",
    "Plan": "pykv.cache",
    "Restored": "pykv.saved",
    "Saved": "pykv.saved",
    "Session": "pykv.session",
    "Step": "pykv.step",
    "Stream": "pykv.stream",
} | dict.fromkeys(("CacheConfig", "Layer", "Opened", "Rope", "Run", "Span"), "pykv.cache_types")

if importlib.util.find_spec("pykv._core") is None:
    _folder = os.path.dirname(os.path.abspath(__file__))
    raise ModuleNotFoundError(
        f"the compiled part of pykv is not in {_folder}: in a source tree, run `make build` and "
        "use .venv/bin/python; to use an installed pykv, start Python in another folder",
        name="pykv._core",
    )


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return importlib.import_module("pykv._core").build_info()["version"]
    if name not in __all__:
        raise AttributeError(f"module 'pykv' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES.get(name, "pykv._core")), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
