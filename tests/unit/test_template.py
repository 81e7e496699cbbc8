"""Chat templates: the golden prompts, what templates in use need, and attacks (C36)."""

import itertools
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest

from pykv import _core
from pykv.tokenizer import ChatTemplate
from pykv.tokenizer.meter import RenderLimits
from pykv.tokenizer.template import CHATML

HELLO = [{"role": "user", "content": "Hello"}]
CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello"},
    {"role": "user", "content": " Bye "},
]


def render(source: str, messages: Any = HELLO, **options: Any) -> str:
    return ChatTemplate(source, **options).render(messages)


def test_prompts_equal_the_golden_ones(smollm2_gguf: Any, golden: Any) -> None:
    template = ChatTemplate.from_gguf(smollm2_gguf)
    chats = [entry for entry in golden if "messages" in entry]
    assert len(chats) == 3
    for entry in chats:
        assert template.render(entry["messages"]) == entry["prompt"], entry["id"]
    assert template.note is None


def test_no_template_in_the_file(fake_metadata: Any) -> None:
    template = ChatTemplate.from_gguf(fake_metadata({}))
    assert template.source == CHATML
    assert template.note is not None and "ChatML" in template.note
    assert template.render(HELLO) == "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    closed = template.render(HELLO, add_generation_prompt=False)
    assert closed == "<|im_start|>user\nHello<|im_end|>\n"


def test_gemma_without_a_template(fake_metadata: Any) -> None:
    values = {
        "general.architecture": "gemma3",
        "tokenizer.ggml.tokens": ["<eos>", "<bos>"],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.add_bos_token": False,
    }
    template = ChatTemplate.from_gguf(fake_metadata(values))
    assert template.note == "the model file has no chat template; Gemma's is used"
    assert template.render(CHAT) == (
        "<bos><start_of_turn>user\nBe brief.\n\nHi<end_of_turn>\n"
        "<start_of_turn>model\nHello<end_of_turn>\n"
        "<start_of_turn>user\nBye<end_of_turn>\n<start_of_turn>model\n"
    )
    adds = {**values, "tokenizer.ggml.add_bos_token": True}
    assert ChatTemplate.from_gguf(fake_metadata(adds)).render(HELLO) == (
        "<start_of_turn>user\nHello<end_of_turn>\n<start_of_turn>model\n"
    )


def test_special_tokens_come_from_the_file(fake_metadata: Any) -> None:
    values = {
        "tokenizer.chat_template": "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}",
        "tokenizer.ggml.tokens": ["<s>", "</s>"],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.pre": "smollm",
    }
    assert ChatTemplate.from_gguf(fake_metadata(values)).render(HELLO) == "<s>Hello</s>"
    adds = {**values, "tokenizer.ggml.add_bos_token": True}
    assert ChatTemplate.from_gguf(fake_metadata(adds)).render(HELLO) == "Hello</s>"
    llama3 = {**values, "tokenizer.ggml.pre": "llama-bpe"}
    assert ChatTemplate.from_gguf(fake_metadata(llama3)).render(HELLO) == "Hello</s>"


