"""From tokens to the text a client sees: no half characters, no stop strings.

Pure: no event loop, no engine.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol


class Decoder(Protocol):
    """What pykv.tokenizer's StreamDecoder offers."""

    def feed(self, token: int, /) -> str: ...
    def flush(self) -> str: ...


@dataclass(frozen=True)
class TokenInfo:
    """One generated token; `begin` and `end` are characters of the answer's text."""

    token: int
    logprob: float
    top: Sequence[tuple[int, float]]
    begin: int
    end: int


@dataclass
class Part:
    """What can be shown next."""

    text: str = ""
    tokens: list[TokenInfo] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.text or self.tokens)


class StopFilter:
    """Passes text on until one of the stop strings appears in it.

    Text that may be the beginning of a stop string is held back.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.found = ""

    @property
    def stopped(self) -> bool:
        """Whether a stop string was found, which is `found` then."""
        return bool(self.found)

    def feed(self, text: str) -> str:
        """The text that can be shown now. Nothing after a stop string was found."""
        if self.stopped:
            return ""
        text = self._held + text
        found = [(at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            at, self.found = min(found)
            self._held = ""
            return text[:at]
        keep = max((self._prefix_at_end(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """What was held back and turned out to be no stop string."""
        text, self._held = self._held, ""
        return text

    @staticmethod
    def _prefix_at_end(text: str, stop: str) -> int:
        for length in range(min(len(stop) - 1, len(text)), 0, -1):
            if text.endswith(stop[:length]):
                return length
        return 0


class Assembler:
    """Puts an answer together, token by token.

    Tokens are handed out with the part that completes their text, and only if some of
    their text is before the stop string. `hidden` tokens are not shown; without
    `keep_tokens` there is text only.
    """

    def __init__(
        self,
        decoder: Decoder,
        stops: Sequence[str],
        hidden: frozenset[int],
        *,
        keep_tokens: bool = True,
    ) -> None:
        self._decoder = decoder
        self._filter = StopFilter(stops)
        self._hidden = hidden
        self._keep_tokens = keep_tokens
        self._waiting: deque[TokenInfo] = deque()
        self._decoded = 0  # characters
        self._shown = 0

    @property
    def stopped(self) -> bool:
        """Whether a stop string was found; what comes later is not shown."""
        return self._filter.stopped

    @property
    def stop_string(self) -> str:
        """The stop string that was found, or nothing."""
        return self._filter.found

    def feed(self, token: int, logprob: float, top: Sequence[tuple[int, float]]) -> Part:
        if token in self._hidden or self.stopped:
            return Part()
        text = self._decoder.feed(token)
        begin = self._decoded
        self._decoded += len(text)
        if self._keep_tokens:
            self._waiting.append(TokenInfo(token, logprob, top, begin, self._decoded))
        return self._release(self._filter.feed(text))

    def finish(self) -> Part:
        """The rest, at the end of generation."""
        if self.stopped:
            return Part()
        rest = self._decoder.flush()
        self._decoded += len(rest)
        text = self._filter.feed(rest)
        if not self.stopped:
            text += self._filter.flush()
        return self._release(text)

    def _release(self, text: str) -> Part:
        self._shown += len(text)
        part = Part(text)
        while self._waiting:
            first = self._waiting[0]
            # The last token's text may be cut by the stop string.
            complete = first.begin < self._shown if self.stopped else first.end <= self._shown
            if not complete:
                break
            part.tokens.append(self._waiting.popleft())
        return part
