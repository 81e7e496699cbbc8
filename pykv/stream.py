"""One answer of an engine, piece by piece or whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict

from pykv import _core
from pykv.text import Assembler, TokenInfo

if TYPE_CHECKING:
    from types import TracebackType

    from pykv._core import EngineEvent
    from pykv.engine import GenerateRequest
    from pykv.events import Dispatcher, Mailbox
    from pykv.tokenizer import Tokenizer


class GenerateOptions(TypedDict, total=False):
    """How to generate; what is left out has the default of :class:`GenerateRequest`.

    `stop` holds strings: the answer ends before the first that appears. `stop_tokens` are ids
    that end it, by default those with which the model ends its turns. The other names are
    those of `GenerateRequest`.
    """

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    typical_p: float
    top_n_sigma: float
    repeat_penalty: float
    repeat_last_n: int
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float]
    seed: int
    stop: Sequence[str]
    stop_tokens: Sequence[int]
    logprobs: int | None
    name_space: int
    tenant: str
    priority: int
    timeout: float | None
    use_cache: bool
    draft_max: int | None


@dataclass(frozen=True, slots=True)
class Completion:
    """A whole answer.

    Attributes:
        text: without the stop string that ended it.
        tokens: ids as the model gave them, the one that ended the answer included.
        finish_reason: "stop" (a stop string or token), "length" or "cancelled".
        prompt_tokens: of the prompt.
        cached_tokens: of these, taken from the pool instead of computed.
        generated_tokens: of the answer.
        queue_seconds: from the call to the first step.
        prompt_seconds: from there to the first token.
        generate_seconds: from there to the last token.
        logprobs: of each token that is shown, if they were asked for.
    """

    text: str
    tokens: list[int]
    finish_reason: str
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    queue_seconds: float
    prompt_seconds: float
    generate_seconds: float
    logprobs: list[TokenInfo] | None = None


class Stream:
    """An answer in the making: an iterator of text for `for` or for `async for`.

    Pieces have no broken characters and no part of a stop string. One thread or task reads.
    `close` (or the end of a `with` block, or letting go of the stream) takes the request back.
    `tokens` and `text` hold what was read so far.

    Iterating raises pykv.Error if the engine gives the request up, TimeoutError if its `timeout`
    is over; what was read until then is kept.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        tokenizer: Tokenizer,
        request: GenerateRequest,
        request_id: int,
        mailbox: Mailbox,
        stop: Sequence[str],
        on_token: Callable[[int], None] | None = None,
    ) -> None:
        self.request_id = request_id
        self._mailbox = mailbox
        self.tokens: list[int] = []
        self.cached_tokens = 0
        self._dispatcher = dispatcher
        self._on_token = on_token
        self._pieces: list[str] = []
        self._logprobs: list[TokenInfo] | None = None if request.logprobs is None else []
        self._assembler = Assembler(
            tokenizer.stream(), stop, tokenizer.eog_ids, keep_tokens=request.logprobs is not None
        )
        self._completion: Completion | None = None
        self._closed = False

    @property
    def text(self) -> str:
        """What was read so far."""
        return "".join(self._pieces)

    @property
    def ended(self) -> bool:
        """Whether there is nothing more to read."""
        return self._completion is not None or self._closed

    def cancel(self) -> None:
        """Ends the request within a step; what it generated until then can still be read."""
        if not self.ended:
            self._dispatcher.cancel(self.request_id)

    def close(self) -> None:
        """Takes the request back; nothing more can be read. Idempotent."""
        self.cancel()
        self._closed = True

    def result(self) -> Completion:
        """Reads the rest and returns the whole answer. Ctrl-C takes the request back."""
        try:
            for _ in self:
                pass
        except BaseException:
            self.close()
            raise
        return self._whole()

    async def result_async(self) -> Completion:
        """The same for a task; cancelling the task takes the request back."""
        try:
            async for _ in self:
                pass
        except BaseException:
            self.close()
            raise
        return self._whole()

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> str:
        while not self.ended:
            piece = self._take(self._mailbox.get())
            if piece:
                return piece
        raise StopIteration

    def __aiter__(self) -> Stream:
        return self

    async def __anext__(self) -> str:
        while not self.ended:
            piece = self._take(await self._mailbox.get_async())
            if piece:
                return piece
        raise StopAsyncIteration

    def __enter__(self) -> Stream:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self.cancel()

    def _whole(self) -> Completion:
        if self._completion is None:
            raise _core.Error(
                "[Stream.result] the stream was closed before its end; read it before closing it"
            )
        return self._completion

    def _take(self, event: EngineEvent) -> str:
        """Text that can be shown after an event."""
        if event.kind == "started":
            self.cached_tokens = event.cached_tokens
            return ""
        if event.kind == "finished":
            return self._finish(event)
        if self._assembler.stopped:
            return ""  # computed before the engine heard of the stop string
        self.tokens.append(event.token)
        if self._on_token is not None:
            self._on_token(event.token)
        part = self._assembler.feed(event.token, event.logprob, event.top)
        if self._assembler.stopped:
            self._dispatcher.cancel(self.request_id)
        return self._show(part.text, part.tokens)

    def _finish(self, event: EngineEvent) -> str:
        if event.error and not self._assembler.stopped:
            self._closed = True
            raise (TimeoutError if event.reason == "timeout" else _core.Error)(event.error)
        part = self._assembler.finish()
        shown = self._show(part.text, part.tokens)
        self._completion = Completion(
            text=self.text,
            tokens=list(self.tokens),
            finish_reason="stop" if self._assembler.stopped else event.reason,
            prompt_tokens=event.prompt_tokens,
            cached_tokens=event.cached_tokens,
            generated_tokens=len(self.tokens),
            queue_seconds=event.queue_seconds,
            prompt_seconds=event.prompt_seconds,
            generate_seconds=event.generate_seconds,
            logprobs=self._logprobs,
        )
        return shown

    def _show(self, text: str, tokens: list[TokenInfo]) -> str:
        if text:
            self._pieces.append(text)
        if self._logprobs is not None:
            self._logprobs += tokens
        return text
