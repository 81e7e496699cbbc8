"""`pykv bench batched` beside llama.cpp, row by row, interleaved A-B-A-B in one run.

    python benchmarks/batched_vs_llama_cpp.py -npp 1024 -ntg 64 -npl 1,4,16 --repeat 3

Prints medians as a Markdown table; --json writes a list of
{row, value, unit, peer, limit, ratio, target, ok}. There is no target yet: `target` and
`limit` are null and `ok` is true.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.peers.environment import peer_python
from pykv import models

HERE = Path(__file__).resolve().parent


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-m", "--model", default=models.DEFAULT_MODEL)
    parser.add_argument("-npp", default="1024")
    parser.add_argument("-ntg", default="64")
    parser.add_argument("-npl", default="1,4,16")
    parser.add_argument("-ctk", "--cache-type-k", default="f16")
    parser.add_argument("-ctv", "--cache-type-v", default="f16")
    parser.add_argument("-t", "--threads", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def run_json(command: list[str]) -> dict[str, Any]:
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def ours(args: argparse.Namespace, model: Path, pp: int, tg: int, pl: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "pykv", "bench", "batched", "-m", str(model), "-pps"]
    command += ["-npp", str(pp), "-ntg", str(tg), "-npl", str(pl), "--output-format", "jsonl"]
    return run_json(command + common(args))


def theirs(args: argparse.Namespace, model: Path, pp: int, tg: int, pl: int) -> dict[str, Any]:
    script = HERE / "peers" / "llama_cpp_batched.py"
    command = [str(peer_python("llama-cpp")), str(script), "-m", str(model), "--pps"]
    command += ["--npp", str(pp), "--ntg", str(tg), "--npl", str(pl)]
    return run_json(command + common(args))


def common(args: argparse.Namespace) -> list[str]:
    return ["-ctk", args.cache_type_k, "-ctv", args.cache_type_v, "-t", str(args.threads)]


def median(samples: list[dict[str, Any]], key: str) -> float:
    return statistics.median(float(sample[key]) for sample in samples)


def spread(samples: list[dict[str, Any]], key: str) -> float:
    """(max - min) / median."""
    values = [float(sample[key]) for sample in samples]
    return (max(values) - min(values)) / statistics.median(values)


def measure(args: argparse.Namespace) -> list[dict[str, Any]]:
    model = models.resolve(args.model)
    records: list[dict[str, Any]] = []
    print("| PP | TG | B | N_KV | S_PP t/s | llama.cpp | S_TG t/s | llama.cpp | T s | llama.cpp |"
          " spread |\n|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|")  # fmt: skip
    for pp in numbers(args.npp):
        for tg in numbers(args.ntg):
            for pl in numbers(args.npl):
                a, b = [], []
                for _ in range(args.repeat):
                    a.append(ours(args, model, pp, tg, pl))
                    b.append(theirs(args, model, pp, tg, pl))
                records += table_row(pp, tg, pl, a, b)
    return records


def table_row(
    pp: int, tg: int, pl: int, a: list[dict[str, Any]], b: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    mine = {key: median(a, key) for key in ("t_pp", "t_tg")}
    peer = {key: median(b, key) for key in ("t_pp", "t_tg")}
    widest = max(spread(s, k) for s in (a, b) for k in ("t_pp", "t_tg"))
    print(
        f"| {pp} | {tg} | {pl} | {pp + pl * tg} | {pp / mine['t_pp']:.0f} "
        f"| {pp / peer['t_pp']:.0f} | {pl * tg / mine['t_tg']:.0f} | {pl * tg / peer['t_tg']:.0f} "
        f"| {sum(mine.values()):.2f} | {sum(peer.values()):.2f} | {widest:.0%} |",
        flush=True,
    )
    records = []
    for name, tokens, key in (("prefill", pp, "t_pp"), ("decode", pl * tg, "t_tg")):
        value, other = tokens / mine[key], tokens / peer[key]
        records.append(
            {
                "row": f"{name} pp={pp} tg={tg} pl={pl} shared",
                "value": value,
                "unit": "tokens/s",
                "peer": other,
                "limit": None,
                "ratio": value / other,
                "target": None,
                "ok": True,
            }
        )
    return records


def main() -> int:
    args = arguments()
    records = measure(args)
    if args.json:
        args.json.write_text(json.dumps(records, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
