"""A text in the making that can be forked, rewound and edited."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pykv import _core

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from pykv.inference import Engine, Prompt
    from pykv.stream import Completion, GenerateOptions, Stream


class Session:
    """Tokens that grow by what is appended and by what the model generates.

    `Engine.session` makes one. It holds token ids; the engine keeps their keys and values in the
    pool and finds them again, so going on computes only what was never computed (or was evicted
    meanwhile: then it is computed again, with the same result). Two sessions with equal
    beginnings store them once.

    Methods are for one thread or task at a time. While an answer is being streamed the
    session has the tokens that were read; whatever changes the tokens closes the stream first.
    """

    def __init__(self, engine: Engine, tokens: list[int], options: GenerateOptions) -> None:
        self._engine = engine
        self._tokens = tokens
        self._options = options
        self._running: Stream | None = None

    @property
    def tokens(self) -> list[int]:
        """A copy of the token ids: prompts and answers."""
        return list(self._tokens)

    @property
    def text(self) -> str:
        """All of it as text, control tokens left out."""
        return self._engine.tokenizer.decode(self._tokens)

    def __len__(self) -> int:
        return len(self._tokens)

    def append(self, prompt: Prompt) -> None:
        """Adds a text (without the token that begins texts), messages or ids at the end."""
        self._stop()
        self._tokens += self._engine.tokens(prompt, add_special=False)

    def stream(self, max_tokens: int | None = None, **options: Unpack[GenerateOptions]) -> Stream:
        """Goes on; each token becomes part of the session when it is read.

        Options are added to those of the session. Raises as `Engine.stream`.
        """
        self._stop()
        self._running = self._engine._submit(
            list(self._tokens), max_tokens, {**self._options, **options}, self._tokens.append
        )[0]
        return self._running

    def generate(
        self, max_tokens: int | None = None, **options: Unpack[GenerateOptions]
    ) -> Completion:
        """Goes on and waits for the whole answer. The session then ends with its tokens, those of
        a stop string and the one that ended the turn included."""
        return self.stream(max_tokens, **options).result()

    async def generate_async(
        self, max_tokens: int | None = None, **options: Unpack[GenerateOptions]
    ) -> Completion:
        """The same for a task; cancelling the task ends the request within a step."""
        return await self.stream(max_tokens, **options).result_async()

    def fork(self, **options: Unpack[GenerateOptions]) -> Session:
        """A session with the same tokens, also in the middle of an answer, which goes on.

        Nothing is copied but token ids: keys and values are shared. `options` are added to
        this session's.
        """
        return Session(self._engine, list(self._tokens), {**self._options, **options})

    def rewind(self, length: int) -> None:
        """Keeps the first `length` tokens. Raises InvalidArgument if there are not so many."""
        self._check("rewind", "length", length, 0)
        self._stop()
        del self._tokens[length:]

    def edit(self, begin: int, end: int, replacement: Prompt) -> None:
        """Puts a text, messages or ids in the place of the tokens [begin, end).

        What lies before `begin` is reused. What follows is kept as text and computed again when
        the session goes on, since it was computed behind other tokens: the answer is the one
        that a session of these tokens gives. Raises InvalidArgument for a range outside the
        session.
        """
        self._check("edit", "begin", begin, 0)
        self._check("edit", "end", end, begin)
        ids = self._engine.tokens(replacement, add_special=False)
        self._stop()
        self._tokens[begin:end] = ids

    def close(self) -> None:
        """Ends the stream that is running. Its keys and values can still be reused. Idempotent."""
        self._stop()

    def _stop(self) -> None:
        if self._running is not None:
            self._running.close()
            self._running = None

    def _check(self, method: str, name: str, value: int, low: int) -> None:
        if not isinstance(value, int) or isinstance(value, bool):
            raise TypeError(f"[Session.{method}] {name} is {value!r}; it must be an int")
        if not low <= value <= len(self._tokens):
            raise _core.InvalidArgument(
                f"[Session.{method}] {name} is {value}; it must be {low} to {len(self._tokens)}, "
                "the number of tokens of the session"
            )


def is_messages(prompt: object) -> bool:
    """Whether a prompt is a chat."""
    return isinstance(prompt, Sequence) and bool(prompt) and isinstance(prompt[0], Mapping)
