"""The admin service's secrets on disk: one folder, private to its owner.

    admin.json     password hash, cookie secret, token hashes, revoked sessions   0600
    metrics.token  the `metrics`-scope token in clear, for Prometheus              0600
    audit.jsonl    one line per change (audit.py)                                  0600

Files are replaced atomically; two servers that share a folder take turns by a lock file.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .errors import AdminError
from .passwords import PasswordHash, ScryptCost

_MAX_BYTES = 1 << 20
_FORMAT = 1


def default_state_dir() -> Path:
    """$XDG_STATE_HOME/pykv, or ~/.local/state/pykv."""
    base = os.environ.get("XDG_STATE_HOME", "")
    try:
        root = Path(base) if base.startswith("/") else Path.home() / ".local" / "state"
    except RuntimeError:  # a user without an entry and without HOME, as in some containers
        raise AdminError(
            "[SecretsStore.open] this user has no home folder; set XDG_STATE_HOME to a folder "
            "that is kept"
        ) from None
    return root / "pykv"


def read_private(path: Path) -> bytes | None:
    """The file's bytes, None if it does not exist. Refuses links, strangers' and open files."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise AdminError(
            f"[SecretsStore.open] cannot read {path}: {error.strerror}; "
            "make it readable for this user, or set XDG_STATE_HOME to another"
        ) from error
    with os.fdopen(descriptor, "rb") as file:
        facts = os.fstat(file.fileno())
        if not stat.S_ISREG(facts.st_mode) or facts.st_uid != os.geteuid():
            raise AdminError(
                f"[SecretsStore.open] {path} is not a plain file of this user; "
                "move it away, or set XDG_STATE_HOME to another"
            )
        if facts.st_mode & 0o077:
            raise AdminError(
                f"[SecretsStore.open] {path} has mode {facts.st_mode & 0o777:04o}, so other "
                f"users of this machine may have read it; delete it to start afresh, or run: "
                f"chmod 600 {path}"
            )
        return file.read(_MAX_BYTES + 1)


def write_private(path: Path, data: bytes) -> None:
    """Replaces `path` atomically by a 0600 file."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(temporary, flags, 0o600), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise AdminError(f"[SecretsStore.write] cannot write {path}: {error.strerror}") from error


def _prepare_folder(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        facts = folder.stat()
    except OSError as error:
        raise AdminError(
            f"[SecretsStore.open] cannot use {folder}: {error.strerror}; "
            "set XDG_STATE_HOME to another"
        ) from error
    if facts.st_uid != os.geteuid() or facts.st_mode & 0o022:
        raise AdminError(
            f"[SecretsStore.open] {folder} (mode {facts.st_mode & 0o777:04o}) can be written by "
            f"others; run: chmod 700 {folder}, or set XDG_STATE_HOME to another"
        )


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


class SecretsStore:
    """The secrets of one state folder. Made by :meth:`open`; safe from any thread."""

    def __init__(self, folder: Path, password: PasswordHash, cookie_secret: str) -> None:
        self.folder = folder
        self.user = "admin"
        self.password = password
        self.cookie_secret = cookie_secret
        self.first_password: str | None = None  # in clear, only if just made
        self._metrics_sha256 = ""
        self._revoked: dict[str, float] = {}

    @classmethod
    def open(cls, folder: Path, *, cost: ScryptCost | None = None) -> SecretsStore:
        """Reads the folder, or makes it with a random password on the first run.

        Raises AdminError, with the way out, if it cannot be trusted or understood.
        """
        _prepare_folder(folder)
        with _locked(folder):
            data = read_private(folder / "admin.json")
            if data is None:
                password = secrets.token_urlsafe(12)
                hashed = PasswordHash.make(password, cost or ScryptCost())
                store = cls(folder, hashed, secrets.token_hex(32))
                store.first_password = password
            else:
                store = cls._parse(folder, data)
            store._ensure_metrics_token()
            store._save()
        return store

    @classmethod
    def check(cls, folder: Path) -> None:
        """Raises what `open` would raise. Makes the folder, but no secrets."""
        _prepare_folder(folder)
        with _locked(folder):
            data = read_private(folder / "admin.json")
            if data is not None:
                cls._parse(folder, data)._read_metrics_token()
            probe = folder / ".probe"
            write_private(probe, b"")
            probe.unlink(missing_ok=True)

    @classmethod
    def _parse(cls, folder: Path, data: bytes) -> SecretsStore:
        try:
            if len(data) > _MAX_BYTES:
                raise ValueError(f"larger than {_MAX_BYTES} bytes")
            document = json.loads(data)
            if document["format"] != _FORMAT:
                raise ValueError(f"format {document['format']!r}, this version knows {_FORMAT}")
            secret = document["cookie_secret"]
            if not isinstance(secret, str) or len(secret) < 32:
                raise ValueError("cookie_secret is too short")
            store = cls(folder, PasswordHash.from_dict(document["password"]), secret)
            store._metrics_sha256 = str(document["tokens"]["metrics"]["sha256"])
            store._revoked = {str(k): float(v) for k, v in document["revoked"].items()}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            reason = f"missing field {error}" if isinstance(error, KeyError) else str(error)
            raise AdminError(
                f"[SecretsStore.open] {folder / 'admin.json'} cannot be understood ({reason}); "
                "delete it and start again: a new password is made and printed"
            ) from error
        return store

    def _read_metrics_token(self) -> str:
        return (read_private(self.metrics_token_file) or b"").decode("ascii", "replace").strip()

    def _ensure_metrics_token(self) -> None:
        path = self.metrics_token_file
        present = self._read_metrics_token()
        if not present or _sha256(present) != self._metrics_sha256:
            token = "pykv_metrics_" + secrets.token_urlsafe(32)
            write_private(path, token.encode())
            self._metrics_sha256 = _sha256(token)

    def _save(self) -> None:
        document: dict[str, Any] = {
            "format": _FORMAT,
            "user": self.user,
            "password": self.password.to_dict(),
            "cookie_secret": self.cookie_secret,
            "tokens": {"metrics": {"scope": "metrics", "sha256": self._metrics_sha256}},
            "revoked": self._revoked,
        }
        text = json.dumps(document, indent=2) + "\n"
        write_private(self.folder / "admin.json", text.encode())

    @property
    def metrics_token_file(self) -> Path:
        return self.folder / "metrics.token"

    def is_metrics_token(self, token: str) -> bool:
        """Constant-time comparison of the hashes."""
        return secrets.compare_digest(_sha256(token), self._metrics_sha256)

    def revoke(self, session: str, until: float, now: float) -> None:
        """Ends a session for good, over restarts too. Times are wall-clock seconds."""
        with _locked(self.folder):
            data = read_private(self.folder / "admin.json")
            if data is not None:  # another server of this folder may have written it
                disk = self._parse(self.folder, data)
                self._revoked |= disk._revoked
                self._metrics_sha256 = disk._metrics_sha256
            live = {k: end for k, end in self._revoked.items() if end > now}
            self._revoked = live | {_sha256(session): until}
            self._save()

    def is_revoked(self, session: str) -> bool:
        return _sha256(session) in self._revoked


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(folder / ".lock", flags, 0o600)
    except OSError as error:
        raise AdminError(
            f"[SecretsStore.open] cannot write in {folder}: {error.strerror}; "
            "set XDG_STATE_HOME to another"
        ) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
