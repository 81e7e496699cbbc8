"""The engine under asyncio, and one answer at a time without it.

The C++ thread computes; here its events are handed to whoever waits for them, with one
wake-up of the event loop per step.
"""

from __future__ import annotations

import asyncio
import select
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from pykv import _core, arguments

if TYPE_CHECKING:
    from pykv._core import EngineEvent


# By the annotation of a field.
_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "bool": arguments.boolean,
    "float": arguments.real,
    "float | None": lambda what, value: None if value is None else arguments.real(what, value),
    "str": arguments.text,
    "Mapping[int, float]": arguments.mapping,
}


@dataclass(slots=True)
class GenerateRequest:
    """What to generate; the fields of C++ ``EngineRequest`` and ``SamplingParams``.

    Attributes:
        prompt: token ids, 1 to the context.
        max_tokens: at least 1; cut to what the context and the pool allow.
        temperature: 0 is greedy.
        top_k: 0 is off.
        top_p: 1 is off.
        min_p: 0 is off.
        typical_p: 1 is off.
        top_n_sigma: 0 and less is off.
        repeat_penalty: 1 is off; divides positive logits of tokens that were seen and multiplies
            others.
        repeat_last_n: how many of the last tokens, of prompt and answer, count as seen; 0 is off,
            -1 all.
        presence_penalty: subtracted from logits of tokens generated so far, -2 to 2.
        frequency_penalty: the same, times how often they were.
        logit_bias: token id to what is added to its logit, -100 to 100, or minus infinity.
        seed: of the draws, 0 to 2**64 - 1.
        stop_tokens: generation ends *with* one of these.
        logprobs: None for none, n for the chosen token and the n most likely (at most 20).
        name_space: requests share prefixes only within one.
        tenant: whose counters are moved.
        priority: higher goes first, may take the place of a lower one, is preempted last;
            waiting `ageing_seconds` weighs as much as one more.
        timeout: seconds to the last token; then the request ends with reason "timeout".
        use_cache: False computes the whole prompt.
        draft_max: tokens guessed from the text and computed ahead, 0 to 32; None: the engine's
            limit. The answer does not depend on it.
        choices: answers to the prompt, 1 to 128, with the seeds seed, seed + 1, …
    """

    prompt: Sequence[int]
    max_tokens: int
    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    typical_p: float = 1.0
    top_n_sigma: float = -1.0
    repeat_penalty: float = 1.0
    repeat_last_n: int = 64
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int = 0
    stop_tokens: Sequence[int] = ()
    logprobs: int | None = None
    name_space: int = 0
    tenant: str = "default"
    priority: int = 0
    timeout: float | None = None
    use_cache: bool = True
    choices: int = 1
    draft_max: int | None = None

    def submit(self, core: _core.Engine) -> int:
        """Queues it and returns its id, from which those of further choices go on. Raises
        InvalidArgument, TypeError, or Busy: try again later."""
        return core.submit(**{each.name: self._checked(each) for each in fields(self)})

    def _checked(self, each: Field[Any]) -> Any:
        """The value of a field; the core checks integers itself."""
        value = getattr(self, each.name)
        check = _CHECKS.get(str(each.type))
        return check(f"[Engine.submit] {each.name}", value) if check else value


class Generation:
    """The events of one request: an async iterator for one task.

    The last event has kind ``"finished"``. If the task that waits is cancelled, or the
    iterator is closed or dropped, the request is cancelled.
    """

    def __init__(self, engine: AsyncEngine, request_id: int) -> None:
        self.request_id = request_id
        self._engine = engine
        self._events: deque[EngineEvent] = deque()
        self._arrived = asyncio.Event()
        self._ended = False

    def cancel(self) -> None:
        """Ends the request within a step; its "finished" event still comes. Idempotent."""
        if not self._ended:
            self._engine._cancel(self.request_id)

    async def aclose(self) -> None:
        """Cancels the request and ends the iteration."""
        self.cancel()
        self._ended = True
        self._events.clear()
        self._arrived.set()

    def __aiter__(self) -> Generation:
        return self

    async def __anext__(self) -> EngineEvent:
        while not self._events:
            if self._ended:
                raise StopAsyncIteration
            self._arrived.clear()
            try:
                await self._arrived.wait()
            except asyncio.CancelledError:
                self.cancel()
                raise
        return self._events.popleft()

    def __del__(self) -> None:
        self.cancel()

    def _push(self, event: EngineEvent) -> None:
        if self._ended:  # closed
            return
        self._events.append(event)
        self._ended = event.kind == "finished"
        self._arrived.set()


