from __future__ import annotations
from dataclasses import dataclass, field
from typing import Any
@dataclass
class GenerateRequest:
    prompt: list[int]
    max_tokens: int
    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    seed: int = 0
    stop_tokens: list[int] = field(default_factory=list)
    logprobs: int | None = None
    name_space: int = 0
    tenant: str = "default"
    priority: int = 0
    use_cache: bool = True
class Generation:
    request_id: int
    def cancel(self) -> None: ...
    def __aiter__(self) -> Any: ...
class AsyncEngine:
    def __init__(self, core: Any) -> None: ...
    async def start(self) -> None: ...
    async def stop(self) -> None: ...
    def generate(self, request: GenerateRequest) -> Generation: ...
