"""Requests and replies of llama-server's POST /completion."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from pykv.server import fields
from pykv.server.answer import Answer
from pykv.server.errors import invalid, shown
from pykv.server.fields import check_fields
from pykv.server.frame import Frame
from pykv.server.limits import Limits
from pykv.server.logprobs import llama_probabilities
from pykv.server.reader import Reader, check_integer, check_text
from pykv.server.sampling import NEVER
from pykv.server.service import Service
from pykv.server.settings import (
    MixedPrompt,
    Settings,
    check_prompt_count,
    common_settings,
    prompt_items,
)
from pykv.server.sse import event
from pykv.text import Part

if TYPE_CHECKING:
    from pykv._core import EngineEvent

NO_SLOT = -1
"""`id_slot` of every reply. In a request it means "any"."""


@dataclass(frozen=True)
class LlamaRequest:
    prompts: list[MixedPrompt]
    settings: Settings
    response_fields: tuple[str, ...]


def _mixed(value: list[Any], where: str, vocab: int) -> MixedPrompt:
    """Ids and texts of one prompt."""
    pieces: list[int | str] = []
    for index, item in enumerate(value):
        param = f"{where}[{index}]"
        if isinstance(item, str):
            pieces.append(check_text(item, param))
        else:
            pieces.append(check_integer(item, param, 0, vocab - 1))
    return pieces


def _prompt(value: object, where: str, vocab: int) -> MixedPrompt:
    if isinstance(value, list):
        return _mixed(value, where, vocab)
    if isinstance(value, dict):
        check_fields(value, fields.PROMPT, f"{where}.")
        return check_text(value.get("prompt_string"), f"{where}.prompt_string")
    return check_text(value, where)


def _prompts(value: object, limits: Limits, vocab: int) -> list[MixedPrompt]:
    """One prompt, or several in an array. An array with an id in it is one."""
    if isinstance(value, (str, dict)):
        return [_prompt(value, "prompt", vocab)]
    items = prompt_items(value)
    if not all(isinstance(item, (str, list, dict)) for item in items):
        return [_mixed(items, "prompt", vocab)]
    check_prompt_count(items, limits)
    return [_prompt(item, f"prompt[{index}]", vocab) for index, item in enumerate(items)]


def _response_fields(value: object, limits: Limits) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or len(value) > len(fields.LLAMA):
        message = f"response_fields must be an array of names, not {shown(value)}."
        raise invalid("response_fields", message, "invalid_type")
    return tuple(
        check_text(name, f"response_fields[{index}]", limits.name_chars)
        for index, name in enumerate(value)
    )


def parse_llama(body: dict[str, Any], limits: Limits, vocab: int) -> LlamaRequest:
    check_fields(body, fields.LLAMA)
    reader = Reader(body)
    prompts = _prompts(reader.required("prompt"), limits, vocab)
    tokens = reader.one_integer(("n_predict", "max_tokens"), -1, limits.max_tokens)
    choices = reader.one_integer(("n_cmpl", "n"), 1, limits.choices)
    seed = reader.integer("seed", -1, limits.seed)
    settings = common_settings(
        Reader({name: value for name, value in body.items() if name != "seed"}),
        limits,
        max_tokens=None if tokens == -1 else tokens,
        logprobs=reader.integer("n_probs", 0, limits.logprobs) or None,
    )
    settings = replace(
        settings,
        n=choices or 1,
        seed=None if seed == -1 else seed,
        return_tokens=settings.stream or reader.boolean("return_tokens", False),
    )
    return LlamaRequest(prompts, settings, _response_fields(reader.get("response_fields"), limits))


def generation_settings(settings: Settings, context: int) -> dict[str, Any]:
    """How an answer is made, by the names of the request's fields."""
    sampling = asdict(settings.sampling)
    sampling["logit_bias"] = [
        [token, False if bias == NEVER else bias] for token, bias in settings.sampling.logit_bias
    ]
    limit = -1 if settings.max_tokens is None else settings.max_tokens
    return {
        "n_ctx": context,
        "n_predict": limit,
        "max_tokens": limit,
        "seed": -1 if settings.seed is None else settings.seed,
        **sampling,
        "stop": list(settings.stops),
        "stream": settings.stream,
        "n_probs": settings.logprobs or 0,
        "cache_prompt": settings.use_cache,
        "samplers": fields.SAMPLERS,
    }


