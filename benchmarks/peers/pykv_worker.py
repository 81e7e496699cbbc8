"""pykv as a worker (see worker.py), so that it is measured as the peers are.

{"do": "run", "prompt", "generate", "sessions", "cache_type_k", "cache_type_v"}
    the steps of `pykv bench batched -pps` -> {"t_pp", "t_tg", "peak_rss_bytes"}

A request unlike the one before it is run once before it counts: cells have memory then, as those
of the peers have from the start.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from serve_requests import serve

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from pykv.bench.batched import BatchedBench, BatchedOptions, peak_rss_bytes


class Worker:
    """The model and its cache, kept while requests are the same."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self._request: dict[str, Any] = {}
        self._bench: BatchedBench | None = None

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        if self._bench is None or request != self._request:
            self._bench = None  # first frees the memory
            self._bench, self._request = BatchedBench(self._options(request)), request
            list(self._bench.run())
        (row,) = self._bench.run()
        return {"t_pp": row.t_pp, "t_tg": row.t_tg, "peak_rss_bytes": peak_rss_bytes()}

    def _options(self, request: dict[str, Any]) -> BatchedOptions:
        return BatchedOptions(
            model=self._args.model,
            npp=[request["prompt"]],
            ntg=[request["generate"]],
            npl=[request["sessions"]],
            shared_prompt=True,
            cache_type_k=request["cache_type_k"],
            cache_type_v=request["cache_type_v"],
            precision=self._args.precision,
            threads=self._args.threads,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-m", "--model", required=True, type=Path)
    parser.add_argument("-t", "--threads", type=int, default=2)
    parser.add_argument("--precision", default="fast")
    serve(Worker(parser.parse_args()).answer)


if __name__ == "__main__":
    main()
