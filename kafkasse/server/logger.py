"""gunicorn's logger, with the log format that KAFKASSE_LOG_FORMAT names. gunicorn.conf.py selects it."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

from gunicorn import glogging

from kafkasse.process.telemetry import log_format


class Logger(glogging.Logger):  # type: ignore[misc]
    """Formats gunicorn's log, its access log and the log of all other modules in the same way."""

    def setup(self, cfg: Any) -> None:
        super().setup(cfg)
        chosen = os.environ.get(log_format.VARIABLE) or "text"
        formatter = log_format.formatter(chosen.lower())
        for logger in (self.error_log, logging.getLogger()):
            for handler in logger.handlers:
                handler.setFormatter(formatter)
        if isinstance(formatter, log_format.JsonFormatter):
            for handler in self.access_log.handlers:
                handler.setFormatter(formatter)

    def reopen_files(self) -> None:
        """Reopen the files after a rotation. If one cannot be opened, all stay open: an exception would end the master."""
        handlers = (*self.error_log.handlers, *self.access_log.handlers, *logging.getLogger().handlers)
        try:
            for handler in handlers:
                if isinstance(handler, logging.FileHandler):
                    Path(handler.baseFilename).open("a").close()
        except OSError as error:
            self.error("A file of the log cannot be opened, so the logs continue in the old files: %s", error)
        else:
            super().reopen_files()
