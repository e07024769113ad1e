"""What a service listens on and shows: whatever is wrong with it shows before it starts."""

from __future__ import annotations

import errno
import socket
import ssl
from pathlib import Path

from ..errors import RequestError

NOT_HERE = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)  # an address of a name that this machine does not have, e.g. ::1


def listening_sockets(host: str, port: int) -> list[socket.socket]:
    """Return a socket listening at each address of a host; RequestError where it is taken or not allowed."""
    opened: list[socket.socket] = []
    try:
        found = [(each[0], each[4]) for each in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
        for family, address in dict.fromkeys(found):  # a hosts file may name one twice
            try:
                opened.append(socket.create_server(address, family=family))
            except OSError as error:
                if error.errno not in NOT_HERE:
                    raise
        if not opened:
            raise OSError(errno.EADDRNOTAVAIL, "it is no address of this machine")
    except OSError as error:
        for each in opened:
            each.close()
        why = (error.strerror or str(error)).partition(" (while")[0]
        raise RequestError(
            f"cannot listen on {host}, port {port}: {why}; give another --port or --host, or end what listens there"
        ) from error
    return opened


def require_certificate(certificate: Path, key: Path) -> None:
    """Raise RequestError where two files give no TLS: no PEM, not belonging together, or with a passphrase."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password=_no_passphrase)
    except (ssl.SSLError, OSError) as error:
        raise RequestError(
            f"no TLS with the certificate {certificate} and the key {key} ({error}); give two PEM files that belong "
            "together as --tls-cert and --tls-key"
        ) from error


def _no_passphrase() -> str:
    """Answer OpenSSL's question at the terminal, which no person of a service could."""
    raise RequestError("the key of --tls-key is encrypted; give one without a passphrase")
