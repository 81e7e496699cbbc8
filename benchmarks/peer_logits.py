"""Records llama.cpp's logits of tiny random models, for tests that run without it.

    python -m benchmarks.peer_logits [--llama-cpp PYTHON] [--check]

The models are those of tests/reference/peer_cases.py: the same bytes each time. f32 KV, no flash
attention, whose rounding alone is 1e-3 of gpt-oss's largest logit. Writes
tests/data/peer_logits.json: of some positions every seventh logit, the best token, and of each
case the largest logit. tests/model/test_peer_logits.py compares ours with them.

--check compares with what is recorded instead of writing, and exits 3 if it differs.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.environment import PACKAGES, peer_python
from benchmarks.peers.worker import Worker
from tests.reference.peer_cases import (
    CASES,
    FACTS,
    POSITIONS,
    TOKEN_STRIDE,
    case_tokens,
    write_case,
)

DIGITS = 6
SAME = 1e-5  # of the largest logit: two runs of the peer on different machines


def peer_logits(python: Path | str, model: Path, tokens: list[int]) -> Any:
    """llama.cpp's logits [tokens, vocab] of one model."""
    file = model.with_suffix(".npy")
    with Worker(python, "llama_cpp_worker.py", ["-m", str(model), "-t", "1"]) as worker:
        types = {"cache_type_k": "f32", "cache_type_v": "f32"}
        worker.ask(do="logits", tokens=tokens, file=str(file), flash_attention=False, **types)
    return np.load(file)


def facts_of(logits: Any) -> dict[str, Any]:
    """What is recorded of the logits of one case."""
    return {
        "largest": _rounded(np.abs(logits).max()),
        "best": [int(logits[position].argmax()) for position in POSITIONS],
        "logits": [[_rounded(v) for v in logits[p, ::TOKEN_STRIDE]] for p in POSITIONS],
    }


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def record(python: Path | str) -> dict[str, Any]:
    """The facts of all cases by name."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in CASES:
            model = write_case(Path(folder) / "model.gguf", name)
            found[name] = facts_of(peer_logits(python, model, case_tokens()))
            print(f"{name}: largest logit {found[name]['largest']}")
    return found


def differences(recorded: dict[str, Any], found: dict[str, Any]) -> list[str]:
    """Lines about cases that are not as recorded."""
    lines = [f"recorded are {sorted(recorded)}"] if recorded.keys() != found.keys() else []
    for name in recorded.keys() & found.keys():
        old, new = (np.array(facts[name]["logits"]) for facts in (recorded, found))
        error = np.abs(old - new).max() / recorded[name]["largest"]
        if error > SAME:
            lines.append(f"{name} differs by {error:.1e} of the largest logit")
    return lines


def text_of(found: dict[str, Any]) -> str:
    """The file: one line for each recorded position."""
    head = {"peer": PACKAGES["llama-cpp"], "made_by": "python -m benchmarks.peer_logits"}
    facts = {
        name: {**f, "logits": [json.dumps(r) for r in f["logits"]]} for name, f in found.items()
    }
    text = json.dumps({**head, "positions": POSITIONS, "cases": facts}, indent=1)
    return text.replace('"[', "[").replace(']"', "]") + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--llama-cpp", metavar="PYTHON", help="environment with llama-cpp-python")
    parser.add_argument("--check", action="store_true", help="compare with what is recorded")
    options = parser.parse_args(argv)
    found = record(options.llama_cpp or peer_python("llama-cpp"))
    if not options.check:
        FACTS.write_text(text_of(found), encoding="utf-8")
        return 0
    lines = differences(json.loads(FACTS.read_text(encoding="utf-8"))["cases"], found)
    print("\n".join(lines) or "as recorded")
    return 3 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
