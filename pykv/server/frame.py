"""The JSON around an answer: what every form has, and OpenAI's two."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from typing import Any

from pykv import _core
from pykv.server.answer import Answer, Usage
from pykv.server.logprobs import chat_logprobs, completion_logprobs
from pykv.server.service import Service
from pykv.server.settings import Settings
from pykv.server.sse import DONE, event
from pykv.text import Part

FINGERPRINT = f"pykv-{_core.build_info()['version']}"


def usage_of(answers: Sequence[Answer]) -> dict[str, Any]:
    return sum((answer.usage for answer in answers), Usage()).body()


class Frame:
    """The bodies of one reply."""

    def whole(self, answers: Sequence[Answer], parts: Sequence[Part]) -> Any:
        """JSON of a reply that is no stream."""
        raise NotImplementedError

    def opening(self, count: int) -> list[bytes]:
        """Events before the first part of so many answers."""
        return []

    def event(self, index: int, answer: Answer, part: Part | None) -> bytes:
        """One part of an answer; no part: the answer's end."""
        raise NotImplementedError

    def closing(self, answers: Sequence[Answer]) -> list[bytes]:
        """Events after the end of all answers."""
        return []


class OpenAiFrame(Frame):
    """Objects that share id, time and model."""

    prefix = ""
    kind = ""
    chunk_kind = ""

    def __init__(self, service: Service, settings: Settings) -> None:
        self.token_bytes = service.tokenizer.token_bytes
        self.with_logprobs = settings.logprobs is not None
        self._include_usage = settings.include_usage
        self._common = {
            "id": f"{self.prefix}-{secrets.token_hex(12)}",
            "created": int(time.time()),
            "model": service.model_id,
            "system_fingerprint": FINGERPRINT,
        }

    def choice(self, index: int, part: Part, reason: str) -> dict[str, Any]:
        """One entry of `choices` in a whole reply."""
        raise NotImplementedError

    def delta(self, index: int, part: Part | None, reason: str | None) -> dict[str, Any]:
        """One entry of `choices` in a chunk; no part: the answer's end."""
        raise NotImplementedError

    def whole(self, answers: Sequence[Answer], parts: Sequence[Part]) -> dict[str, Any]:
        choices = [
            self.choice(index, part, answer.finish_reason)
            for index, (answer, part) in enumerate(zip(answers, parts, strict=True))
        ]
        body = {"object": self.kind, "choices": choices, "usage": usage_of(answers)}
        return self._common | body

    def event(self, index: int, answer: Answer, part: Part | None) -> bytes:
        reason = answer.finish_reason if part is None else None
        return self.chunk(self.delta(index, part, reason))

    def closing(self, answers: Sequence[Answer]) -> list[bytes]:
        usage = [self._event([], usage_of(answers))] if self._include_usage else []
        return [*usage, DONE]

    def chunk(self, choice: dict[str, Any]) -> bytes:
        return self._event([choice], None)

    def _event(self, choices: list[dict[str, Any]], usage: dict[str, Any] | None) -> bytes:
        body = self._common | {"object": self.chunk_kind, "choices": choices}
        return event(body | {"usage": usage} if self._include_usage else body)


class ChatFrame(OpenAiFrame):
    prefix = "chatcmpl"
    kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"

    def _choice(
        self, index: int, name: str, text: dict[str, Any], part: Part | None, reason: str | None
    ) -> dict[str, Any]:
        logprobs = None
        if part is not None and self.with_logprobs:
            logprobs = chat_logprobs(part.tokens, self.token_bytes)
        return {"index": index, name: text, "logprobs": logprobs, "finish_reason": reason}

    def choice(self, index: int, part: Part, reason: str) -> dict[str, Any]:
        message = {"role": "assistant", "content": part.text, "refusal": None}
        return self._choice(index, "message", message, part, reason)

    def delta(self, index: int, part: Part | None, reason: str | None) -> dict[str, Any]:
        text = {} if part is None else {"content": part.text}
        return self._choice(index, "delta", text, part, reason)

    def opening(self, count: int) -> list[bytes]:
        role = {"role": "assistant", "content": ""}
        return [self.chunk(self._choice(i, "delta", role, None, None)) for i in range(count)]


class CompletionFrame(OpenAiFrame):
    prefix = "cmpl"
    kind = "text_completion"
    chunk_kind = "text_completion"

    def delta(self, index: int, part: Part | None, reason: str | None) -> dict[str, Any]:
        logprobs = None
        if part is not None and self.with_logprobs:
            logprobs = completion_logprobs(part.tokens, self.token_bytes)
        text = "" if part is None else part.text
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}

    def choice(self, index: int, part: Part, reason: str) -> dict[str, Any]:
        return self.delta(index, part, reason)
