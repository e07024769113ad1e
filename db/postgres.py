"""PostgreSQL as a store: a connection whose other side is gone is noticed within seconds, and writers take turns."""

from __future__ import annotations

import hashlib
from typing import Any

from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.engine import URL
from sqlalchemy.orm import Session

LIBPQ_DRIVERS = ("psycopg", "psycopg2")
NOTICE: dict[str, int] = {  # libpq's names; what a URL says goes first
    "connect_timeout": 5,  # s
    "keepalives": 1,
    "keepalives_idle": 5,  # s without a word, then the other side is asked whether it is there
    "keepalives_interval": 2,  # s
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,  # ms until what was sent must have arrived
}
ALONE = text("SELECT pg_advisory_xact_lock(:number)")
TOGETHER = text("SELECT pg_advisory_xact_lock_shared(:number)")
SESSION: dict[str, int] = {  # the server's names: a client that is gone must not keep its turn
    "tcp_keepalives_idle": 30,  # s
    "tcp_keepalives_interval": 5,  # s
    "tcp_keepalives_count": 3,
    "idle_in_transaction_session_timeout": 600_000,  # ms; a process that is stopped answers keepalives
}


def postgres_engine(url: URL) -> Engine:
    """Return an engine whose connections do not long outlive their other side.

    A silent server is noticed after about 10 s, a client after 45 s. A server that answers on the network but does
    nothing is waited for: it looks like a busy one.
    """
    is_libpq = url.get_driver_name() in LIBPQ_DRIVERS
    arguments = {name: value for name, value in NOTICE.items() if is_libpq and name not in url.query}
    engine = create_engine(url, pool_pre_ping=True, connect_args=arguments)
    event.listen(engine, "connect", _set_up)
    return engine


def _set_up(connection: Any, _record: Any) -> None:  # Any: what the driver hands over has no common type
    cursor = connection.cursor()
    cursor.execute("; ".join(f"SET {name} = {value}" for name, value in SESSION.items()))
    cursor.close()
    connection.commit()


def wait_for_turn(session: Session, *names: str, is_shared: bool = False) -> None:
    """Lock these names until the transaction ends; writers of the same names wait, but sharers not for each other."""
    if session.connection().dialect.name == "postgresql":
        digest = hashlib.sha256("\0".join(("spectune", *names)).encode()).digest()
        number = int.from_bytes(digest[:8], "big", signed=True)
        session.connection().execute(TOGETHER if is_shared else ALONE, {"number": number})
