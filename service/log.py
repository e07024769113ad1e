"""Logs for programs: one JSON object a line."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

LOGGER = logging.getLogger("spectune.service")
FACTS = "facts"  # attribute of a record: what it says besides its message


class JsonLines(logging.Formatter):
    """Writes a record as one JSON object on one line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line: dict[str, Any] = {"time": moment, "level": record.levelname.lower(), "message": record.getMessage()}
        line.update(getattr(record, FACTS, {}))
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def tell(message: str, *, level: int = logging.INFO, **facts: object) -> None:
    """Log an event and what belongs to it."""
    LOGGER.log(level, message, extra={FACTS: facts})


def log_to_stderr() -> None:
    """Write everything the service says as JSON lines to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    for name in ("spectune.service", "uvicorn", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(logging.INFO)
    logging.getLogger("uvicorn").handlers = []  # its children have one, and would be told twice
