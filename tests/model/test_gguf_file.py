"""GgufFile against the `gguf` package, and on files that are not what they should be."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest

from pykv import _core
from tests.reference.gguf_files import TinyModel, write_tiny_model


def check_against_package(path: Path) -> None:
    ours, theirs = _core.GgufFile(path), gguf.GGUFReader(path)
    fields = {name: f for name, f in theirs.fields.items() if not name.startswith("GGUF.")}
    assert ours.keys() == list(fields)
    for name, field in fields.items():
        expected = field.contents()
        if field.types[0] != gguf.GGUFValueType.ARRAY:
            assert ours.scalar(name) == expected
        elif field.types[-1] == gguf.GGUFValueType.STRING:
            assert ours.string_array(name) == expected
            assert ours.array_size(name) == len(expected)
        else:
            assert ours.integer_array(name).tolist() == expected
    tensors = {t.name: t for t in ours.tensors()}
    assert list(tensors) == [t.name for t in theirs.tensors]
    for tensor in theirs.tensors:
        mine = tensors[tensor.name]
        assert mine.shape == tuple(tensor.shape.tolist())
        assert mine.type_name == tensor.tensor_type.name
        assert mine.nbytes == tensor.n_bytes


@pytest.mark.parametrize("kind", ["F32", "F16", "Q8_0", "Q4_1"])
def test_tiny_files_read_as_the_package_reads_them(
    tiny_path: Callable[[TinyModel], Path], kind: str
) -> None:
    check_against_package(tiny_path(TinyModel(weight_type=kind, embedding_type=kind)))


def test_arrays_of_booleans_are_read_as_integers(
    tiny_path: Callable[[TinyModel], Path],
) -> None:
    check_against_package(tiny_path(TinyModel(metadata=(("flags", (True, False, True)),))))


def test_the_real_file_reads_as_the_package_reads_it(smollm2_path: Path) -> None:
    check_against_package(smollm2_path)


def test_values_have_python_types(tiny_path: Callable[[TinyModel], Path]) -> None:
    file = _core.GgufFile(str(tiny_path(TinyModel())))
    assert file.version == 3
    assert file.size == os.path.getsize(file.path)
    assert file.scalar("llama.block_count") == 2
    assert file.scalar("tokenizer.ggml.add_bos_token") is False
    assert file.scalar("general.name") == "tiny"
    assert file.scalar("no.such.key") is None
    assert file.scalar("tokenizer.ggml.tokens") is None
    assert file.array_size("general.name") is None
    assert file.integer_array("tokenizer.ggml.token_type").dtype == np.int64
    with pytest.raises(_core.CorruptModel, match=r"\[GgufFile.string_array\].*'x' is missing"):
        file.string_array("x")
    with pytest.raises(_core.CorruptModel, match="array of string, expected an array of floats"):
        file.float_array("tokenizer.ggml.tokens")


def test_text_that_is_not_utf8_is_an_error_not_a_broken_str(tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "model.gguf")
    path.write_bytes(path.read_bytes().replace(b"<|im_start|>", b"<|im_st\xffrt|>"))
    file = _core.GgufFile(path)
    with pytest.raises(_core.CorruptModel, match=r"element 1 of .*tokens.* is not valid UTF-8"):
        file.string_array("tokenizer.ggml.tokens")
    with pytest.raises(_core.CorruptModel, match="chat_template' is not valid UTF-8"):
        file.scalar("tokenizer.chat_template")


def test_truncated_anywhere(smollm2_path: Path, tmp_path: Path) -> None:
    """A sparse copy: the header is real and cut at every KiB, of the tensor data, cut at every
    64 KiB, only the size counts."""
    copy = tmp_path / "copy.gguf"
    size = smollm2_path.stat().st_size
    with smollm2_path.open("rb") as source, copy.open("wb") as target:
        target.write(source.read(4 << 20))
        target.truncate(size)
    _core.GgufFile(copy)
    header = 2 << 20  # and a little of the data
    lengths = [*range(size - size % 65536, header, -65536), *range(header, -1, -1024)]
    for length in lengths:
        os.truncate(copy, length)
        with pytest.raises(_core.CorruptModel, match=r"\[GgufFile.open\].*(download|convert)"):
            _core.GgufFile(copy)


def test_files_that_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(_core.Error, match="No such file or directory; check the path"):
        _core.GgufFile(tmp_path / "absent.gguf")
    with pytest.raises(_core.Error, match=r"is a directory; give the path of the .gguf file"):
        _core.GgufFile(tmp_path)
    text = tmp_path / "text.gguf"
    text.write_text("hello")
    with pytest.raises(_core.CorruptModel, match="starts with 'hell' instead of 'GGUF'"):
        _core.GgufFile(text)
    text.write_bytes(b"")
    with pytest.raises(_core.CorruptModel, match=r"empty .0 bytes., probably an unfinished"):
        _core.GgufFile(text)


def test_a_path_with_odd_characters(tmp_path: Path) -> None:
    odd = tmp_path / "odd\nnäme\udcff.gguf"
    with pytest.raises(_core.Error, match=r"odd\\x0anäme\\xff.gguf"):
        _core.GgufFile(odd)
    write_tiny_model(tmp_path / "model.gguf")
    shutil.move(tmp_path / "model.gguf", odd)
    assert _core.GgufFile(odd).path == odd