# Each shape occurs in the template of a widely used model.
@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{% set ns = namespace(n=0) %}{% for m in messages %}{% if m.role == 'user' %}"
         "{% set ns.n = ns.n + 1 %}{% endif %}{% endfor %}{{ ns.n }}", "2"),
        ("{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}"
         "{% endif %}{{ loop_messages | length }}", "3"),
        ("{%- for m in messages[::-1] -%}{{ m['content'] | trim }}|{%- endfor -%}",
         "Bye|Hello|Hi|Be brief.|"),
        ("{% macro show(m, last=false) %}{{ m.role[0] ~ ('!' if last else '') }}{% endmacro %}"
         "{% for m in messages %}{{ show(m, last=loop.last) }}{% endfor %}", "suau!"),
        ("{{ messages | map(attribute='role') | join(',') }}", "system,user,assistant,user"),
        ("{{ (messages | selectattr('role', 'equalto', 'user') | list)[-1].content }}", " Bye "),
        ("{{ messages[0] | tojson }}", '{"role": "system", "content": "Be brief."}'),
        ("{{ {'a': ['é', 1.5, none, true]} | tojson(indent=1) }}",
         '{\n "a": [\n  "é",\n  1.5,\n  null,\n  true\n ]\n}'),
        ("{% for m in messages %}{% if loop.index0 == 1 %}{% continue %}{% endif %}"
         "{{ m.content }}{% if loop.index == 3 %}{% break %}{% endif %}{% endfor %}",
         "Be brief.Hello"),
        ("{{ messages[1].content.replace('i', 'o').upper().strip('H') }}", "O"),
        ("{{ 'a</think>b'.split('</think>')[-1].lstrip('\\n') }}", "b"),
        ("{% if tools is not none and tools %}x{% endif %}{% if x is defined %}y{% endif %}", ""),
        ("{{ messages[0].get('name', 'nobody') }}{{ message }}", "nobody"),
        ("{% for k, v in messages[1].items() %}{{ k }}={{ v }};{% endfor %}",
         "role=user;content=Hi;"),
        ("{% generation %}{{ messages[2].content }}{% endgeneration %}", "Hello"),
        ("{{ 'ab\ncd' | indent(2, true) }}{{ range(3) | list }}{{ 7 % 4 }}",
         "  ab\n  cd[0, 1, 2]3"),
        ("{% for m in messages if m.role == 'user' %}{{ loop.length }}{{ m.content }}{% endfor %}",
         "2Hi2 Bye "),
        ("  {% if true %}\n  x\n  {% endif %}\n", "  x\n"),
        ("{{ raise_exception('no') if messages | length > 9 else 'ok' }}", "ok"),
        ("{% set x %}{{ messages[1].content }}!{% endset %}{{ x * 2 }}{{ 'i' in x }}",
         "Hi!Hi!True"),
        ("{{ [1, 2] + [3] }}{{ -(messages|length) }}{{ messages|last == messages[3] }}",
         "[1, 2, 3]-4True"),
        ("{{ 2 ** 10 }}{{ 'x' is string }}{{ ('a', 'b') | join }}{{ dict(a=1) }}",
         "1024Trueab{'a': 1}"),
    ],
)  # fmt: skip
def test_what_templates_use(source: str, expected: str) -> None:
    assert render(source, CHAT) == expected


def test_date_is_injected() -> None:
    now = datetime(2026, 9, 1, 12, 30)
    assert render("{{ strftime_now('%d %b %Y') }}", now=lambda: now) == "01 Sep 2026"


def test_template_refuses_messages() -> None:
    source = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(_core.InvalidArgument, match="refuses these messages: roles must alternate"):
        render(source)


@pytest.mark.parametrize("source", ["{{ 1 / 0 }}", "{{ x.y }}", "{{ 'a' + 1 }}", "{{ nothing() }}"])
def test_template_that_fails(source: str) -> None:
    with pytest.raises(_core.InvalidArgument, match="fails on these messages"):
        render(source)


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("{% for %}", "line 1"),
        ("ok\n{{ 1 +", "line 2"),
        ("{{ x | nosuchfilter }}", "nosuchfilter"),
        ("{% include 'a' %}", "include is not available"),
        ("{% import 'a' as b %}", "import is not available"),
        ("{% from 'a' import b %}", "import is not available"),
        ("{% extends 'a' %}", "extends is not available"),
        ("{% block a %}{{ self.a() }}{% endblock %}", "block is not available"),
        ("{% autoescape true %}{% endautoescape %}", "autoescape is not available"),
        ("{{ 'x' | attr('__class__') }}", "attr"),
        ("{{ '%99999999d' | format(1) }}", "format"),
        ("{{ 'x' | center(999999999) }}", "center"),
        ("{{" + "(" * 5000 + "1" + ")" * 5000 + "}}", "nested too deeply"),
        ("{{ " + "x." * 20_000 + "y }}", "more than 150 deep"),
        ("{% for a in x %}" * 160 + "{% endfor %}" * 160, "more than 150 deep"),
        ("{% for a in x %}" * 30 + "{% endfor %}" * 30, "nested too deeply"),
        ("{{ " + "9" * 5000 + " }}", "rejected"),
        ("{{ [" + "1," * 30_000 + "] }}", "longer than 20000 expressions"),
        ("x" * 70_000, "70000 characters"),
    ],
)
def test_rejected_when_compiled(source: str, why: str) -> None:
    with pytest.raises(_core.UnsupportedModel, match=why):
        ChatTemplate(source)


ESCAPES = [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ messages.__class__ }}",
    "{{ messages['__class__'] }}",
    "{{ raise_exception.__globals__ }}",
    "{{ strftime_now.__closure__[0].cell_contents }}",
    "{{ range.__init__ }}",
    "{{ namespace.__init__.__globals__ }}",
    "{{ dict.__base__ }}",
    "{{ messages.append(1) }}",
    "{{ messages[0].update({'role': 'x'}) }}",
    "{{ messages[0].pop('role') }}",
    "{{ '{0.__class__}'.format(1) }}",
    "{{ '{:>999999999}'.format('x') }}",
    "{{ 'x'['format'](1) }}",
    "{{ 'x'.format_map({}) }}",
    "{{ (1).to_bytes(999999999, 'big') }}",
    "{{ 'x'.ljust(999999999) }}",
    "{{ 'x'.zfill(999999999) }}",
    "{{ 'x'.expandtabs(999999999) }}",
    "{{ 'x'.join(['a']) }}",
    "{{ 'x'.encode() }}",
    "{% macro m() %}{% endmacro %}{{ m._func.__globals__ }}",
    "{% macro m() %}{% endmacro %}{{ m._environment }}",
    "{% for m in messages %}{{ loop._iterable }}{% endfor %}",
    "{{ messages | map(attribute='__class__') | list }}",
    "{{ messages | map('attr', '__class__') | list }}",
    "{{ self._TemplateReference__context }}",
    "{{ [].copy() }}",
    "{{ '%999999999d' % 1 }}",
    "{{ cycler.__init__ }}",
]

