"""Chat messages to a prompt, by the template of the model file."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from jinja2 import TemplateError, TemplateSyntaxError
from jinja2.exceptions import SecurityError

from pykv._core import InvalidArgument, UnsupportedModel
from pykv.tokenizer.messages import checked_messages
from pykv.tokenizer.metadata import PREFIX, Metadata, flag, text_of
from pykv.tokenizer.meter import Exhausted, RenderLimits, current, metered
from pykv.tokenizer.pretokenizers import pre_tokenizer
from pykv.tokenizer.sandbox import ChatEnvironment

if TYPE_CHECKING:
    from pykv.tokenizer.tokenizer import Tokenizer

MAX_SOURCE_CHARS = 64 << 10  # the longest in use have about 30,000

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

# Of Gemma 2 and 3: there is no system role, what it says goes before the next message.
GEMMA = (
    "{{ bos_token }}{% set before = namespace(text='') %}"
    "{% for message in messages %}"
    "{% if message['role'] == 'system' %}"
    "{% set before.text = before.text + message['content'] + '\n\n' %}"
    "{% else %}"
    "{{ '<start_of_turn>' + ('model' if message['role'] == 'assistant' else message['role']) "
    "+ '\n' + before.text + message['content'] | trim + '<end_of_turn>\n' }}"
    "{% set before.text = '' %}"
    "{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)


def default_template(gguf: Metadata) -> tuple[str, str]:
    """Name and source of what stands in for a template that a file lacks."""
    gemma = text_of(gguf, "general.architecture", "").startswith("gemma")
    return ("Gemma's", GEMMA) if gemma else ("ChatML", CHATML)


class _Refusal(Exception):
    """The template called `raise_exception`."""


def _raise_exception(message: Any = "") -> None:
    raise _Refusal(current().text(message)[:500])


class ChatTemplate:
    """A compiled template. Immutable; `render` may be called from many threads."""

    def __init__(
        self,
        source: str,
        *,
        bos_token: str = "",
        eos_token: str = "",
        limits: RenderLimits | None = None,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        """`clock` (seconds) times the run, `now` is what `strftime_now` formats. Raises
        `UnsupportedModel` if the template is too long, not valid, or uses what is not
        available to chat templates."""
        if len(source) > MAX_SOURCE_CHARS:
            raise UnsupportedModel(
                f"[ChatTemplate] the chat template has {len(source)} characters; "
                f"the limit is {MAX_SOURCE_CHARS}"
            )

        def strftime_now(form: str) -> str:
            return now().strftime(str(form)[:256])

        environment = ChatEnvironment(raise_exception=_raise_exception, strftime_now=strftime_now)
        try:
            self._template = environment.compile_template(source)
        except TemplateSyntaxError as error:
            raise _rejected(f"line {error.lineno}: {error.message}") from error
        except (RecursionError, MemoryError, SyntaxError, ValueError, OverflowError) as error:
            raise _rejected(f"it is nested too deeply ({type(error).__name__})") from error
        self.source = source
        self.note: str | None = None
        self.strip_bos = False
        self._bos_token = bos_token
        self._eos_token = eos_token
        self._limits = limits or RenderLimits()
        self._clock = clock

    @classmethod
    def from_gguf(
        cls, gguf: Metadata, tokenizer: Tokenizer | None = None, **options: Any
    ) -> ChatTemplate:
        """The template of the file; Gemma's or ChatML, with a `note`, if it has none. `tokenizer`:
        that of the same file, if there is one already (to read a vocabulary takes time).
        `options` as for the constructor."""
        source = text_of(gguf, "tokenizer.chat_template", "")
        bos, eos = (_special_text(gguf, tokenizer, name) for name in ("bos", "eos"))
        name, other = default_template(gguf)
        template = cls(source or other, bos_token=bos, eos_token=eos, **options)
        template.strip_bos = _adds_bos(gguf) if tokenizer is None else tokenizer.add_bos
        if not source:
            template.note = f"the model file has no chat template; {name} is used"
        return template

    def render(
        self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True
    ) -> str:
        """The prompt text; encode it with `parse_special=True`. Each message has `role`
        and `content` (a string, or a list of text parts). A begin token that `encode`
        adds by itself is not in the text. Raises `InvalidArgument` for messages that are
        malformed or that the template refuses, `UnsupportedModel` if the template goes
        over its limits or reaches for what it must not."""
        variables = {
            "messages": checked_messages(messages),
            "add_generation_prompt": add_generation_prompt,
            "bos_token": self._bos_token,
            "eos_token": self._eos_token,
            "tools": None,
            "documents": None,
        }
        try:
            with metered(self._limits, self._clock):
                text = self._template.render(variables)
        except _Refusal as error:
            raise InvalidArgument(
                f"[ChatTemplate.render] the chat template refuses these messages: {error}"
            ) from error
        except Exhausted as error:
            raise UnsupportedModel(
                f"[ChatTemplate.render] the chat template was stopped: {error}; shorten the "
                "messages or use another model file"
            ) from error
        except SecurityError as error:
            raise UnsupportedModel(
                f"[ChatTemplate.render] the chat template was stopped: {error}"
            ) from error
        except (TemplateError, ArithmeticError, LookupError, TypeError, ValueError) as error:
            raise _failed(error) from error
        except (AttributeError, RecursionError, MemoryError) as error:
            raise _failed(error) from error
        if self.strip_bos and self._bos_token:
            return text.removeprefix(self._bos_token)
        return text


def _rejected(reason: str) -> UnsupportedModel:
    return UnsupportedModel(f"[ChatTemplate] the chat template of this model is rejected: {reason}")


def _failed(error: BaseException) -> InvalidArgument:
    return InvalidArgument(
        f"[ChatTemplate.render] the chat template fails on these messages: "
        f"{type(error).__name__}: {str(error)[:500]}"
    )


def _special_text(gguf: Metadata, tokenizer: Tokenizer | None, name: str) -> str:
    index = gguf.scalar(f"{PREFIX}{name}_token_id")
    if not isinstance(index, int):
        return ""
    count = gguf.array_size(PREFIX + "tokens") or 0
    if not 0 <= index < count:
        return ""
    if tokenizer is not None:
        return tokenizer.token_text(index)
    return gguf.string_array(PREFIX + "tokens")[index]


def _adds_bos(gguf: Metadata) -> bool:
    stated = flag(gguf, "add_bos_token")
    if stated is not None:
        return stated
    if gguf.scalar(PREFIX + "model") == "llama":
        return True
    return pre_tokenizer(text_of(gguf, PREFIX + "pre", "default")).add_bos
