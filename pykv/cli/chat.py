"""A chat with branches: what `pykv run` does, without a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pykv._core import InvalidArgument
from pykv.server.history import History

if TYPE_CHECKING:
    from pykv.inference import Engine
    from pykv.stream import Completion, Stream

_HISTORY_BYTES = 32 << 20
FIRST = "main"


@dataclass(frozen=True)
class Exchange:
    """A question and its answer; a cancelled answer is what there was of it."""

    question: str
    answer: str


class Chat:
    """Branches of one conversation, of which one goes on.

    A branch is a list of exchanges. The engine finds the keys and values of what branches have
    in common, and of everything said before, in its pool: answers go back into prompts as the
    tokens they were generated as.

    Attributes:
        system: the system message, "" for none. Changing it holds for all branches.
        last: figures of the last answer.
    """

    def __init__(self, engine: Engine, system: str, max_tokens: int, options: Any) -> None:
        """`options`: those of `Engine.stream`, for every answer."""
        self._engine = engine
        self._history = History(engine.tokenizer, _HISTORY_BYTES)
        self._branches: dict[str, list[Exchange]] = {FIRST: []}
        self._max_tokens = max_tokens
        self._options = options
        self.system = system
        self.branch = FIRST
        self.last: Completion | None = None

    @property
    def exchanges(self) -> list[Exchange]:
        """Of the branch that goes on."""
        return self._branches[self.branch]

    @property
    def branches(self) -> dict[str, int]:
        """Names, and how many exchanges each has."""
        return {name: len(exchanges) for name, exchanges in self._branches.items()}

    def ask(self, question: str) -> Answer:
        """Begins an answer. Raises as `Engine.stream`; the question is then not kept."""
        prompt = self._history.assemble(self._render(question), 0)
        length, context = len(prompt.ids), self._engine.context
        if length > context and self.exchanges:
            raise InvalidArgument(
                f"with this question the conversation has {length:,} tokens and the context is "
                f"{context:,}; /rewind takes exchanges back, /clear all of them"
            )
        stream = self._engine.stream(prompt.ids, self._max_tokens, **self._options)
        return Answer(self, question, stream, prompt.tail)

    def fork(self, name: str) -> None:
        """Goes on in a new branch with the exchanges so far."""
        if name in self._branches:
            raise InvalidArgument(f"there is a branch {name!r} already; /switch {name} goes there")
        self._branches[name] = list(self.exchanges)
        self.branch = name

    def free_name(self) -> str:
        """A name that no branch has."""
        numbers = range(2, len(self._branches) + 3)
        return next(str(n) for n in numbers if str(n) not in self._branches)

    def switch(self, name: str) -> None:
        """Goes on in another branch."""
        if name not in self._branches:
            raise InvalidArgument(
                f"there is no branch {name!r}; there are {', '.join(self._branches)}"
            )
        self.branch = name

    def rewind(self, count: int) -> list[Exchange]:
        """Takes the last exchanges back and returns them."""
        if not 1 <= count <= len(self.exchanges):
            raise InvalidArgument(
                f"{count} exchanges cannot be taken back; this branch has {len(self.exchanges)}"
            )
        self._branches[self.branch], taken = self.exchanges[:-count], self.exchanges[-count:]
        return taken

    def tokens(self) -> int:
        """Tokens of the branch as a prompt for the next question."""
        return len(self._history.assemble(self._render(""), 0).ids)

    def _render(self, question: str) -> str:
        messages = [{"role": "system", "content": self.system}] if self.system else []
        for each in self.exchanges:
            messages.append({"role": "user", "content": each.question})
            messages.append({"role": "assistant", "content": each.answer})
        messages.append({"role": "user", "content": question})
        return self._engine.template.render(messages)


class Answer:
    """An answer in the making: an iterator of its text."""

    def __init__(self, chat: Chat, question: str, stream: Stream, tail: Any) -> None:
        self._chat = chat
        self._question = question
        self._stream = stream
        self._tail = tail

    def __iter__(self) -> Iterator[str]:
        return self._stream

    def cancel(self) -> None:
        """Ends it within a step; what came until then can still be read."""
        self._stream.cancel()

    def keep(self) -> Completion:
        """Reads the rest, and makes question and answer part of the branch."""
        completion = self._stream.result()
        chat = self._chat
        if self._tail is not None:
            chat._history.remember(self._tail, completion.text, completion.tokens)
        chat.exchanges.append(Exchange(self._question, completion.text))
        chat.last = completion
        return completion
