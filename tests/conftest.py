"""Fixtures for all tests. Real models come from the folder PYKV_TEST_MODELS; those that
are not there are pulled once into pykv's own model folder."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from pykv import _core, models

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(autouse=True)
def no_configuration_of_the_user(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Commands see neither a file nor variables that set their options."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.getbasetemp() / "no-configuration"))
    for name in os.environ:
        if name.startswith("PYKV_") and name not in ("PYKV_MODELS", "PYKV_TEST_MODELS"):
            monkeypatch.delenv(name)


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

    integer_array = float_array = string_array


@pytest.fixture(scope="session")
def fake_metadata() -> type[FakeMetadata]:
    return FakeMetadata


def model_file(name: str) -> Path:
    """The file of a model of the catalog."""
    folder = os.environ.get("PYKV_TEST_MODELS")
    path = Path(folder or "/nowhere") / models.CATALOG[name].file_name
    return path if path.is_file() else models.pull(name, progress=False, accept_license=True)


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """SmolLM2-135M-Instruct, Q4_1."""
    return model_file(models.DEFAULT_MODEL)


@pytest.fixture(scope="session")
def smollm2_gguf(smollm2_path: Path) -> Any:
    return _core.GgufFile(smollm2_path)


@pytest.fixture(scope="session")
def gemma3_path() -> Path:
    """Gemma 3 270M, Q4_K_M. Under Gemma's terms of use: fetched for tests, never shipped."""
    return model_file("gemma3-270m")


@pytest.fixture(scope="session")
def gemma3_gguf(gemma3_path: Path) -> Any:
    return _core.GgufFile(gemma3_path)


def golden_answers(name: str) -> list[dict[str, Any]]:
    """What llama.cpp answered: prompts, token ids, greedy tokens, log probabilities of the
    ten best."""
    text = (ROOT / "tests" / "data" / f"golden_{name}.json").read_text(encoding="utf-8")
    entries: list[dict[str, Any]] = json.loads(text)
    return entries


@pytest.fixture(scope="session")
def golden() -> list[dict[str, Any]]:
    return golden_answers("smollm2")


@pytest.fixture(scope="session")
def golden_gemma3() -> list[dict[str, Any]]:
    return golden_answers("gemma3")
