"""From a request body to what the engine is asked to do. Nothing is tokenized here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pykv.server import fields
from pykv.server.errors import invalid, shown, unsupported
from pykv.server.fields import check_fields
from pykv.server.limits import Limits
from pykv.server.reader import Reader, check_text, check_tokens
from pykv.server.sampling import Sampling, parse_sampling

DEFAULT_COMPLETION_TOKENS = 16
"""max_tokens of /v1/completions when absent, as OpenAI defines it."""

Prompt = str | list[int]
MixedPrompt = str | list[int | str]
"""Of llama-server: a text, or ids and texts in any order."""


@dataclass(frozen=True)
class Settings:
    """How to answer; the same for every endpoint. None means the default.

    `max_tokens` 0 computes the prompt and shows no answer.
    """

    model: str | None
    stream: bool
    include_usage: bool
    max_tokens: int | None
    n: int
    sampling: Sampling
    seed: int | None
    priority: int | None
    timeout: float | None
    draft_max: int | None
    stops: tuple[str, ...]
    logprobs: int | None
    use_cache: bool
    cache_salt: str | None
    return_tokens: bool = False


@dataclass(frozen=True)
class Defaults:
    """What the operator decides for requests that do not say."""

    priority: int = 0
    timeout: float | None = None


DEFAULTS = Defaults()


@dataclass(frozen=True)
class ChatRequest:
    messages: list[dict[str, str]]
    settings: Settings


@dataclass(frozen=True)
class CompletionRequest:
    prompts: list[Prompt]
    settings: Settings


def _stops(value: object, limits: Limits) -> tuple[str, ...]:
    if value is None:
        return ()
    texts = value if isinstance(value, list) else [value]
    if len(texts) > limits.stops:
        raise invalid("stop", f"stop has {len(texts)} strings; at most {limits.stops} fit.")
    for index, text in enumerate(texts):
        param = f"stop[{index}]" if isinstance(value, list) else "stop"
        if not check_text(text, param, limits.stop_chars):
            raise invalid(param, f"{param} is empty; every text contains it.")
    return tuple(texts)


def _include_usage(reader: Reader, stream: bool) -> bool:
    options = reader.get("stream_options")
    if options is None:
        return False
    if not isinstance(options, dict):
        message = f"stream_options must be an object, not {shown(options)}."
        raise invalid("stream_options", message, "invalid_type")
    if not stream:
        raise invalid("stream_options", "stream_options needs stream = true.")
    check_fields(options, fields.STREAM_OPTIONS, "stream_options.")
    return Reader(options).boolean("include_usage", False)


def _timeout(reader: Reader, limits: Limits) -> float | None:
    if reader.get("timeout") is None:
        return None
    return reader.number("timeout", limits.least_timeout, limits.timeout, 0.0)


def common_settings(
    reader: Reader, limits: Limits, *, max_tokens: int | None, logprobs: int | None
) -> Settings:
    stream = reader.boolean("stream", False)
    return Settings(
        model=reader.text("model", limits.name_chars),
        stream=stream,
        include_usage=_include_usage(reader, stream),
        max_tokens=max_tokens,
        n=reader.integer("n", 1, limits.choices) or 1,
        sampling=parse_sampling(reader, limits),
        seed=reader.integer("seed", 0, limits.seed),
        priority=reader.integer("priority", -limits.priority, limits.priority),
        timeout=_timeout(reader, limits),
        draft_max=reader.integer("speculative.n_max", 0, limits.draft_max),
        stops=_stops(reader.get("stop"), limits),
        logprobs=logprobs,
        use_cache=reader.boolean("cache_prompt", True),
        cache_salt=reader.text("cache_salt", limits.name_chars),
    )


# --- chat ----------------------------------------------------------------------

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}


def _content(value: object, param: str) -> str:
    """A message's text; parts of type text are joined as llama-server does, by newlines."""
    if isinstance(value, str):
        return check_text(value, param)
    if not isinstance(value, list):
        raise invalid(param, f"{param} must be a string, not {shown(value)}.", "invalid_type")
    texts: list[str] = []
    for index, part in enumerate(value):
        where = f"{param}[{index}]"
        if not isinstance(part, dict):
            raise invalid(where, f"{where} must be an object, not {shown(part)}.", "invalid_type")
        kind = part.get("type")
        if kind != "text":
            message = f"{where}.type is {shown(kind)}; this server takes text only."
            raise unsupported(f"{where}.type", message, 501 if isinstance(kind, str) else 400)
        texts.append(check_text(part.get("text"), f"{where}.text"))
    return "\n".join(texts)


