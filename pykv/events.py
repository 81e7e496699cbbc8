"""Events of one core engine, handed to whoever waits for them: threads or tasks.

One thread drains the engine, so any number of threads and event loops can use it at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import threading
from collections import deque
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from pykv.engine import GenerateRequest

if TYPE_CHECKING:
    from pykv import _core
    from pykv._core import EngineEvent


class Mailbox:
    """Events of one request, for one reader: a thread or a task."""

    def __init__(self) -> None:
        self._events: deque[EngineEvent] = deque()
        self._arrived = threading.Condition()
        self._task: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None

    def put(self, event: EngineEvent) -> None:
        """Any thread."""
        with self._arrived:
            self._events.append(event)
            self._arrived.notify()
            task, self._task = self._task, None
        if task is not None:
            with contextlib.suppress(RuntimeError):  # its loop was closed: nobody waits
                task[0].call_soon_threadsafe(task[1].set)

    def get(self) -> EngineEvent:
        """Waits for the next event."""
        with self._arrived:
            while not self._events:
                self._arrived.wait()
            return self._events.popleft()

    async def get_async(self) -> EngineEvent:
        """Waits without holding up the event loop that runs now."""
        while True:
            with self._arrived:
                if self._events:
                    return self._events.popleft()
                arrived = asyncio.Event()
                self._task = asyncio.get_running_loop(), arrived
            await arrived.wait()


class Dispatcher:
    """Starts the engine and a thread that drains it, until `close`.

    Args:
        core: not drained by anybody else meanwhile.
    """

    def __init__(self, core: _core.Engine) -> None:
        self._core = core
        self._lock = threading.Lock()
        # Weak: who lets go of a mailbox reads no more.
        self._boxes: WeakValueDictionary[int, Mailbox] = WeakValueDictionary()
        self._wake_read, self._wake_write = os.pipe()
        self._closed = False
        core.start()
        self._thread = threading.Thread(target=self._run, name="pykv-events", daemon=True)
        self._thread.start()

    def submit(self, request: GenerateRequest) -> dict[int, Mailbox]:
        """Queues a request; a mailbox for each of its choices, by their ids. Raises
        InvalidArgument, or Busy."""
        with self._lock:  # its events are handed out after it is known here
            first = request.submit(self._core)
            boxes = {first + i: Mailbox() for i in range(request.choices)}
            self._boxes.update(boxes)
        return boxes

    def cancel(self, request_id: int) -> None:
        """Takes effect within a step. No effect after `close`, or if it has ended."""
        if not self._closed:
            self._core.cancel(request_id)

    def close(self) -> None:
        """Ends open requests as "cancelled", hands out their events, ends the thread.
        Idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._core.stop()
        os.write(self._wake_write, b"x")
        self._thread.join()
        self._hand_out()
        os.close(self._wake_write)
        os.close(self._wake_read)

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._core.notify_fd(), select.POLLIN)
        poll.register(self._wake_read, select.POLLIN)
        while self._wake_read not in {fd for fd, _ in poll.poll()}:
            self._hand_out()

    def _hand_out(self) -> None:
        events = self._core.drain()
        with self._lock:
            boxes = [self._boxes.get(event.request) for event in events]
        for box, event in zip(boxes, events, strict=True):
            if box is not None:
                box.put(event)
