"""A real server: under TLS, and never open to others than it should be."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner

from spectune.cli import main
from spectune.db.jobs.access import Tokens
from spectune.errors import RequestError
from spectune.service.server import Listening, listening_sockets, serve
from spectune.service.settings import ServiceSettings

from ..support.fresh_store import fresh_store

OPENSSL = shutil.which("openssl")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for this machine that nobody signed but its own key."""
    if OPENSSL is None:
        pytest.skip("there is no openssl to make a certificate with")
    folder = tmp_path_factory.mktemp("tls")
    key, made = folder / "key.pem", folder / "cert.pem"
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    command = [OPENSSL, "req", "-x509", *kind, *names, "-keyout", str(key), "-out", str(made)]
    subprocess.run(command, check=True, capture_output=True)
    return made, key


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def test_a_service_under_tls_answers_those_who_trust_its_certificate_and_ends_when_told(
    tmp_path: Path, certificate: tuple[Path, Path]
) -> None:
    made, key = certificate
    with fresh_store(tmp_path) as store:
        token = Tokens(store).create("me", "read")
    port = free_port()
    files = ["--tls-cert", str(made), "--tls-key", str(key)]
    where = ["--store", str(tmp_path / "store.db"), "--port", str(port), "--workers", "0"]
    server = subprocess.Popen(
        [sys.executable, "-m", "spectune", "serve", *where, *files], stderr=subprocess.PIPE, env={**os.environ}
    )
    try:
        with httpx.Client(verify=ssl.create_default_context(cafile=str(made))) as client:
            place = f"https://127.0.0.1:{port}"
            answer = first_answer(client, f"{place}/v1", {"Authorization": f"Bearer {token}"})
            assert answer.json()["api"] == 1
            assert client.get(f"{place}/v1").status_code == 401
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{place}/healthz")
    finally:
        server.send_signal(signal.SIGTERM)
        _, told = server.communicate(timeout=60)
    lines = told.decode().splitlines()
    assert any('"access": "a token is needed"' in line for line in lines)
    assert token not in told.decode()
    assert server.returncode in (0, -signal.SIGTERM)


def first_answer(client: httpx.Client, url: str, headers: dict[str, str]) -> httpx.Response:
    deadline_s = time.monotonic() + 60
    while True:
        try:
            return client.get(url, headers=headers)
        except httpx.ConnectError:
            assert time.monotonic() < deadline_s, "the server did not start"
            time.sleep(0.05)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"host": "0.0.0.0"}, "unencrypted"),
        ({"host": "example.org"}, "unencrypted"),
        ({"host": "0.0.0.0", "is_open": True}, "without tokens anybody"),
        ({"host": "0.0.0.0", "is_open": True, "is_behind_proxy": True}, "without tokens anybody"),
        ({"is_open": True, "is_behind_proxy": True}, "reaches the proxy"),
        ({"certificate": Path("cert.pem")}, "certificate and its key"),
        ({"certificate": Path("no such"), "key": Path("no such")}, "no file"),
    ],
)
def test_a_server_that_would_be_open_to_others_is_refused(options, told: str) -> None:
    with pytest.raises(RequestError, match=told):
        Listening(**options)


def test_a_port_in_use_is_told_in_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        where = ["serve", "--store", str(tmp_path / "store.db"), "--port", port, "--workers", "0"]
        result = CliRunner().invoke(main, where)
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
    assert result.stderr.startswith(f"Error: cannot listen on 127.0.0.1, port {port}: Address already in use;")


def test_an_address_that_a_host_has_twice_is_listened_on_once(monkeypatch: pytest.MonkeyPatch) -> None:
    address = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", free_port()))
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [address, address])
    (opened,) = listening_sockets("localhost", 0)
    with opened:
        assert opened.getsockname() == address[-1]


def test_a_certificate_that_is_none_is_told_in_one_line(tmp_path: Path) -> None:
    for name in ("cert.pem", "key.pem"):
        (tmp_path / name).write_text("no PEM")
    files = ["--tls-cert", str(tmp_path / "cert.pem"), "--tls-key", str(tmp_path / "key.pem")]
    result = CliRunner().invoke(main, ["serve", "--store", str(tmp_path / "store.db"), *files])
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
    assert result.stderr.startswith("Error: no TLS with the certificate")


def test_a_key_with_a_passphrase_is_told_in_one_line(tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    made, key = certificate
    locked = tmp_path / "locked.pem"
    assert OPENSSL is not None
    command = [OPENSSL, "pkcs8", "-topk8", "-in", str(key), "-out", str(locked), "-passout", "pass:secret"]
    subprocess.run(command, check=True, capture_output=True)
    files = ["--tls-cert", str(made), "--tls-key", str(locked)]
    result = CliRunner().invoke(main, ["serve", "--store", str(tmp_path / "store.db"), *files])
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "Error: the key of --tls-key is encrypted; give one without a passphrase\n"


@pytest.mark.parametrize("host", ["0.0.0.0", "127.0.0.1"])
def test_a_store_without_tokens_is_not_served_to_others(tmp_path: Path, host: str) -> None:
    fresh_store(tmp_path).close()
    listening = Listening(host=host, is_behind_proxy=True)
    with pytest.raises(RequestError, match="spectune token create"):
        serve(str(tmp_path / "store.db"), listening, ServiceSettings(workers=0))


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.0.0.2"])
def test_this_machine_alone_needs_neither_tls_nor_a_proxy(host: str) -> None:
    assert Listening(host=host, is_open=True).is_loopback
