"""A worker with a short timeout for responses, so that a test need not wait for two minutes."""

from __future__ import annotations

from kafkasse.server.worker import Worker as DefaultWorker


class Worker(DefaultWorker):
    """Chosen with `--worker-class tests.attacks.impatient.Worker`."""

    write_timeout_s = 0.5
