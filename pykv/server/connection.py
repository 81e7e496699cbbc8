"""Connections that do not wait for their client for ever."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

from pykv.server.limits import Limits


class _Connection(H11Protocol):
    """uvicorn's connection, ended if its client neither sends a request nor takes the reply."""

    limits: Limits

    _late: asyncio.TimerHandle | None = None  # runs while no request is being answered
    _stalled: asyncio.TimerHandle | None = None  # runs while the client takes nothing

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._late, self._stalled):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stalled = self.loop.call_later(self.limits.stall_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stalled is not None:
            self._stalled.cancel()

    def _watch(self) -> None:
        answering = self.cycle is not None and not self.cycle.response_complete
        if answering and self._late is not None:
            self._late.cancel()
            self._late = None
        elif not answering and self._late is None and not self.transport.is_closing():
            # Single bytes do not put it off.
            self._late = self.loop.call_later(self.limits.header_seconds, self.transport.abort)


def connection_class(limits: Limits) -> type[asyncio.Protocol]:
    """The protocol for uvicorn's Config."""
    return type("Connection", (_Connection,), {"limits": limits})
