"""A model that answers many threads and tasks of this process from one KV pool.

>>> import pykv
>>> with pykv.Engine.open("smollm2-135m") as engine:  # doctest: +SKIP
...     print(engine.generate("The capital of France is", max_tokens=16, temperature=0).text)
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict, cast

from pykv import _core
from pykv.engine import GenerateRequest
from pykv.events import Dispatcher
from pykv.runtime import Progress, Runtime, RuntimeOptions
from pykv.session import Session, is_messages
from pykv.stream import Completion, GenerateOptions, Stream

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Unpack

    from pykv.tokenizer import ChatTemplate, Tokenizer

Message = Mapping[str, str]
Prompt = str | Sequence[int] | Sequence[Message]
"""A text, token ids, or messages with `role` and `content`."""


class OpenOptions(TypedDict, total=False):
    """Names and defaults are those of :class:`pykv.runtime.RuntimeOptions`."""

    ctx_size: int
    parallel: int
    batch_size: int
    cache_type_k: str
    cache_type_v: str
    precision: str
    threads: int
    pool_bytes: int
    draft_max: int
    swa_full: bool
    resume_bytes: int | None
    resume_spacing: int


class Engine:
    """Model, tokenizer, KV pool and step loop, opened together.

    Every method may be called from any thread; those named `…_async` and `async for` over a
    stream do not hold up their event loop. A context manager, also of `async with`. Not usable
    in a forked child.
    """

    def __init__(self, runtime: Runtime) -> None:
        """Takes over an open runtime; `open` is the usual way."""
        self.runtime = runtime
        self._dispatcher = Dispatcher(runtime.engine)
        self._closed = False

    @classmethod
    def open(
        cls,
        model: str | os.PathLike[str],
        *,
        progress: Progress | None = None,
        **options: Unpack[OpenOptions],
    ) -> Engine:
        """Loads a model by its name or the path of a GGUF file.

        `progress(stage, fraction)` is called as it goes on, in this thread; what it raises
        ends the loading and is raised here.

        Raises:
            pykv.InvalidArgument: an option is out of range, or the pool is too small.
            pykv.CorruptModel, pykv.UnsupportedModel: the file.
            pykv.OutOfMemory: weights or pool do not fit.
            pykv.Error: the file is missing or cannot be read.
        """
        opened = Runtime.open(RuntimeOptions(model=os.fspath(model), **options), progress)
        return cls(opened)

    @classmethod
    async def open_async(
        cls,
        model: str | os.PathLike[str],
        *,
        progress: Progress | None = None,
        **options: Unpack[OpenOptions],
    ) -> Engine:
        """The same in a thread of its own, which also calls `progress`."""
        return await asyncio.to_thread(cls.open, model, progress=progress, **options)

    @property
    def tokenizer(self) -> Tokenizer:
        """Text to ids and back."""
        return self.runtime.tokenizer

    @property
    def template(self) -> ChatTemplate:
        """Messages to text."""
        return self.runtime.template

    @property
    def context(self) -> int:
        """Tokens of prompt and answer that one request may have."""
        return self.runtime.pool_facts().longest_request

    def tokens(self, prompt: Prompt, *, add_special: bool = True) -> list[int]:
        """Ids of a prompt. Messages are rendered by the model's chat template, with the
        opening of the answer; `add_special`: a text begins as the model's texts do."""
        if isinstance(prompt, str):
            return self.tokenizer.encode(prompt, add_special=add_special)
        if is_messages(prompt):
            text = self.template.render(cast("Sequence[Message]", prompt))
            return self.tokenizer.encode(text, add_special=add_special, parse_special=True)
        if isinstance(prompt, bytes | bytearray | Mapping) or not isinstance(prompt, Iterable):
            raise TypeError(
                "[Engine.tokens] a prompt is a text, token ids or messages, "
                f"not {type(prompt).__name__}"
            )
        return list(cast("Sequence[int]", prompt))

    def stream(
        self,
        prompt: Prompt,
        max_tokens: int | None = None,
        **options: Unpack[GenerateOptions],
    ) -> Stream:
        """Begins an answer of at most `max_tokens` tokens, None: to the end of the context.

        Raises:
            pykv.InvalidArgument: the message names value and limit.
            pykv.Busy: too many requests wait, or the engine is closed.
        """
        return self._submit(self.tokens(prompt), max_tokens, options)[0]

    def streams(
        self,
        prompt: Prompt,
        choices: int,
        max_tokens: int | None = None,
        **options: Unpack[GenerateOptions],
    ) -> list[Stream]:
        """Begins several answers to one prompt, which is computed once, with the seeds `seed`,
        `seed` + 1, … Raises as `stream`."""
        return self._submit(self.tokens(prompt), max_tokens, options, choices=choices)

    def generate(
        self,
        prompt: Prompt,
        max_tokens: int | None = None,
        **options: Unpack[GenerateOptions],
    ) -> Completion:
        """Waits for a whole answer. Raises as `stream`, and pykv.Error if the engine gives up."""
        return self.stream(prompt, max_tokens, **options).result()

    async def generate_async(
        self,
        prompt: Prompt,
        max_tokens: int | None = None,
        **options: Unpack[GenerateOptions],
    ) -> Completion:
        """The same for a task; cancelling the task ends the request within a step."""
        return await self.stream(prompt, max_tokens, **options).result_async()

    def session(self, prompt: Prompt = "", **options: Unpack[GenerateOptions]) -> Session:
        """A text that goes on in several answers; `options` hold for each of them."""
        return Session(self, self.tokens(prompt), options)

    def stats(self) -> dict[str, Any]:
        """Counters and gauges as of the end of a step: the fields of C++ `EngineSnapshot`."""
        return cast("dict[str, Any]", self.runtime.engine.snapshot())

    def close(self) -> None:
        """Ends after the current step; open requests finish as "cancelled". Idempotent."""
        self._closed = True
        self._dispatcher.close()

    async def close_async(self) -> None:
        """The same for a task."""
        await asyncio.to_thread(self.close)

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    async def __aenter__(self) -> Engine:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close_async()

    def _submit(
        self,
        tokens: list[int],
        max_tokens: int | None,
        options: GenerateOptions,
        on_token: Callable[[int], None] | None = None,
        choices: int = 1,
    ) -> list[Stream]:
        if self._closed:
            raise _core.Busy("[Engine.stream] the engine is closed; open another")
        unknown = options.keys() - GenerateOptions.__annotations__.keys()
        if unknown:
            raise TypeError(f"[Engine.stream] unknown options: {', '.join(sorted(unknown))}")
        fields: dict[str, Any] = {"stop_tokens": sorted(self.tokenizer.eog_ids), **options}
        stops = _stop_strings(fields.pop("stop", ()))
        room = max(self.context - len(tokens), 1)
        fields |= {"max_tokens": room if max_tokens is None else max_tokens, "choices": choices}
        request = GenerateRequest(prompt=tokens, **fields)
        boxes = self._dispatcher.submit(request)
        return [
            Stream(self._dispatcher, self.tokenizer, request, each, box, stops, on_token)
            for each, box in boxes.items()
        ]


def _stop_strings(stop: object) -> tuple[str, ...]:
    """Checked before the request is queued: afterwards nobody would take it back."""
    given = (stop,) if isinstance(stop, str) or not isinstance(stop, Iterable) else tuple(stop)
    if not all(isinstance(each, str) for each in given):
        raise TypeError(f"[Engine.stream] stop is {stop!r}; it must be a string or several")
    if not all(given):
        raise _core.InvalidArgument("[Engine.stream] stop has an empty string; leave it out")
    return given
