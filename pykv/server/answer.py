"""One answer of the engine: events in, showable parts out."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.types import Receive

from pykv.server.errors import failed, stopping, timed_out
from pykv.server.history import PromptTokens
from pykv.server.service import Service
from pykv.server.settings import Settings
from pykv.text import Assembler, Part

if TYPE_CHECKING:
    from pykv._core import EngineEvent
    from pykv.engine import Generation

T = TypeVar("T")


@dataclass
class Usage:
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.prompt_tokens + other.prompt_tokens,
            self.cached_tokens + other.cached_tokens,
            self.completion_tokens + other.completion_tokens,
        )

    def body(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }


class Answer:
    """The answer to one prompt: `await begin()`, iterate once, always `close()`.

    After the last part `finish_reason` is "stop" or "length", `usage` is complete and `ended`
    is the engine's last event. Of several answers to one prompt the first counts its tokens.
    """

    def __init__(
        self,
        service: Service,
        prompt: PromptTokens,
        settings: Settings,
        generation: Generation,
        *,
        first: bool = True,
    ) -> None:
        self.finish_reason = ""
        self.ended: EngineEvent | None = None
        self.usage = Usage(prompt_tokens=len(prompt.ids) if first else 0)
        self._counts_prompt = first
        self._service = service
        self._prompt = prompt
        self._ids: list[int] = []
        self._shown: list[str] = []
        self._hidden = settings.max_tokens == 0
        tokenizer = service.tokenizer
        self._assembler = Assembler(
            tokenizer.stream(),
            settings.stops,
            tokenizer.eog_ids,
            keep_tokens=settings.logprobs is not None or settings.return_tokens,
        )
        self._generation = generation
        self._events: AsyncIterator[EngineEvent] = aiter(self._generation)
        self._first: EngineEvent | None = None

    @property
    def prompt(self) -> list[int]:
        return self._prompt.ids

    @property
    def stop_string(self) -> str:
        """The stop string that ended the answer, or nothing."""
        return self._assembler.stop_string

    @property
    def has_new_line(self) -> bool:
        return any("\n" in text for text in self._shown)

    async def begin(self) -> None:
        """Waits for the first event, so that an early failure can still be a status."""
        self._first = await anext(self._events, None)
        if self._first is None:
            raise stopping()
        self._check(self._first)

    async def parts(self) -> AsyncIterator[Part]:
        """Parts with something in them. ApiError if the engine gives up."""
        event = self._first
        while event is not None:
            if event.kind == "token":
                part = self._take(event)
                if part:
                    yield part
            elif event.kind == "finished":
                rest = self._finish(event)
                if rest:
                    yield rest
                await self._remember()
                return
            else:
                self._count_cached(event)
            event = await anext(self._events, None)
        if not self._assembler.stopped:
            raise stopping()

    def close(self) -> None:
        """Takes the request back if it is still running."""
        self._generation.cancel()

    def _take(self, event: EngineEvent) -> Part:
        if self._assembler.stopped or self._hidden:
            return Part()  # computed before the engine heard of the stop string, or not asked for
        self.usage.completion_tokens += 1
        self._ids.append(event.token)
        part = self._assembler.feed(event.token, event.logprob, event.top)
        self._shown.append(part.text)
        if self._assembler.stopped:
            self.finish_reason = "stop"
            self._generation.cancel()
        return part

    def _check(self, event: EngineEvent) -> None:
        if event.kind != "finished" or self._assembler.stopped:
            return
        if event.reason == "failed":
            raise failed(event.error)
        if event.reason == "timeout":
            raise timed_out(event.error)
        if event.reason not in ("stop", "length"):
            raise stopping()  # cancelled, but not by us

    def _finish(self, event: EngineEvent) -> Part:
        self._check(event)
        self._count_cached(event)
        self.ended = event
        if self._assembler.stopped:
            return Part()
        part = self._assembler.finish()
        self._shown.append(part.text)
        self.finish_reason = "stop" if self._assembler.stopped else event.reason
        if self._hidden:
            self.finish_reason = "length"
        return part

    def _count_cached(self, event: EngineEvent) -> None:
        if self._counts_prompt:
            self.usage.cached_tokens = event.cached_tokens

    async def _remember(self) -> None:
        """So that the chat's next turn finds this answer's tokens."""
        if self._prompt.tail is not None:
            text = "".join(self._shown)
            await self._service.remember(self._prompt.tail, text, self._ids)


async def open_answers(
    service: Service, prompts: Sequence[PromptTokens], settings: Settings
) -> list[Answer]:
    """Answers that have begun, `n` for each prompt, or ApiError and none is left running."""
    answers: list[Answer] = []
    try:
        for prompt in prompts:
            choices = service.submit(prompt.ids, settings)
            answers += [
                Answer(service, prompt, settings, generation, first=index == 0)
                for index, generation in enumerate(choices)
            ]
        for answer in answers:
            await answer.begin()
    except BaseException:
        close_all(answers)
        raise
    return answers


def close_all(answers: Sequence[Answer]) -> None:
    for answer in answers:
        answer.close()


async def collect(answer: Answer) -> Part:
    """The whole answer."""
    whole = Part()
    texts: list[str] = []
    async for part in answer.parts():
        texts.append(part.text)
        whole.tokens += part.tokens
    whole.text = "".join(texts)
    return whole


async def collect_all(answers: Sequence[Answer]) -> list[Part]:
    """The whole answers, side by side; none is left running."""
    try:
        return await asyncio.gather(*map(collect, answers))
    finally:
        close_all(answers)


async def merge(answers: Sequence[Answer]) -> AsyncGenerator[tuple[int, Part | None], None]:
    """Parts of all answers as they come, with the answer's index; None ends one answer."""
    queue: asyncio.Queue[tuple[int, Part | None, Exception | None]] = asyncio.Queue(len(answers))

    async def feed(index: int, answer: Answer) -> None:
        try:
            async for part in answer.parts():
                await queue.put((index, part, None))
            await queue.put((index, None, None))
        except Exception as error:
            await queue.put((index, None, error))

    tasks = [asyncio.create_task(feed(index, answer)) for index, answer in enumerate(answers)]
    try:
        running = len(tasks)
        while running:
            index, part, error = await queue.get()
            if error is not None:
                raise error
            running -= part is None
            yield index, part
    finally:
        for task in tasks:
            task.cancel()


class ClientGone(Exception):
    """The client has disconnected; there is nobody to answer."""


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def unless_gone(receive: Receive, work: Callable[[], Awaitable[T]]) -> T:
    """Result of `work()`, which is cancelled as soon as the client disconnects.

    Raises ClientGone then. The request's body must have been read.
    """

    async def run() -> T:
        return await work()

    task = asyncio.create_task(run())
    watcher = asyncio.create_task(_disconnected(receive))
    try:
        await asyncio.wait({task, watcher}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        for each in (task, watcher):
            each.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await each
        del task, each  # an error in them would hold this frame, and this frame them
