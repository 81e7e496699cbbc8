"""Hostile files: every field of the header out of range, counts beyond the file (C35)."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from pykv import _core
from tests.reference.gguf_files import TinyModel, write_tiny_model
from tests.reference.recurrent_files import TinyRecurrent, write_tiny_recurrent

ROOT = Path(__file__).resolve().parents[2]
MIB = 1 << 20


def write_small(architecture: str, path: Path) -> Path:
    """A file with the keys and tensors of the architecture."""
    if architecture == "granitehybrid":
        return write_tiny_recurrent(path, TinyRecurrent(pattern="ra"))
    types = {"weight_type": "Q8_0", "embedding_type": "Q4_1"}
    experts = {"experts": 4, "experts_used": 2} if architecture == "gpt-oss" else {}
    return write_tiny_model(path, TinyModel(architecture, layers=1, **types, **experts))


@pytest.mark.parametrize("architecture", ["llama", "gpt-oss", "granitehybrid"])
def test_every_field_of_the_header_out_of_range(architecture: str, tmp_path: Path) -> None:
    source = write_small(architecture, tmp_path / "source.gguf")
    command = [sys.executable, "-m", "tests.model.hostile", str(source), str(tmp_path / "h.gguf")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["growth"] <= 64 * MIB
    assert len(result["refused"]) > 1500
    for what, offset, value, message in result["refused"]:
        place = f"{what} at {offset} = {value}: {message}"
        assert message.startswith("["), place
        assert len(message) < 1000, place
    # What stays readable: other scalar kinds of the same size and the like.
    assert result["opened"] < len(result["refused"]) / 10


@pytest.mark.parametrize("count", [1 << 40, (1 << 64) - 1, 1 << 20])
@pytest.mark.parametrize("place", ["tensors", "keys", "array", "string"])
def test_a_64_kib_file_that_claims_absurd_counts(tmp_path: Path, place: str, count: int) -> None:
    tensors, keys = (count, 0) if place == "tensors" else (0, count if place == "keys" else 1)
    header = b"GGUF" + struct.pack("<IQQ", 3, tensors, keys)
    name = struct.pack("<Q", 1) + b"k"
    if place == "array":
        header += name + struct.pack("<IIQ", 9, 8, count)
    if place == "string":
        header += name + struct.pack("<IQ", 8, count)
    path = tmp_path / "absurd.gguf"
    path.write_bytes(header.ljust(65536, b"\0"))
    with pytest.raises(_core.CorruptModel, match=str(count)):
        _core.GgufFile(path)


def load(path: Path) -> None:
    _core.Model(_core.GgufFile(path), _core.Backend(threads=1))


def test_an_unknown_architecture_is_named(tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "model.gguf")
    path.write_bytes(path.read_bytes().replace(b"llama", b"lambo"))
    with pytest.raises(_core.UnsupportedModel, match=r"'lambo', supported are: .*llama"):
        load(path)


def test_an_unsupported_weight_type_is_named_with_its_tensor(tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "model.gguf", TinyModel(weight_type="Q8_0"))
    data = path.read_bytes()
    name = b"blk.0.attn_q.weight"
    at = data.index(name) + len(name) + 4 + 2 * 8  # after dimensions and extents
    path.write_bytes(data[:at] + struct.pack("<I", 24) + data[at + 4 :])  # of fewer bytes
    with pytest.raises(_core.UnsupportedModel, match=r"'blk.0.attn_q.weight' has type I8, supp"):
        load(path)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b"blk.1.ffn_up.weight", b"blk.1.ffn_xp.weight", "'blk.1.ffn_up.weight' is missing"),
        (b"rope.freq_base", b"rope.freq_bose", "'llama.rope.freq_bose' asks for a feature"),
    ],
)
def test_a_renamed_part_is_missed_not_ignored(
    tmp_path: Path, old: bytes, new: bytes, message: str
) -> None:
    path = write_tiny_model(tmp_path / "model.gguf")
    path.write_bytes(path.read_bytes().replace(old, new))
    with pytest.raises(_core.Error, match=message):
        load(path)


def test_a_tensor_that_nothing_uses_is_refused(tmp_path: Path) -> None:
    """E.g. sinks or a bias: computing without it would give other answers."""
    path = write_tiny_model(
        tmp_path / "model.gguf", TinyModel(extra_tensor="blk.0.attn_sinks.weight")
    )
    with pytest.raises(
        _core.UnsupportedModel, match=r"'blk.0.attn_sinks.weight' belongs to a feature"
    ):
        load(path)
