"""A service behind a certificate of its own authority: trusted where that is named, and told plainly where not."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import closing
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

from spectune.db.remote.certificates import CA_VARIABLE
from spectune.db.remote.transport import Ask, Transport
from spectune.db.url import TOKEN_VARIABLE, service_url
from spectune.errors import StoreError

from ...support.faulty_service import FaultyService, served

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tls")
    file, key = folder / "certificate.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-days", "2"]
    subprocess.run([*command, *names, "-out", file, "-keyout", key], check=True, capture_output=True)
    return file, key


@pytest.fixture
def service(certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)

    def wrap(server: ThreadingHTTPServer) -> None:
        server.socket = context.wrap_socket(server.socket, server_side=True)

    with served(FaultyService(), prepare=wrap) as running:
        yield running.url.replace("http://127.0.0.1", "https://localhost")


def ask(url: str) -> int:
    with closing(Transport(service_url(url))) as transport:
        return transport.send(Ask(method="GET", path="/v1")).status


def test_an_unknown_authority_is_not_trusted_and_that_is_told(service: str) -> None:
    with pytest.raises(StoreError, match=r"cannot be trusted: its certificate is not valid here: self.signed.*CA_FILE"):
        ask(service)


def test_the_authority_that_is_named_is_trusted(
    service: str, certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CA_VARIABLE, str(certificate[0]))
    assert ask(service) == 200


def test_a_certificate_of_another_name_is_refused(
    service: str, certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CA_VARIABLE, str(certificate[0]))
    with pytest.raises(StoreError, match="cannot be trusted: its certificate is not valid here: IP address mismatch"):
        ask(service.replace("localhost", "127.0.0.1"))
