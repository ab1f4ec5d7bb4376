"""The lines of the log, as text or as JSON. Text from clients cannot forge a line in either format."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from typing import Any

from kafkasse.process.log_line import Fields, one_line

VARIABLE = "KAFKASSE_LOG_FORMAT"
MAX_CHARS = 8_000  # of a message
TEXT_FORMAT = "[%(asctime)s] [%(process)d] [%(levelname)s] %(name)s: %(message)s"
ACCESS_LOGGER = "gunicorn.access"
# The members of a JSON line of the access log, and gunicorn's names of them.
ACCESS_FIELDS = {
    "client": "h",
    "method": "m",
    "path": "U",
    "status": "s",
    "bytes": "B",
    "duration_s": "L",
    "user_agent": "a",
    "request_id": "{x-request-id}o",
}


class TextFormatter(logging.Formatter):
    """Formats a record as one line, with an indented traceback below it."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = one_line(record.message, MAX_CHARS)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:
        lines = super().formatException(ei).splitlines()
        return "\n".join(f"  {one_line(line, MAX_CHARS)}" for line in lines)


class JsonFormatter(logging.Formatter):
    """Formats a record as one JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, Any] = {
            "time": f"{seconds}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "pid": record.process,
        }
        if record.name == ACCESS_LOGGER and isinstance(record.args, Mapping):
            atoms: Mapping[str, Any] = record.args
            line |= {name: atoms[atom] for name, atom in ACCESS_FIELDS.items()}
            line |= {"status": int(atoms["s"]), "duration_s": float(atoms["L"])}
        else:
            line["message"] = record.getMessage()
            if isinstance(record.args, Fields):
                line |= record.args
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def formatter(log_format: str) -> logging.Formatter:
    """Return the formatter of `text` or `json`."""
    return JsonFormatter() if log_format == "json" else TextFormatter(TEXT_FORMAT)
