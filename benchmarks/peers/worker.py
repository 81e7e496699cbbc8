"""A program under measurement in a process of its own: one JSON object a line each way.

Every worker script (*_worker.py) reads requests from stdin and
answers each on stdout, in order: {"error": text} if it failed, else what the request asks
for. The model is loaded once, at the first request.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]


class WorkerError(RuntimeError):
    """A worker refused a request or ended; the message is its own."""


class Worker:
    """One worker process. A context manager that ends it.

    Args:
        python: interpreter of the environment that has the peer.
        script: name of the worker's file in this folder.
        arguments: of the script.
    """

    def __init__(self, python: Path | str, script: str, arguments: Sequence[str]) -> None:
        self.name = Path(script).stem
        self._process = subprocess.Popen(
            [str(python), str(HERE / script), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            text=True,
        )

    def ask(self, **request: Any) -> dict[str, Any]:
        """Sends one request and waits for its answer."""
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._ended() from None
        line = self._process.stdout.readline()
        if not line:
            raise self._ended()
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise WorkerError(f"{self.name}: {answer['error']}")
        return answer

    def close(self) -> None:
        """Ends the process by the end of its input."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # it ended by itself
            self._process.stdin.close()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _ended(self) -> WorkerError:
        return WorkerError(f"{self.name} ended with exit code {self._process.wait()}")
