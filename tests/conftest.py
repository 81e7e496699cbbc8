"""Fixtures for all tests. The real model comes from the folder PYKV_TEST_MODELS, else
it is pulled once into pykv's own model folder."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from pykv import _core, models

ROOT = Path(__file__).resolve().parents[1]


class FakeMetadata:
    """The metadata side of a GGUF file, out of keyword arguments (`_` for `.`)."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.values = values

    def scalar(self, key: str) -> Any:
        value = self.values.get(key)
        return None if isinstance(value, list) else value

    def array_size(self, key: str) -> int | None:
        value = self.values.get(key)
        return len(value) if isinstance(value, list) else None

    def string_array(self, key: str) -> list[str]:
        return self.values[key]

    integer_array = string_array


@pytest.fixture(scope="session")
def fake_metadata() -> type[FakeMetadata]:
    return FakeMetadata


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """SmolLM2-135M-Instruct, Q4_1."""
    folder = os.environ.get("PYKV_TEST_MODELS")
    if folder:
        return Path(folder) / models.CATALOG[models.DEFAULT_MODEL].file_name
    return models.pull(models.DEFAULT_MODEL, progress=False)


@pytest.fixture(scope="session")
def smollm2_gguf(smollm2_path: Path) -> Any:
    return _core.GgufFile(smollm2_path)


@pytest.fixture(scope="session")
def golden() -> list[dict[str, Any]]:
    """What llama.cpp answered for SmolLM2: prompts, token ids, greedy tokens, log
    probabilities of the ten best."""
    text = (ROOT / "tests" / "data" / "golden_smollm2.json").read_text(encoding="utf-8")
    entries: list[dict[str, Any]] = json.loads(text)
    return entries
