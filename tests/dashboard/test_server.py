"""The listening service: start, address rules, hostile bytes, close."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from pykv.dashboard import AdminError, AdminServer, InProcessClient, start_admin
from tests.dashboard.fake_client import FakeClient


@pytest.fixture
def server(tmp_path: Path) -> Iterator[AdminServer]:
    with start_admin(FakeClient(), port=0, state_dir=tmp_path / "state") as running:
        yield running


def get(server: AdminServer, path: str, **headers: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(server.host, server.port, timeout=20)
    try:
        connection.request("GET", path, headers=headers)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def raw(server: AdminServer, data: bytes) -> bytes:
    """The answer to any bytes; empty if the server hung up before all were sent."""
    answer = b""
    address = (server.host, server.port)
    with socket.create_connection(address, timeout=20) as peer, contextlib.suppress(OSError):
        peer.sendall(data)
        peer.shutdown(socket.SHUT_WR)
        while chunk := peer.recv(65536):
            answer += chunk
    return answer


def test_serves_and_prometheus_gets_in(server: AdminServer) -> None:
    assert server.host == "127.0.0.1" and server.url == f"http://127.0.0.1:{server.port}/"
    assert server.password
    assert json.loads(get(server, "/health")[1]) == {"status": "ok"}
    assert get(server, "/metrics")[0] == 401
    token = server.metrics_token_file.read_text()
    status, body = get(server, "/metrics", Authorization=f"Bearer {token}")
    assert status == 200 and b"pykv_cells{" in body


def test_second_start_has_no_password(tmp_path: Path) -> None:
    start_admin(FakeClient(), port=0, state_dir=tmp_path).close()
    with start_admin(FakeClient(), port=0, state_dir=tmp_path) as again:
        assert again.password is None


def test_close_ends_threads_and_open_connections(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    server = start_admin(FakeClient(), port=0, state_dir=tmp_path)
    with socket.create_connection((server.host, server.port), timeout=20) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")
        server.close()
        server.close()
        while connection.recv(65536):
            pass
    assert set(threading.enumerate()) == before
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((server.host, server.port), timeout=20)


def test_occupied_port_says_so(server: AdminServer, tmp_path: Path) -> None:
    with pytest.raises(
        AdminError, match=rf"cannot listen on 127.0.0.1 port {server.port}: .*in use"
    ):
        start_admin(FakeClient(), port=server.port, state_dir=tmp_path / "other")
    assert not (tmp_path / "other").exists()  # no password made that nobody would see


def test_bad_ports(tmp_path: Path) -> None:
    for port in (-1, 65_536):
        with pytest.raises(AdminError, match=f"port {port}: .*choose another port"):
            start_admin(FakeClient(), port=port, state_dir=tmp_path)


def test_bad_state_folder_frees_the_port(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(AdminError, match="set XDG_STATE_HOME to another"):
        start_admin(FakeClient(), port=0, state_dir=tmp_path / "file")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_beyond_loopback_only_by_an_explicit_argument(tmp_path: Path, host: str) -> None:
    with pytest.raises(AdminError, match="allow_remote"):
        start_admin(FakeClient(), host=host, port=0, state_dir=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_beyond_loopback_when_told_to(tmp_path: Path) -> None:
    options = {"allow_remote": True, "allowed_hosts": ["pykv.example"]}
    with start_admin(FakeClient(), host="0.0.0.0", port=0, state_dir=tmp_path, **options) as server:
        local = SimpleNamespace(host="127.0.0.1", port=server.port)
        assert get(local, "/health", Host="192.0.2.1")[0] == 200
        assert get(local, "/health", Host="pykv.example")[0] == 200
        assert get(local, "/health", Host="evil.example")[0] == 421


def test_unknown_host_name(tmp_path: Path) -> None:
    with pytest.raises(AdminError, match="is unknown"):
        start_admin(FakeClient(), host="no such host", port=0, state_dir=tmp_path)


@pytest.mark.parametrize(
    "data,status",
    [
        (b"\x00\xff\x00\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 40_000 + b"\r\n\r\n", b"431"),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n", b"400"),
        (
            b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n"
            + b"a" * 1_000_000,
            b"413",
        ),
    ],
)
def test_hostile_bytes_are_refused_and_the_service_goes_on(
    server: AdminServer, data: bytes, status: bytes
) -> None:
    answer = raw(server, data)
    assert answer == b"" or answer.split(b" ")[1] == status
    assert get(server, "/health")[0] == 200


def test_static_files_of_the_page_are_there(server: AdminServer) -> None:
    for name in ("pykv.css", "icon.svg", "js/main.js", "js/api.js", "js/chart.js", "js/tuning.js"):
        status, body = get(server, f"/static/{name}")
        assert status == 200 and body


class Engine:
    """The calls of `_core.Engine` that the in-process client makes."""

    def __init__(self) -> None:
        self.calls: list[object] = []

    def snapshot(self) -> dict[str, object]:
        return {"number": 1}

    def set_watermarks(self, low: float, high: float) -> None:
        self.calls.append((low, high))

    def set_limits(self, **limits: int) -> None:
        self.calls.append(limits)


def test_in_process_client_passes_everything_on() -> None:
    engine = Engine()
    options = SimpleNamespace(cache_type_k="f16", cache_type_v="q8_0", threads=2)
    client = InProcessClient(SimpleNamespace(engine=engine, model_id="m", options=options))
    assert client.snapshot() == {"number": 1}
    client.set_watermarks(0.1, 0.2)
    client.set_limits(parallel=3)
    assert engine.calls == [(0.1, 0.2), {"parallel": 3}]
    assert client.config_info() == {
        "model": "m", "cache_type_k": "f16", "cache_type_v": "q8_0", "threads": "2",
    }  # fmt: skip
    assert set(client.build_info()) == {"version", "compiler", "build_type", "backend"}