def default_settings(limits: Limits, context: int) -> dict[str, Any]:
    """generation_settings of a request that sets nothing."""
    return generation_settings(parse_llama({"prompt": ""}, limits, 0).settings, context)


def _timings(ended: EngineEvent, generated: int) -> dict[str, Any]:
    """Of the tokens that were computed; those that another request computed take no time."""

    def speed(name: str, count: int, seconds: float) -> dict[str, Any]:
        return {
            f"{name}_n": count,
            f"{name}_ms": 1000 * seconds,
            f"{name}_per_token_ms": 1000 * seconds / count if count else 0.0,
            f"{name}_per_second": count / seconds if seconds else 0.0,
        }

    computed = ended.prompt_tokens - ended.cached_tokens
    return {
        "cache_n": ended.cached_tokens,
        **speed("prompt", computed, ended.prompt_seconds),
        **speed("predicted", generated, ended.generate_seconds),
    }


def _stop_type(answer: Answer) -> str:
    if answer.stop_string:
        return "word"
    return "eos" if answer.finish_reason == "stop" else "limit"


class LlamaFrame(Frame):
    """One object for each answer, also as the last event of its stream."""

    def __init__(self, service: Service, request: LlamaRequest) -> None:
        self._tokenizer = service.tokenizer
        self._model = service.model_id
        self._context = service.context
        self._fields = request.response_fields
        self._settings = request.settings
        self._described = generation_settings(request.settings, service.context)

    def whole(self, answers: Sequence[Answer], parts: Sequence[Part]) -> Any:
        bodies = [
            self._selected(self._last(index, answer, part))
            for index, (answer, part) in enumerate(zip(answers, parts, strict=True))
        ]
        return bodies[0] if len(bodies) == 1 else bodies

    def event(self, index: int, answer: Answer, part: Part | None) -> bytes:
        if part is None:
            return event(self._selected(self._last(index, answer, Part())))
        return event(self._common(index, answer, part) | {"stop": False})

    def _common(self, index: int, answer: Answer, part: Part) -> dict[str, Any]:
        wanted = self._settings.return_tokens
        body = {
            "index": index,
            "content": part.text,
            "tokens": [info.token for info in part.tokens] if wanted else [],
            "id_slot": NO_SLOT,
            "tokens_predicted": answer.usage.completion_tokens,
            "tokens_evaluated": len(answer.prompt),
        }
        if self._settings.logprobs is not None and part.tokens:
            probabilities = llama_probabilities(part.tokens, self._tokenizer.token_bytes)
            body["completion_probabilities"] = probabilities
        return body

    def _last(self, index: int, answer: Answer, part: Part) -> dict[str, Any]:
        ended = answer.ended
        assert ended is not None
        generated = answer.usage.completion_tokens
        full = len(answer.prompt) + generated >= self._context
        return self._common(index, answer, part) | {
            "stop": True,
            "model": self._model,
            "generation_settings": self._described,
            "prompt": self._tokenizer.decode(answer.prompt),
            "has_new_line": answer.has_new_line,
            "truncated": full and answer.finish_reason == "length",
            "stop_type": _stop_type(answer),
            "stopping_word": answer.stop_string,
            "tokens_cached": ended.cached_tokens,
            "timings": _timings(ended, generated),
        }

    def _selected(self, body: dict[str, Any]) -> dict[str, Any]:
        """What response_fields names; `a/b` is b of a."""
        if not self._fields:
            return body
        selected = {}
        for path in self._fields:
            value: Any = body
            *parents, name = path.split("/")
            for parent in parents:
                value = value.get(parent) if isinstance(value, dict) else None
            if isinstance(value, dict) and name in value:
                selected[name] = value[name]
        return selected
