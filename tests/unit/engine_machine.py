"""An engine on a tiny model, for tests."""

from __future__ import annotations

import random
import select
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pykv import _core


class EngineMachine:
    """Model, pool and engine. `tokens` and `ends` hold what `collect` has drained.

    Unless `gap_factor` is given, shares of prompts do not depend on how fast the machine is.
    """

    def __init__(
        self,
        path: Path,
        *,
        cells: int = 4096,
        pool: dict[str, Any] | None = None,
        **limits: Any,
    ) -> None:
        gguf = _core.GgufFile(path)
        self.backend = _core.Backend(threads=1)
        self.model = _core.Model(gguf, self.backend)
        self.vocab: int = self.model.config["vocab"]
        self.context: int = self.model.config["context"]
        self.cache = _core.Cache(
            layers=self.model.layer_table,
            recurrent=self.model.recurrent_table,
            backend=self.backend,
            cells=cells,
            watermarks=(0.0, 0.0),
            **(pool or {}),
        )
        self.engine = _core.Engine(self.model, self.cache, **{"gap_factor": 0.0} | limits)
        self.tokens: dict[int, list[int]] = {}
        self.ends: dict[int, _core.EngineEvent] = {}

    def text(self, length: int, seed: int) -> list[int]:
        """Pseudo-random token ids."""
        rng = random.Random(seed)
        return [rng.randrange(self.vocab) for _ in range(length)]

    def greedy(self, prompt: Sequence[int], max_tokens: int, **more: Any) -> int:
        return self.engine.submit(prompt, max_tokens, temperature=0.0, **more)

    def collect(self) -> None:
        for event in self.engine.drain():
            if event.kind == "token":
                self.tokens.setdefault(event.request, []).append(event.token)
            elif event.kind == "finished":
                self.ends[event.request] = event

    def run(self) -> None:
        """Steps in this thread until there is nothing to do."""
        while self.engine.step_once():
            self.collect()
        self.collect()

    def run_until(self, request: int, generated: int) -> None:
        while len(self.tokens.get(request, ())) < generated and self.engine.step_once():
            self.collect()

    def await_end(self, request: int) -> None:
        """Waits for a started engine."""
        while request not in self.ends:
            select.select([self.engine.notify_fd()], [], [])
            self.collect()


def solo(path: Path, prompt: Sequence[int], max_tokens: int, **more: Any) -> list[int]:
    """Tokens of a request that has an engine for itself."""
    machine = EngineMachine(path)
    request = machine.engine.submit(prompt, max_tokens, **more)
    machine.run()
    return machine.tokens[request]