BOMBS = [
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "{% for a in range(99999) %}{% for b in range(99999) if false %}{% endfor %}{% endfor %}",
    "{% for a in range(10**9) %}{% endfor %}",
    "{% for a in range(9999) %}{% set x = range(99999) | list %}{% endfor %}",
    "{% for a in range(9999) %}{{ range(99999) | map('string') | join }}{% endfor %}",
    "{% for a in range(9999) %}{% set x = range(99999) | select('odd') | first %}"
    "{% set y = range(99999) | map('string') | select('in', 'x') | list %}{% endfor %}",
    "{% macro f(n) %}{{ f(n) }}{% endmacro %}{{ f(1) }}",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "{% for a in [messages] recursive %}{{ loop([a, a]) }}{% endfor %}",
    "{{ 'x' * 10**10 }}",
    "{{ 10**10 * 'x' }}",
    "{{ [0] * 10**10 }}",
    "{{ ([0] * 1000000 + [0]) * 100 }}",
    "{{ 9 ** (9 ** 9) }}",
    "{% set ns = namespace(x=9) %}{% for i in range(99) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
    "{% set ns = namespace(x='ab') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}"
    "{% endfor %}",
    "{% set ns = namespace(x='ab') %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}"
    "{% endfor %}",
    "{% set ns = namespace(x='ab') %}{% for i in range(99) %}"
    "{% set ns.x = ns.x.replace('b', 'bb' * 99) %}{% endfor %}",
    "{% set ns = namespace(x='ab') %}{% for i in range(99) %}"
    "{% set ns.x = ns.x | replace('b', 'bb' * 99) %}{% endfor %}",
    "{% set ns = namespace(x=[0]) %}{% for i in range(99) %}{% set ns.x = [ns.x, ns.x] %}"
    "{% endfor %}{{ ns.x }}",
    "{% set ns = namespace(x=[0]) %}{% for i in range(99) %}{% set ns.x = {'a': ns.x, 'b': ns.x} %}"
    "{% endfor %}{{ ns.x | tojson }}",
    "{% set ns = namespace(x=[0]) %}{% for i in range(99) %}"
    "{% set ns.x = range(9) | map('default', ns.x, true) | list %}{% endfor %}",
    "{% set ns = namespace(x=(0,)) %}{% for i in range(9999) %}{% set ns.x = (ns.x,) %}{% endfor %}"
    "{{ {ns.x: 1} }}",
    "{% macro m() %}{{ m(varargs, varargs) }}{{ {varargs: 1} }}{% endmacro %}{{ m(1) }}",
    "{% macro m() %}{{ m(a=kwargs, b=kwargs) }}{% endmacro %}{{ m(a=1) }}",
    "{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}",
    "{% set ns = namespace() %}{% set ns.x = [ns] %}{{ ns.x }}",
    "{{ namespace(x=namespace()) }}",
    "{% set x = 'x' * 4000000 %}{% for i in range(9999) %}{{ x }}{% endfor %}",
    "{% set x = 'x' * 4000000 %}{{ [x] * 100000 }}",
    "{% set x = ['x' * 4000000] * 4 %}{% for i in range(99) %}{% set y = x | join %}{% endfor %}",
    "{{ '\n' * 100000 | indent(999999) }}",
    "{{ ('\n' * 4000000) | indent(200) }}",
    "{{ messages | tojson(indent=10**9) }}",
    "{{ messages | tojson(separators=('x' * 9999, ':')) }}",
    "{{ 1.5 | round(10**9) }}",
    "{{ '9' * 99999 | int }}{{ ('9' * 99999) | int }}",
    "{{ ('a,' * 4000000).split(',') }}",
    "{{ (' a' * 4000000).split() }}",
    "{{ (' a' * 4000000) | title }}",
    "{{ ('a' * 8000000) | list }}",
    "{{ range(9) | map('string') | map(attribute='0' ~ '.0' * 4000000) | list }}",
    "{{ range }}{{ messages[0].items() }}{{ namespace }}",
    "{{ messages | map('upper') }}",
    "{{ raise_exception('x' * 10**9) }}",
    "".join("{% set a" + str(i) + " = 'x' * 4000000 %}" for i in range(999)),
    "{% set x = 'x' * 4000000 %}{{ " + "~".join(["x"] * 999) + " }}",
    "{% set x = 'x' * 4000000 %}{{ " + "+".join(["x"] * 50) + " }}",
    "{% set x = 'x' * 4000000 %}{% set y = [" + ",".join(["x[1:]"] * 999) + "] %}",
    "{% for a in range(99999) %}{% for b in range(99) %}" + "y" * 9999 + "{% endfor %}{% endfor %}",
]


