"""Models in several files: any part opens all of them, and parts that do not belong
together are refused."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pykv import _core
from tests.model.machine import Machine, random_tokens
from tests.reference.gguf_files import TinyModel, write_split_model, write_tiny_model

SPEC = TinyModel("qwen2", tied=False)


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return write_split_model(tmp_path_factory.mktemp("split"), SPEC, tensors=6)


@pytest.fixture
def copy(parts: list[Path], tmp_path: Path) -> list[Path]:
    """The parts in a folder that a test may change."""
    return [Path(shutil.copy(part, tmp_path / part.name)) for part in parts]


def with_number(path: Path, key: str, value: int) -> None:
    """Replaces a number of 2 (split.no, split.count) or 4 bytes."""
    data = path.read_bytes()
    at = data.index(key.encode()) + len(key) + 4
    number = struct.pack("<i" if key == "split.tensors.count" else "<H", value)
    path.write_bytes(data[:at] + number + data[at + len(number) :])


def test_any_part_is_the_whole_model(
    parts: list[Path], tiny_path: Callable[[TinyModel], Path]
) -> None:
    assert len(parts) == 5
    whole = Machine(tiny_path(SPEC))
    tokens = random_tokens(40, whole.vocab, seed=1)
    expected = whole.cold(tokens)
    for part in parts:
        machine = Machine(part)
        assert machine.gguf.path == part
        assert machine.gguf.size == sum(p.stat().st_size for p in parts)
        assert {t.name for t in machine.gguf.tensors()} == {t.name for t in whole.gguf.tensors()}
        assert machine.gguf.scalar("general.architecture") == "qwen2"
        assert np.array_equal(machine.cold(tokens), expected)


def test_a_file_with_the_name_of_a_part_may_be_whole(tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "model-00002-of-00003.gguf")
    assert len(_core.GgufFile(path).tensors()) == 20


@pytest.mark.parametrize("gone", [0, 2, 4])
def test_a_missing_part_is_named(copy: list[Path], gone: int) -> None:
    copy[gone].unlink()
    for part in copy:
        if part.exists():
            expected = f"{copy[gone].name}' is missing, part {gone + 1} of 5 of a split model"
            with pytest.raises(_core.Error, match=expected):
                _core.GgufFile(part)


def test_a_renamed_part_cannot_find_the_others(copy: list[Path]) -> None:
    other = copy[1].rename(copy[1].with_name("second.gguf"))
    expected = "part 2 of 5 of a split model, but its name does not end in -00002-of-00005.gguf"
    with pytest.raises(_core.CorruptModel, match=expected):
        _core.GgufFile(other)


def test_parts_of_different_models(copy: list[Path], tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    fewer = TinyModel("qwen2", tied=True)
    stranger = write_split_model(tmp_path / "other", fewer, tensors=6)
    shutil.copy(stranger[1], copy[1])
    with pytest.raises(_core.CorruptModel, match="of a model with 26 tensors, expected is part 2"):
        _core.GgufFile(copy[0])


def test_a_part_in_the_place_of_another(copy: list[Path]) -> None:
    shutil.copy(copy[3], copy[1])
    with pytest.raises(_core.CorruptModel, match=r"part 4 of 5 .* expected is part 2 of 5"):
        _core.GgufFile(copy[0])


def test_a_tensor_in_two_parts(copy: list[Path]) -> None:
    shutil.copy(copy[2], copy[1])
    with_number(copy[1], "split.no", 1)
    with pytest.raises(_core.CorruptModel, match="is in two parts of the model"):
        _core.GgufFile(copy[0])


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("split.no", 5),
        ("split.no", 0xFFFF),
        ("split.count", 0xFFFF),
        ("split.tensors.count", -1),
        ("split.tensors.count", 28),
    ],
)
def test_absurd_numbers(copy: list[Path], key: str, value: int) -> None:
    with_number(copy[0], key, value)
    with pytest.raises(_core.CorruptModel, match=r"split|does not belong|no count"):
        _core.GgufFile(copy[0])


def test_all_parts_count_on_more_tensors(copy: list[Path]) -> None:
    for part in copy:
        with_number(part, "split.tensors.count", 28)
    with pytest.raises(_core.CorruptModel, match="have 27 tensors, the metadata tells of 28"):
        _core.GgufFile(copy[4])


def test_a_truncated_part(copy: list[Path]) -> None:
    data = copy[3].read_bytes()
    copy[3].write_bytes(data[: len(data) // 2])
    with pytest.raises(_core.CorruptModel, match=copy[3].name):
        _core.GgufFile(copy[0])
