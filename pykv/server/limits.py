"""Every bound on what a client may send, in one table, checked before tokenizing."""

from __future__ import annotations

from dataclasses import dataclass

COUNT_MAX = 2**31 - 1
"""Largest count that the engine can hold; larger ones are errors, not "very many"."""


@dataclass(frozen=True)
class Limits:
    """Bounds of one server; docs/api.md lists them (a test compares)."""

    body_bytes: int = 8 * 2**20
    """Request body; a larger one is refused with 413 and never parsed."""
    discard_bytes: int = 64 * 2**20
    """How much of a refused body is still read, so that the client sees the 413."""
    bodies_bytes: int = 256 * 2**20
    """All bodies being read at one time (503)."""
    header_seconds: float = 30.0
    """Time for the headers of a request; then the connection is closed."""
    stall_seconds: float = 60.0
    """Time in which a client may take nothing of a reply; then the connection is closed."""
    body_seconds: float = 60.0
    """Time from the headers to the end of the body (408)."""
    open_requests: int = 2048
    """Requests being answered at one time (503)."""
    nesting: int = 32
    """Depth of arrays and objects in a body."""
    prompts: int = 64
    """Prompts in one /v1/completions request."""
    messages: int = 4096
    """Messages in one chat request."""
    max_tokens: int = COUNT_MAX
    """Larger than the context is allowed and means "up to the end of the context"."""
    logprobs: int = 20
    """Alternatives reported for each token."""
    stops: int = 16
    """Stop strings in one request."""
    stop_chars: int = 256
    """Characters of one stop string."""
    temperature: float = 2.0
    """0 is greedy."""
    top_k: int = COUNT_MAX
    """0 switches the filter off."""
    top_n_sigma: float = 1000.0
    """0 and -1 switch the filter off."""
    repeat_penalty: float = 1000.0
    """At least its inverse; 1 is off."""
    repeat_last_n: int = COUNT_MAX
    """0 is off, -1 all tokens."""
    penalty: float = 2.0
    """presence_penalty and frequency_penalty, also negative ones."""
    bias: float = 100.0
    """Of one token in logit_bias, also a negative one."""
    biases: int = 1024
    """Entries of logit_bias."""
    choices: int = 128
    """Answers to one prompt (n)."""
    seed: int = 2**64 - 1
    """0 is an ordinary seed; without one the server draws one."""
    priority: int = 100
    """Also a negative one."""
    least_timeout: float = 0.001
    """Seconds."""
    timeout: float = 86400.0
    """Seconds to the end of an answer, if the request bounds them (504)."""
    draft_max: int = 32
    """speculative.n_max."""
    name_chars: int = 256
    """Characters of model, cache_salt, prompt_cache_key, user and the like."""
    salts: int = 65536
    """Values of cache_salt remembered at one time; the least recently used is forgotten."""
    history_bytes: int = 32 * 2**20
    """Token ids of finished answers, kept for the next turn of their chats; the least
    recently used are forgotten."""
    tokenizer_threads: int = 2
    """Texts tokenized at one time; others wait their turn."""


LIMITS = Limits()
