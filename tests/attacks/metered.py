"""gunicorn workers for attacks. Choose one with `--worker-class`."""

from __future__ import annotations

import os
from pathlib import Path

from kafkasse.server.worker import Worker as DefaultWorker
from tests.attacks.meter import VARIABLE, Meter


class Worker(DefaultWorker):
    def run(self) -> None:
        self._meter = Meter(Path(os.environ[VARIABLE]))
        super().run()


class Impatient(Worker):
    """Has a short timeout for responses, so that a test need not wait for two minutes."""

    write_timeout_s = 0.5