class AsyncEngine:
    """A core engine whose events go to the tasks of one event loop.

    Args:
        core: not used elsewhere while this runs: events go to whoever drains it.
    """

    def __init__(self, core: _core.Engine) -> None:
        self._core = core
        self._loop: asyncio.AbstractEventLoop | None = None
        # Weak: an answer that nobody holds any more is cancelled by Generation.__del__.
        self._open: WeakValueDictionary[int, Generation] = WeakValueDictionary()

    async def start(self) -> None:
        """Starts the engine's thread; its events arrive in the loop that runs now.

        Raises:
            pykv.Error: it was started in another event loop.
        """
        loop = asyncio.get_running_loop()
        if self._loop is not None:
            self._check_loop("start", loop)
            return
        self._core.start()
        loop.add_reader(self._core.notify_fd(), self._dispatch)
        self._loop = loop

    async def stop(self) -> None:
        """Ends after the current step; open requests finish as "cancelled". Idempotent."""
        if self._loop is None:
            return
        self._check_loop("stop", asyncio.get_running_loop())
        loop, self._loop = self._loop, None
        await loop.run_in_executor(None, self._core.stop)
        loop.remove_reader(self._core.notify_fd())
        self._dispatch()

    def generate(self, request: GenerateRequest) -> Generation:
        """Queues `request`; its first choice.

        Raises:
            pykv.InvalidArgument: the message names value and limit.
            pykv.Busy: the queue is full, or the engine is not started.
            pykv.Error: called in another event loop than start().
        """
        return self.generate_choices(request)[0]

    def generate_choices(self, request: GenerateRequest) -> list[Generation]:
        """Queues `request`; all its choices, each with a seed of its own. Raises as generate()."""
        if self._loop is None:
            raise _core.Busy(
                "[AsyncEngine.generate] the engine is not started; await start() first"
            )
        self._check_loop("generate", asyncio.get_running_loop())
        first = request.submit(self._core)
        generations = [Generation(self, first + i) for i in range(request.choices)]
        self._open.update((each.request_id, each) for each in generations)
        return generations

    def _check_loop(self, method: str, running: asyncio.AbstractEventLoop) -> None:
        if running is not self._loop:
            raise _core.Error(
                f"[AsyncEngine.{method}] this engine was started in another event loop; "
                "use it there, or stop() it there and start() it here"
            )

    def _cancel(self, request_id: int) -> None:
        self._core.cancel(request_id)

    def _dispatch(self) -> None:
        for event in self._core.drain():
            generation = self._open.get(event.request)
            if generation is not None:
                generation._push(event)


def generate_blocking(core: _core.Engine, request: GenerateRequest) -> Iterator[EngineEvent]:
    """Events of one request, in the calling thread, from a started engine.

    Nobody else may drain the engine meanwhile. Closing the iterator cancels the request
    and waits until it has ended.
    """
    request_id = request.submit(core)
    events: deque[EngineEvent] = deque()
    ended = False

    def next_event() -> EngineEvent:
        nonlocal ended
        while not events:
            poll.poll()
            events.extend(event for event in core.drain() if event.request == request_id)
        ended = events[0].kind == "finished"
        return events.popleft()

    poll = select.poll()
    poll.register(core.notify_fd(), select.POLLIN)
    try:
        while not ended:
            yield next_event()
    finally:
        core.cancel(request_id)
        while not ended:
            next_event()
