"""Files of the state folder: modes, damage, strangers."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from pykv.dashboard.errors import AdminError
from pykv.dashboard.passwords import GuessLimit, PasswordHash, ScryptCost, scrypt
from pykv.dashboard.secrets_store import SecretsStore, default_state_dir
from tests.dashboard.conftest import CHEAP, ManualClock


def open_store(folder: Path) -> SecretsStore:
    return SecretsStore.open(folder, cost=CHEAP)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_first_run_makes_private_files(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        store = open_store(tmp_path / "a" / "state")
    finally:
        os.umask(old)
    assert mode(store.folder) == 0o700
    assert {p.name: mode(p) for p in store.folder.iterdir()} == {
        ".lock": 0o600, "admin.json": 0o600, "metrics.token": 0o600,
    }  # fmt: skip


def test_second_run_keeps_everything_and_shows_no_password(tmp_path: Path) -> None:
    first = open_store(tmp_path)
    token, secret = first.metrics_token_file.read_text(), first.cookie_secret
    second = open_store(tmp_path)
    assert second.first_password is None
    assert second.cookie_secret == secret and second.metrics_token_file.read_text() == token
    assert first.first_password and second.password.verify(first.first_password)
    assert not second.password.verify(first.first_password + "x")
    assert second.is_metrics_token(token) and not second.is_metrics_token(token[:-1])


@pytest.mark.parametrize("damage", ["", "other token"])
def test_a_lost_or_changed_token_file_is_made_anew(tmp_path: Path, damage: str) -> None:
    old = open_store(tmp_path).metrics_token_file.read_text()
    (tmp_path / "metrics.token").write_text(damage)
    store = open_store(tmp_path)
    assert store.is_metrics_token(store.metrics_token_file.read_text())
    assert not store.is_metrics_token(old) and not store.is_metrics_token(damage)


def edit(folder: Path, change: Any) -> None:
    file = folder / "admin.json"
    document = json.loads(file.read_text())
    change(document)
    file.write_text(json.dumps(document))


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.clear(),
        lambda d: d.update(format=2),
        lambda d: d.update(cookie_secret="short"),
        lambda d: d.update(password=[]),
        lambda d: d["password"].update(algorithm="md5"),
        lambda d: d["password"].update(n=1 << 40),
        lambda d: d["password"].update(n=1000),
        lambda d: d["password"].update(r=0),
        lambda d: d["password"].update(p=10**9),
        lambda d: d["password"].update(salt="zz"),
        lambda d: d["password"].update(hash="00"),
        lambda d: d.update(tokens=None),
        lambda d: d.update(revoked=[1]),
    ],
)
def test_a_damaged_file_names_the_way_out(tmp_path: Path, change: Any) -> None:
    open_store(tmp_path)
    edit(tmp_path, change)
    with pytest.raises(AdminError, match=r"admin\.json cannot be understood .* delete it"):
        open_store(tmp_path)


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b"[]", b"null", b"[" * 5000])
def test_a_file_that_is_not_ours(tmp_path: Path, data: bytes) -> None:
    open_store(tmp_path)
    (tmp_path / "admin.json").write_bytes(data)
    with pytest.raises(AdminError, match="delete it and start again"):
        open_store(tmp_path)


@pytest.mark.parametrize("data", [b"", b"{}", b"[" * 10_000, b"\xff"])
def test_a_check_finds_what_open_would_find(tmp_path: Path, data: bytes) -> None:
    folder = tmp_path / "state"
    SecretsStore.check(folder)
    assert not (folder / "admin.json").exists(), "a check makes no password"
    assert open_store(folder).first_password is not None
    SecretsStore.check(folder)
    assert {path.name for path in folder.iterdir()} >= {"admin.json"}
    assert not (folder / ".probe").exists()
    (folder / "admin.json").write_bytes(data)
    with pytest.raises(AdminError, match="delete it and start again"):
        SecretsStore.check(folder)


def test_files_that_others_could_read_are_refused(tmp_path: Path) -> None:
    open_store(tmp_path)
    (tmp_path / "admin.json").chmod(0o644)
    with pytest.raises(AdminError, match=r"mode 0644.*chmod 600"):
        open_store(tmp_path)


def test_a_folder_that_others_could_write_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(AdminError, match=r"chmod 700"):
        open_store(tmp_path)


def test_links_are_not_followed(tmp_path: Path) -> None:
    open_store(tmp_path / "real")
    (tmp_path / "state").mkdir(mode=0o700)
    for name in ("admin.json", "metrics.token"):
        (tmp_path / "state" / name).symlink_to(tmp_path / "real" / name)
    with pytest.raises(AdminError, match="cannot read"):
        open_store(tmp_path / "state")


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(AdminError, match="set XDG_STATE_HOME to another"):
        open_store(tmp_path / "file" / "state")


def test_two_servers_of_one_folder_do_not_lose_each_other_s_logouts(tmp_path: Path) -> None:
    one, two = open_store(tmp_path), open_store(tmp_path)
    one.revoke("a", until=100.0, now=0.0)
    two.revoke("b", until=100.0, now=0.0)
    third = open_store(tmp_path)
    assert third.is_revoked("a") and third.is_revoked("b") and not third.is_revoked("c")
    third.revoke("c", until=300.0, now=200.0)  # the others have lapsed
    assert len(json.loads((tmp_path / "admin.json").read_text())["revoked"]) == 1


def test_default_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/x/state")
    assert default_state_dir() == Path("/x/state/pykv")
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    monkeypatch.setenv("HOME", "/home/someone")
    assert default_state_dir() == Path("/home/someone/.local/state/pykv")


def test_a_user_without_a_home_is_told_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    with pytest.raises(AdminError, match="XDG_STATE_HOME"):
        default_state_dir()


def test_scrypt_by_the_standard_s_example() -> None:
    """RFC 7914, section 12, third vector, first 32 bytes."""
    digest = scrypt("password", b"NaCl", ScryptCost(n=1024, r=8, p=16))
    assert digest.hex() == "fdbabe1c9d3472007856e7190d01e9fe7c6ad7cbc8237830e77376634b373162"


def test_password_hash_survives_its_file() -> None:
    made = PasswordHash.make("Grüße ☃", ScryptCost(n=16, r=1, p=1))
    again = PasswordHash.from_dict(made.to_dict())
    assert again.verify("Grüße ☃") and again.verify("Grüße ☃") and not again.verify("Grüße")


def test_guesses_side_by_side_gain_nothing() -> None:
    clock = ManualClock()
    limit = GuessLimit(clock)
    begun = [limit.begin("a") for _ in range(GuessLimit.PER_ADDRESS)]
    assert begun == [0.0] * GuessLimit.PER_ADDRESS
    assert 0 < limit.begin("a") <= GuessLimit.WINDOW
    assert limit.begin("b") == 0.0
    limit.succeeded("a")
    assert limit.begin("a") == 0.0
    clock.wait(GuessLimit.WINDOW)
    assert limit.begin("a") == 0.0


def test_guesses_from_many_addresses_are_limited_too() -> None:
    limit = GuessLimit(ManualClock())
    assert not any(limit.begin(f"host {i}") for i in range(GuessLimit.OVERALL))
    assert limit.begin("one more") > 0
