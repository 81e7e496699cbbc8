"""pykv as a worker (see worker.py), so that it is measured as the peers are.

{"do": "run", "prompt", "generate", "sessions", "cache_type_k", "cache_type_v"}
    the steps of `pykv bench batched -pps` -> {"t_pp", "t_tg", "peak_rss_bytes"}
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from serve_requests import serve

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from pykv.bench.batched import BatchedBench, BatchedOptions, peak_rss_bytes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-m", "--model", required=True, type=Path)
    parser.add_argument("-t", "--threads", type=int, default=2)
    parser.add_argument("--precision", default="fast")
    args = parser.parse_args()

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        options = BatchedOptions(
            model=args.model,
            npp=[request["prompt"]],
            ntg=[request["generate"]],
            npl=[request["sessions"]],
            shared_prompt=True,
            cache_type_k=request["cache_type_k"],
            cache_type_v=request["cache_type_v"],
            precision=args.precision,
            threads=args.threads,
        )
        (row,) = BatchedBench(options).run()
        return {"t_pp": row.t_pp, "t_tg": row.t_tg, "peak_rss_bytes": peak_rss_bytes()}

    serve(answer)


if __name__ == "__main__":
    main()
