"""Packages, folders and the files in them."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
from pathlib import Path

from pykv import models
from pykv._core import Error
from pykv.cli.checks import Finding, State
from pykv.cli.output import size

DISTRIBUTION = "pykv-cache"
# Used where the distribution is not installed (a source tree).
_NEEDED = (
    "numpy", "tokenizers", "jinja2", "starlette", "uvicorn", "flask", "waitress",
    "prometheus-client", "rich",
)  # fmt: skip


def check_packages() -> list[Finding]:
    """Versions of what the library and the server need."""
    found, missing, old = [], [], []
    needed = _requirements()
    for name, least in needed:
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            missing.append(name)
            continue
        found.append(f"{name} {version}")
        if _release(version) < _release(least):
            old.append(f"{name}>={least}")
    findings = [Finding("packages", "ok", ", ".join(found))]
    if missing:
        # With numpy alone, the library is what was wanted.
        state: State = "note" if len(missing) == len(needed) - 1 else "problem"
        advice = f"pip install '{DISTRIBUTION}[server]' (pykv serve needs them)"
        findings.append(Finding("packages", state, "missing: " + ", ".join(missing), advice))
    if old:
        advice = "pip install " + " ".join(f"'{each}'" for each in old)
        findings.append(Finding("packages", "problem", "too old: needs " + ", ".join(old), advice))
    if importlib.util.find_spec("pip") is None:
        advice = "run: python -m ensurepip (pykv pull fetches models with it)"
        findings.append(Finding("packages", "note", "pip is missing", advice))
    return findings


def _requirements() -> list[tuple[str, str]]:
    """Name and least version of each package, "0" where none is known."""
    try:
        stated = importlib.metadata.requires(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        return [(name, "0") for name in _NEEDED]
    found = []
    for text in stated:
        match = re.match(r"([A-Za-z0-9._-]+)\s*\(?(?:>=\s*([0-9.]+))?", text)
        if match and "python_version" not in text:
            found.append((match[1], match[2] or "0"))
    return found


def _release(version: str) -> tuple[int, ...]:
    numbers = re.match(r"[0-9.]*", version)
    return tuple(int(part) for part in (numbers[0] if numbers else "").split(".") if part)


def check_folders() -> list[Finding]:
    """The folder of models and the one of the admin service's secrets."""
    return [_models_folder(), *_state_folder()]


def _models_folder() -> Finding:
    try:
        folder = models.models_dir()
    except Error as error:
        return Finding("models", "problem", str(error), "set PYKV_MODELS")
    if not _writable(folder):
        advice = "make it writable, or set PYKV_MODELS to another folder"
        return Finding("models", "problem", f"{folder} cannot be written", advice)
    here = [name for name, entry in models.CATALOG.items() if (folder / entry.file_name).is_file()]
    if not here:
        return Finding("models", "note", f"{folder} has none", "run: pykv pull")
    total = sum((folder / models.CATALOG[name].file_name).stat().st_size for name in here)
    return Finding("models", "ok", f"{folder}: {', '.join(here)} ({size(total)})")


def _state_folder() -> list[Finding]:
    try:
        from pykv.dashboard.secrets_store import default_state_dir
    except ModuleNotFoundError as error:
        return [Finding("state", "note", f"not looked at: {error}")]
    try:
        folder = default_state_dir()
    except Error as error:
        return [Finding("state", "problem", str(error), "set XDG_STATE_HOME")]
    if not folder.exists():
        if _writable(folder):
            return [Finding("state", "ok", f"{folder} will be made by pykv serve")]
        advice = "make it writable, or set XDG_STATE_HOME to another folder"
        return [Finding("state", "problem", f"{folder} cannot be made", advice)]
    findings = [_private(folder, 0o022, 0o700)]
    findings += [
        _private(folder / name, 0o077, 0o600)
        for name in ("admin.json", "metrics.token", "audit.jsonl")
        if (folder / name).exists()
    ]
    return [finding for finding in findings if finding.state != "ok"] or [
        Finding("state", "ok", f"{folder}, private to this user")
    ]


def _private(path: Path, open_bits: int, mode: int) -> Finding:
    facts = path.lstat()
    if facts.st_uid != os.geteuid():
        advice = "move it away, or set XDG_STATE_HOME to another folder"
        return Finding("state", "problem", f"{path} belongs to another user", advice)
    if facts.st_mode & open_bits:
        found = f"{path} has mode {facts.st_mode & 0o777:04o}, so others can reach it"
        return Finding("state", "problem", found, f"run: chmod {mode:o} {path}")
    return Finding("state", "ok", str(path))


def _writable(folder: Path) -> bool:
    """Whether files can be made in a folder, or the folder itself."""
    while not folder.exists() and folder.parent != folder:
        folder = folder.parent
    return folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)
