"""What the admin service may ask of an engine, and the in-process way to ask it."""

from __future__ import annotations

from typing import Any, Protocol

from pykv import _core

Snapshot = dict[str, Any]
"""`EngineSnapshot` of cpp/include/pykv/engine.h as a nested dict, same field names."""


class EngineClient(Protocol):
    """An engine, in this process or elsewhere. Every method may be called from any thread."""

    def snapshot(self) -> Snapshot:
        """The engine's state as of the end of one step. Never changes once returned."""
        ...

    def set_watermarks(self, low: float, high: float) -> None:
        """Reclaim marks as fractions of the pool. ValueError if the engine refuses them."""
        ...

    def set_limits(self, **limits: int) -> None:
        """Fields of `EngineLimits`; those left out keep their value. ValueError if refused."""
        ...

    def build_info(self) -> dict[str, str]:
        """Version, compiler, build type, backend."""
        ...

    def config_info(self) -> dict[str, str]:
        """What was fixed when the engine started: model, KV types, …"""
        ...


class InProcessClient:
    """Wraps a :class:`pykv.runtime.Runtime` of this process.

    `runtime` needs `engine` (a `_core.Engine`); `model_id`, `options` are shown if there.
    """

    _SHOWN = ("cache_type_k", "cache_type_v", "threads")

    def __init__(self, runtime: Any) -> None:
        self._runtime = runtime
        self._engine = runtime.engine

    def snapshot(self) -> Snapshot:
        snapshot: Snapshot = self._engine.snapshot()
        return snapshot

    def set_watermarks(self, low: float, high: float) -> None:
        self._engine.set_watermarks(low, high)

    def set_limits(self, **limits: int) -> None:
        self._engine.set_limits(**limits)

    def build_info(self) -> dict[str, str]:
        return {str(key): str(value) for key, value in _core.build_info().items()}

    def config_info(self) -> dict[str, str]:
        info = {"model": str(getattr(self._runtime, "model_id", ""))}
        options = getattr(self._runtime, "options", None)
        for name in self._SHOWN:
            if hasattr(options, name):
                info[name] = str(getattr(options, name))
        return info
