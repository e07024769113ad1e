"""Certificates of servers: which authorities are trusted, and what is wrong with one."""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator

from ...errors import StoreError

CA_VARIABLE = "SPECTUNE_CA_FILE"


def trusted() -> ssl.SSLContext | bool:
    """Return the authorities to trust: those of a file that `CA_VARIABLE` names, too; StoreError if it holds none."""
    file = os.environ.get(CA_VARIABLE)
    if not file:
        return True
    context = ssl.create_default_context()
    try:
        context.load_verify_locations(cafile=file)
    except (OSError, ssl.SSLError) as error:
        raise StoreError(f"{CA_VARIABLE} names {file}, which holds no certificates ({error}); correct it") from error
    return context


def tls_fault(error: BaseException) -> str | None:
    """Return what is wrong with a certificate or with TLS, and what to do; None where an error is another."""
    for cause in _causes(error):
        if isinstance(cause, ssl.SSLCertVerificationError):
            advice = f"set {CA_VARIABLE} to the file of its authority, or mend the certificate"
            return f"its certificate is not valid here: {cause.verify_message}; {advice}"
        if isinstance(cause, ssl.SSLError) and not isinstance(cause, ssl.SSLEOFError):
            return f"no TLS with it ({cause.reason}); check whether it is an https:// service"
    return None


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
