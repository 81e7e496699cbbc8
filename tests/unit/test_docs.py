"""The documents say what is there."""

import dataclasses
import doctest
import re
from pathlib import Path

import pytest

import pykv
from pykv.cli import completion
from pykv.models import CATALOG
from tests.reference.gguf_files import write_tiny_model

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


def test_readme_shows_the_tested_example() -> None:
    readme = (ROOT / "README.md").read_text()
    block = re.search(
        r"<!-- example:begin -->\n```python\n(.*?)```\n<!-- example:end -->", readme, re.S
    )
    assert block is not None
    assert block[1] == (ROOT / "examples/two_sessions.py").read_text()


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the documents' model is a tiny one."""
    folder = tmp_path_factory.mktemp("models")
    write_tiny_model(folder / CATALOG["smollm2-135m"].file_name)
    return folder


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: p.name)
def test_python_sessions_run(document: Path, models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYKV_MODELS", str(models))
    result = doctest.testfile(
        str(document), module_relative=False, optionflags=doctest.ELLIPSIS, encoding="utf-8"
    )
    assert result.failed == 0
    assert result.attempted > 0 or document.name not in ("cache.md", "engine.md")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: p.name)
def test_links_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", document.read_text()):
        if "://" not in target:
            assert (document.parent / target).exists(), f"{document.name} links to {target}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: p.name)
def test_named_files_exist(document: Path) -> None:
    """A path in backticks that looks like one of ours must exist."""
    pattern = r"`((?:cpp|pykv|dashboard|tests|docs|benchmarks|examples|monitoring)/[\w./-]+)`"
    for target in re.findall(pattern, document.read_text()):
        path = target.replace("pykv/dashboard/", "dashboard/")
        assert (ROOT / path).exists() or path == "pykv/_core.pyi", f"{document.name}: {target}"


def test_every_command_and_flag_is_described() -> None:
    text = (ROOT / "docs/cli.md").read_text()
    for command in completion.commands():
        assert f"## pykv {command.name}\n" in text
        for flag in command.flags:
            for name in flag.names:
                assert f"`{name}`" in text or name in ("-h", "--help"), f"{command.name} {name}"
    flags = {name for command in completion.commands() for f in command.flags for name in f.names}
    for name in re.findall(r"`(--?[a-z][\w-]*)`", text):
        assert name in flags, f"docs/cli.md names {name}"


def test_every_part_of_the_cache_is_described() -> None:
    """The cache can be used with the page alone: names behind it are not found by luck."""
    text = (ROOT / "docs/cache.md").read_text()
    inside = {"from_core", "edge_hash"}
    values = (pykv.CacheConfig, pykv.Layer, pykv.Rope)
    fields = [field.name for kind in values for field in dataclasses.fields(kind)]
    methods = [n for t in (pykv.Cache, pykv.Plan, pykv.Step) for n in dir(t) if n[0] != "_"]
    missing = [n for n in [*fields, *methods] if not re.search(rf"\b{n}\b", text)]
    assert set(missing) <= inside