@pytest.mark.parametrize("source", ESCAPES)
def test_escapes_are_stopped(source: str) -> None:
    messages = [{"role": "user", "content": "Hello"}]
    with pytest.raises((_core.UnsupportedModel, _core.InvalidArgument)) as caught:
        render(source, messages)
    assert "stopped" in str(caught.value) or "fails" in str(caught.value)
    assert messages == HELLO


@pytest.mark.parametrize("source", BOMBS)
def test_bombs_are_cut(source: str) -> None:
    """Each would take minutes, or more memory than there is, if it ran."""
    with pytest.raises((_core.UnsupportedModel, _core.InvalidArgument)) as caught:
        render(source)
    assert "stopped" in str(caught.value) or "fails" in str(caught.value)


def ticking(step: float) -> Iterator[float]:
    return itertools.count(100.0, step)


def test_each_limit_is_named() -> None:
    endless = "{% for a in range(99999) %}{% for b in range(99999) %}a{% endfor %}{% endfor %}"
    with pytest.raises(_core.UnsupportedModel, match="more than 1000 steps"):
        render(endless, limits=RenderLimits(max_steps=1000))
    with pytest.raises(_core.UnsupportedModel, match="more than 500 characters"):
        render(endless, limits=RenderLimits(max_chars=500))
    clock = ticking(0.25)
    with pytest.raises(_core.UnsupportedModel, match=r"more than 2\.0 s"):
        render(endless, clock=lambda: next(clock))
    assert next(clock) < 103  # it looked at the clock in every step and stopped at once


def test_limits_are_of_one_run() -> None:
    template = ChatTemplate(CHATML, limits=RenderLimits(max_steps=100))
    texts = {template.render(HELLO) for _ in range(100)}
    assert len(texts) == 1


def test_a_long_conversation_is_far_from_the_limits() -> None:
    limits = RenderLimits(max_steps=200_000)
    messages = [
        {"role": role, "content": "word " * 200} for _ in range(1000) for role in ("user", "model")
    ]
    source = (
        "{% macro turn(m) %}<{{ m.role }}>{{ m.content | trim }}\n{% endmacro %}"
        "{% for m in messages[1:] %}{% if loop.previtem and m.role == loop.previtem.role %}"
        "{{ raise_exception('roles must alternate') }}{% endif %}{{ turn(m) }}{% endfor %}"
    )
    assert len(render(source, messages, limits=limits)) > 1_900_000


def test_text_parts_are_joined_and_names_kept() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    message = {"role": "user", "content": parts, "name": "Ann", "tool_calls": None}
    assert render("{{ messages[0].name ~ messages[0].content }}", [message]) == "Annab"


@pytest.mark.parametrize(
    ("messages", "place"),
    [
        ([], "messages must be a list"),
        ("Hello", "messages must be a list"),
        ({"role": "user"}, "messages must be a list"),
        ([*HELLO, "Hello"], r"messages\[1\] is a str"),
        ([{"content": "x"}], r"messages\[0\].role is missing"),
        ([{"role": "", "content": "x"}], r"messages\[0\].role is empty"),
        ([{"role": 1, "content": "x"}], r"messages\[0\].role is a int"),
        ([*HELLO, {"role": "user"}], r"messages\[1\].content is missing"),
        ([{"role": "user", "content": 5}], r"messages\[0\].content is a int"),
        ([{"role": "user", "content": b"x"}], r"messages\[0\].content is a bytes"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], r"content\[0\] has type 'image"),
        ([{"role": "user", "content": ["x"]}], r"content\[0\] is a str"),
        ([{"role": "user", "content": [{"type": "text"}]}], r"content\[0\].text is missing"),
        ([{"role": "user", "content": "x", "name": 1}], r"messages\[0\].name is a int"),
        ([{"role": "a", "content": "x", "tool_calls": [1]}], r"messages\[0\] has a field 'tool_"),
    ],
)
def test_malformed_messages_are_named(messages: Any, place: str) -> None:
    with pytest.raises(_core.InvalidArgument, match=place):
        render(CHATML, messages)
