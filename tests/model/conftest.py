"""Tiny models, one file per spec, and machines that run them."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.model.machine import Machine
from tests.reference.gguf_files import TinyModel, write_tiny_model


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Callable[[TinyModel], Path]:
    """Path of the file of a spec, written once."""
    folder = tmp_path_factory.mktemp("tiny")
    written: dict[TinyModel, Path] = {}

    def path(spec: TinyModel) -> Path:
        if spec not in written:
            written[spec] = write_tiny_model(folder / f"{len(written)}.gguf", spec)
        return written[spec]

    return path


@pytest.fixture(scope="module")
def tiny(tiny_path: Callable[[TinyModel], Path]) -> Machine:
    return Machine(tiny_path(TinyModel()))


@pytest.fixture(scope="session")
def smollm2(smollm2_path: Path) -> Machine:
    """With exact linear layers."""
    return Machine(smollm2_path)


@pytest.fixture(scope="session")
def smollm2_fast(smollm2_path: Path) -> Machine:
    """As users have it by default."""
    return Machine(smollm2_path, type_k="f16", type_v="f16", precision="fast")
