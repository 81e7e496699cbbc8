"""What all endpoints share: the runtime, its asyncio engine, limits and namespaces."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from pykv import _core
from pykv.engine import AsyncEngine, GenerateRequest
from pykv.server.body import Bodies
from pykv.server.errors import ApiError, context_exceeded, from_core, invalid, shown, stopping
from pykv.server.history import History, PromptTokens, Tail
from pykv.server.limits import LIMITS, Limits
from pykv.server.namespaces import Namespaces
from pykv.server.sampling import NEVER, Sampling
from pykv.server.settings import DEFAULTS, Defaults, MixedPrompt, Prompt, Settings

if TYPE_CHECKING:
    from pykv.engine import Generation
    from pykv.runtime import Runtime


T = TypeVar("T")


def _given(value: T | None, default: T) -> T:
    return default if value is None else value


class EngineLike(Protocol):
    """The part of AsyncEngine that the server uses; tests put scripted answers here."""

    async def start(self) -> None: ...
    async def stop(self) -> None: ...
    def generate_choices(self, request: GenerateRequest, /) -> Sequence[Generation]: ...


class Service:
    """One model being served.

    Args:
        runtime: stays open for as long as the service runs.
        engine: None for the runtime's own.
        limits: bounds on requests.
        defaults: for what requests do not say.
        alias: name of the model towards clients; None for the runtime's.
    """

    def __init__(
        self,
        runtime: Runtime,
        *,
        engine: EngineLike | None = None,
        limits: Limits = LIMITS,
        defaults: Defaults = DEFAULTS,
        alias: str | None = None,
    ) -> None:
        self.runtime = runtime
        self.limits = limits
        self.defaults = defaults
        self.engine: EngineLike = engine or AsyncEngine(runtime.engine)
        self.tokenizer = runtime.tokenizer
        self.model_id: str = alias or runtime.model_id
        self.model_context: int = runtime.model.config["trained_context"]
        self.context: int = runtime.pool_facts().longest_request
        self.vocab: int = runtime.model.config["vocab"]
        self.bodies = Bodies(limits)
        self.namespaces = Namespaces(limits.salts)
        self.history = History(self.tokenizer, limits.history_bytes)
        self.created = int(time.time())
        self.stopping = False
        self._tokenizing = asyncio.Semaphore(limits.tokenizer_threads)
        path = Path(str(runtime.model_path))
        self.model_file: str = path.name
        self._names = {self.model_id, runtime.model_id, path.name, path.stem}
        self._token_bytes = self.tokenizer.max_token_bytes

    async def start(self) -> None:
        """Starts the engine. Call in the event loop that serves."""
        await self.engine.start()

    async def stop(self) -> None:
        """Ends every open request (with error 503) and refuses new ones. Idempotent."""
        if not self.stopping:
            self.stopping = True
            await self.engine.stop()

    def check_model(self, name: str | None) -> None:
        """Refuses a request that is meant for another model."""
        if name is not None and name not in self._names:
            raise ApiError(
                404,
                f"Model {shown(name)} is not served here; use {self.model_id!r} or leave it out.",
                code="model_not_found",
                param="model",
            )

    async def tokenize(
        self, text: str, *, add_special: bool = True, parse_special: bool = False
    ) -> list[int]:
        """Token ids. In a thread, so that a long text does not hold up other requests."""
        async with self._tokenizing:
            return await asyncio.to_thread(
                self.tokenizer.encode, text, add_special=add_special, parse_special=parse_special
            )

    async def render(self, messages: list[dict[str, str]]) -> str:
        """The prompt text of a chat."""
        async with self._tokenizing:
            try:
                return await asyncio.to_thread(self.runtime.template.render, messages)
            except (_core.InvalidArgument, _core.UnsupportedModel) as error:
                raise invalid("messages", str(error)) from None

    async def prompt_tokens(self, prompt: Prompt, param: str) -> PromptTokens:
        """Ids of a prompt that leaves room for an answer."""
        if isinstance(prompt, str):
            self._check_length(prompt, param)
            prompt = await self.tokenize(prompt)
        return self._checked(PromptTokens(prompt), param)

    async def chat_tokens(self, text: str, param: str, settings: Settings) -> PromptTokens:
        """Ids of a rendered chat that leaves room for an answer. Answers of this server in
        it keep the ids that they were generated as."""
        self._check_length(text, param)
        name_space = self.namespaces.number(settings.cache_salt)
        async with self._tokenizing:
            prompt = await asyncio.to_thread(
                self.history.assemble, text, name_space, reuse=settings.use_cache
            )
        return self._checked(prompt, param)

    async def mixed_tokens(
        self, prompt: MixedPrompt, param: str, settings: Settings
    ) -> PromptTokens:
        """Ids of llama-server's prompts, in whose texts control tokens may be written. A text
        is read as a rendered chat is; so is none of those between ids."""
        if isinstance(prompt, str):
            return await self.chat_tokens(prompt, param, settings)
        ids: list[int] = []
        for index, piece in enumerate(prompt):
            if isinstance(piece, int):
                ids.append(piece)
            elif piece or index == 0:
                self._check_length(piece, param)
                ids += await self.tokenize(piece, add_special=index == 0, parse_special=True)
            if len(ids) >= self.context:
                break  # refused below
        return self._checked(PromptTokens(ids), param)

    async def remember(self, tail: Tail, text: str, ids: Sequence[int]) -> None:
        """Keeps the ids of a finished answer for the next turn of its chat. Does not queue
        behind prompts: an answer is short against them, and its last event waits for this."""
        await asyncio.to_thread(self.history.remember, tail, text, ids)

    def _check_length(self, text: str, param: str) -> None:
        """Refuses a text that cannot fit, so that it is not tokenized."""
        least = -(-len(text.encode()) // self._token_bytes)
        if least >= self.context:
            raise context_exceeded(least, self.context, param)

    def _checked(self, prompt: PromptTokens, param: str) -> PromptTokens:
        if not prompt.ids:
            raise invalid(param, f"{param} has no tokens; send at least one.")
        if len(prompt.ids) >= self.context:
            raise context_exceeded(len(prompt.ids), self.context, param)
        return prompt

    def submit(self, tokens: list[int], settings: Settings) -> Sequence[Generation]:
        """Queues a request; its choices. ApiError if the engine does not take it."""
        if self.stopping:
            raise stopping()
        room = self.context - len(tokens)
        seed = secrets.randbits(64) if settings.seed is None else settings.seed
        request = GenerateRequest(
            prompt=tokens,
            max_tokens=self._max_tokens(settings, room),
            seed=seed,
            priority=_given(settings.priority, self.defaults.priority),
            timeout=_given(settings.timeout, self.defaults.timeout),
            draft_max=settings.draft_max,
            choices=settings.n,
            stop_tokens=sorted(self.tokenizer.eog_ids),
            logprobs=settings.logprobs,
            name_space=self.namespaces.number(settings.cache_salt),
            use_cache=settings.use_cache,
            **self._sampling(settings.sampling),
        )
        try:
            return self.engine.generate_choices(request)
        except Exception as error:
            refusal = from_core(error)
            if refusal is None:
                raise
            raise refusal from None

    @staticmethod
    def _max_tokens(settings: Settings, room: int) -> int:
        """At least one: the engine computes a prompt to answer it."""
        return room if settings.max_tokens is None else max(1, min(settings.max_tokens, room))

    def _sampling(self, sampling: Sampling) -> dict[str, Any]:
        """Fields of GenerateRequest."""
        values = {field.name: getattr(sampling, field.name) for field in fields(sampling)}
        biases: dict[int, float] = {}
        for name, bias in values.pop("logit_bias"):
            ids = [name]
            if isinstance(name, str):
                ids = self.tokenizer.encode(name, add_special=False)
            for token in ids:
                if token >= self.vocab:
                    message = (
                        f"logit_bias names token {token}; this model has 0 to {self.vocab - 1}, "
                        "as /tokenize gives them."
                    )
                    raise invalid("logit_bias", message)
                biases[token] = bias
        if values.pop("ignore_eos"):
            biases |= dict.fromkeys(self.tokenizer.eog_ids, NEVER)
        return values | {"logit_bias": biases}
