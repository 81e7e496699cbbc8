"""pykv beside llama.cpp and OpenVINO GenAI, row by row, interleaved in one run.

    python -m benchmarks.vs_peers [-m MODEL] [--quick] [--llama-cpp PYTHON]
        [--openvino PYTHON] [--without NAME] [--types f16,q8_0,q4_0] [--repeat 3]
        [--cases PROMPT/GENERATE/SESSIONS,...] [--json FILE] [--plot FILE.svg]

Every program runs in a process of its own with the same number of threads, each peer in a
Python environment of its own: the one given, or one under build/peers/ that is made on first
use. After one warm-up, for each case and KV type all programs take turns, --repeat times;
the medians count. OpenVINO has its own default KV type (u8). --quick takes one turn of four
cases at f16, in less than three minutes on an idle machine.

A ratio is our speed over that of the best peer at any KV type measured; rows of the kind
"own q8_0 / f16" compare with ourselves. Exits 3 if a target is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.peers.environment import peer_python
from benchmarks.peers.rows import CASES, OURS, QUICK_CASES, Case, records, speeds
from benchmarks.peers.worker import Worker, WorkerError
from pykv import _core, models
from pykv.bench import chart

PEERS = {"llama-cpp": "llama_cpp_worker.py", "openvino": "openvino_worker.py"}
OPENVINO_TYPE = "u8"
WARM_UP = Case(16, 32, 1)


class Programs:
    """The processes that take turns; a context manager."""

    def __init__(self, options: argparse.Namespace, model: Path) -> None:
        self._stack = ExitStack()
        flags = ["-m", str(model), "-t", str(options.threads)]
        own = Worker(sys.executable, "pykv_worker.py", [*flags, "--precision", options.precision])
        self._workers = {OURS: self._stack.enter_context(own)}
        for name, script in PEERS.items():
            if name not in options.without:
                given = getattr(options, name.replace("-", "_"))
                worker = Worker(given or peer_python(name), script, flags)
                self._workers[name] = self._stack.enter_context(worker)

    def __enter__(self) -> Programs:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def turn(self, case: Case, kinds: Sequence[str]) -> list[tuple[tuple[str, str], Any]]:
        """One run of every program at every KV type. A peer that cannot run the model is
        left out from then on."""
        runs = []
        for place, kind in enumerate(kinds):
            for name in list(self._workers):
                if name == "openvino" and place > 0:
                    continue  # it has one KV type
                shown = OPENVINO_TYPE if name == "openvino" else kind
                run = self._run(name, case, kind)
                if run is not None:
                    runs.append(((name, shown), run))
        return runs

    def _run(self, name: str, case: Case, kind: str) -> dict[str, Any] | None:
        try:
            return self._workers[name].ask(
                do="run",
                prompt=case.prompt,
                generate=case.generate,
                sessions=case.sessions,
                cache_type_k=kind,
                cache_type_v=kind,
            )
        except WorkerError as error:
            if name == OURS:
                raise SystemExit(str(error)) from None
            print(f"left out: {error}", file=sys.stderr)
            self._workers.pop(name)
            return None


def line(row: dict[str, Any]) -> str:
    """Of the table."""
    ratio = "" if row["ratio"] is None else f"{row['ratio']:.2f}"
    target = "" if row["target"] is None else f"{row['target']:g}"
    verdict = "" if row["target"] is None else ("ok" if row["ok"] else "missed")
    peers = ", ".join(f"{name} {speed:,.0f}" for name, speed in row["peers"].items())
    cells = (row["row"], f"{row['value']:,.0f}", peers, ratio, target, verdict)
    return "| " + " | ".join(cells) + f" | {row['spread']:.0%} |"


def measure(options: argparse.Namespace, model: Path) -> list[dict[str, Any]]:
    architecture = str(_core.GgufFile(model).scalar("general.architecture"))
    print("| row | pykv t/s | peers t/s | ours / best | target | | spread |\n" + "|---" * 7 + "|")
    rows: list[dict[str, Any]] = []
    with Programs(options, model) as programs:
        programs.turn(WARM_UP, options.types[:1])
        for case in options.cases:
            turns = [programs.turn(case, options.types) for _ in range(options.repeat)]
            runs = [run for turn in turns for run in turn]
            for name, measured in zip(case.rows(), speeds(case, runs), strict=True):
                made = records(name, measured, architecture)
                print("\n".join(map(line, made)), flush=True)
                rows += made
    return rows


def picture(rows: Sequence[dict[str, Any]]) -> str:
    bars = [
        chart.Bar(
            row["row"], row["ratio"], f"{row['ratio']:.2f} x {row['best_peer']}", row["target"]
        )
        for row in rows
        if row["ratio"] is not None
    ]
    return chart.svg("Speed over that of the best peer; red: target", bars)


def given_cases(text: str) -> list[Case]:
    """Cases as PROMPT/GENERATE/SESSIONS between commas."""
    try:
        numbers = [[int(part) for part in case.split("/")] for case in text.split(",")]
        if any(min(case) < 1 for case in numbers):
            raise ValueError
        return [Case(p, g, s, prefill=p > 64) for p, g, s in numbers]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not PROMPT/GENERATE/SESSIONS,...") from None


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("-m", "--model", default=models.DEFAULT_MODEL)
    add("--llama-cpp", metavar="PYTHON", help="environment with llama-cpp-python")
    add("--openvino", metavar="PYTHON", help="environment with openvino-genai")
    add("--without", action="append", default=[], choices=list(PEERS), help="leave a peer out")
    add("--types", type=lambda text: text.split(","), default=None, help="KV types")
    add("--precision", default="fast", choices=_core.precisions(), help="of ours")
    add("-t", "--threads", type=int, default=2)
    add("--repeat", type=int, default=None, help="turns (3, with --quick 1)")
    add("--cases", type=given_cases, default=None)
    add("--quick", action="store_true")
    add("--json", type=Path)
    add("--plot", type=Path, help="draw the ratios (SVG)")
    options = parser.parse_args(argv)
    options.types = options.types or (["f16"] if options.quick else ["f16", "q8_0", "q4_0"])
    options.repeat = options.repeat or (1 if options.quick else 3)
    options.cases = options.cases or (QUICK_CASES if options.quick else CASES)
    return options


def warn_of_load(threads: int) -> None:
    """Others on the machine slow programs down unequally, those with barriers most."""
    load = os.getloadavg()[0]
    if load > threads / 2:
        print(f"load is {load:.1f}: other programs run, so ratios mean little", file=sys.stderr)


def main(argv: Sequence[str] | None = None) -> int:
    options = arguments(argv)
    warn_of_load(options.threads)
    if options.plot:
        chart.check_path(options.plot)
    rows = measure(options, models.resolve(options.model))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    if options.plot:
        chart.write(options.plot, picture(rows))
    return 0 if all(row["ok"] for row in rows) else 3


if __name__ == "__main__":
    sys.exit(main())