def _message(value: object, where: str, limits: Limits) -> dict[str, str]:
    if not isinstance(value, dict):
        raise invalid(where, f"{where} must be an object, not {shown(value)}.", "invalid_type")
    check_fields(value, fields.MESSAGE, f"{where}.")
    role = value.get("role")
    if role in ("tool", "function"):
        raise unsupported(f"{where}.role", f"{where}.role is {role!r}; tools are not supported.")
    if not isinstance(role, str) or role not in _ROLES:
        message = f"{where}.role is {shown(role)}; use system, developer, user or assistant."
        raise invalid(f"{where}.role", message)
    message_out = {
        "role": _ROLES[role],
        "content": _content(value.get("content"), f"{where}.content"),
    }
    if value.get("name") is not None:
        message_out["name"] = check_text(value["name"], f"{where}.name", limits.name_chars)
    return message_out


def parse_messages(value: object, limits: Limits) -> list[dict[str, str]]:
    """Messages as the chat template takes them."""
    if not isinstance(value, list):
        message = f"messages must be an array, not {shown(value)}."
        raise invalid("messages", message, "invalid_type")
    if not 1 <= len(value) <= limits.messages:
        message = f"messages has {len(value)} entries; it must have 1 … {limits.messages}."
        raise invalid("messages", message)
    return [_message(item, f"messages[{index}]", limits) for index, item in enumerate(value)]


def _chat_logprobs(reader: Reader, limits: Limits) -> int | None:
    wanted = reader.boolean("logprobs", False)
    top = reader.integer("top_logprobs", 0, limits.logprobs)
    if top is not None and not wanted:
        raise invalid("top_logprobs", "top_logprobs needs logprobs = true.")
    return (top or 0) if wanted else None


def parse_chat(body: dict[str, Any], limits: Limits) -> ChatRequest:
    check_fields(body, fields.CHAT)
    reader = Reader(body)
    messages = parse_messages(reader.required("messages"), limits)
    names = ("max_tokens", "max_completion_tokens")
    max_tokens = reader.one_integer(names, 1, limits.max_tokens)
    logprobs = _chat_logprobs(reader, limits)
    return ChatRequest(
        messages, common_settings(reader, limits, max_tokens=max_tokens, logprobs=logprobs)
    )


# --- completions ---------------------------------------------------------------


def prompt_items(value: object) -> list[Any]:
    """The entries of a prompt that is an array; none of them is looked at."""
    if not isinstance(value, list):
        message = f"prompt must be a string or an array, not {shown(value)}."
        raise invalid("prompt", message, "invalid_type")
    if not value:
        raise invalid("prompt", "prompt is empty.")
    return value


def check_prompt_count(prompts: list[Any], limits: Limits) -> None:
    if len(prompts) > limits.prompts:
        message = f"prompt has {len(prompts)} prompts; at most {limits.prompts} fit."
        raise invalid("prompt", message)


def _prompts(value: object, limits: Limits, vocab: int) -> list[Prompt]:
    """One text, one list of ids, or a list of either."""
    if isinstance(value, str):
        return [check_text(value, "prompt")]
    items = prompt_items(value)
    if not isinstance(items[0], (str, list)):
        return [check_tokens(items, "prompt", vocab)]
    check_prompt_count(items, limits)
    prompts: list[Prompt] = []
    for index, item in enumerate(items):
        where = f"prompt[{index}]"
        if isinstance(item, list):
            prompts.append(check_tokens(item, where, vocab))
        else:
            prompts.append(check_text(item, where))
    return prompts


def parse_completion(body: dict[str, Any], limits: Limits, vocab: int) -> CompletionRequest:
    check_fields(body, fields.COMPLETIONS)
    reader = Reader(body)
    prompts = _prompts(reader.required("prompt"), limits, vocab)
    max_tokens = reader.integer("max_tokens", 1, limits.max_tokens)
    settings = common_settings(
        reader,
        limits,
        max_tokens=DEFAULT_COMPLETION_TOKENS if max_tokens is None else max_tokens,
        logprobs=reader.integer("logprobs", 0, limits.logprobs),
    )
    return CompletionRequest(prompts, settings)
