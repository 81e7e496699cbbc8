"""Tiny models whose logits llama.cpp was asked for (benchmarks/peer_logits.py): shapes that it and
pykv both run, one or two of each architecture with windows or recurrent layers."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.reference.gguf_files import TinyModel, vocabulary, write_tiny_model
from tests.reference.recurrent_files import TinyRecurrent, write_tiny_recurrent

FACTS = Path(__file__).resolve().parents[1] / "data" / "peer_logits.json"
TOKENS = 300  # more than five windows
TOKENS_SEED = 2
POSITIONS = (0, 1, 30, 49, 50, 75, 150, 299)  # recorded: before, at and behind the windows' edge
TOKEN_STRIDE = 7  # every seventh logit of a recorded position

_WINDOW = (("attention.sliding_window", 50),)
_YARN = (
    ("rope.scaling.type", "yarn"),
    ("rope.scaling.factor", 4.0),
    ("rope.scaling.original_context_length", 256),
)
_GEMMA3_SCALED = (
    ("rope.scaling.type", "linear"),
    ("rope.scaling.factor", 8.0),
    ("rope.freq_base_swa", 5000.0),
)
# llama.cpp wants an output matrix of gpt-oss, and 2 * width inner elements of granitehybrid.
CASES: dict[str, TinyModel | TinyRecurrent] = {
    "gemma2": TinyModel("gemma2", layers=3, metadata=_WINDOW),
    "gemma3": TinyModel("gemma3", layers=7, rope_base=1e6, metadata=_WINDOW),
    "gemma3, linear scaling": TinyModel(
        "gemma3", layers=6, rope_base=1e6, metadata=(*_WINDOW, *_GEMMA3_SCALED)
    ),
    "gpt-oss": TinyModel(
        "gpt-oss", layers=4, experts=6, experts_used=2, tied=False, metadata=_WINDOW
    ),
    "gpt-oss, YaRN": TinyModel(
        "gpt-oss",
        experts=6,
        experts_used=2,
        tied=False,
        rope_base=150000.0,
        metadata=(*_WINDOW, *_YARN),
    ),
    "mamba2": TinyRecurrent("mamba2", "rrr"),
    "lfm2": TinyRecurrent("lfm2", "rrarra", taps=3),
    "granitehybrid": TinyRecurrent("granitehybrid", "rrar", ssm_heads=8),
    "granitehybrid that rotates": TinyRecurrent(
        "granitehybrid", "rar", ssm_heads=8, rope=True, scales=False
    ),
}


def write_case(path: Path, name: str) -> Path:
    """Writes the model of a case; the same bytes each time."""
    spec = CASES[name]
    if isinstance(spec, TinyModel):
        return write_tiny_model(path, spec)
    return write_tiny_recurrent(path, spec)


def case_tokens() -> list[int]:
    """The tokens whose logits are recorded, the same for all cases."""
    rng = np.random.default_rng(TOKENS_SEED)
    return [int(token) for token in rng.integers(0, len(vocabulary()), TOKENS)]
