"""kafkasse's worker with less patience for clients that take nothing, so that a test need not wait for two minutes."""

from __future__ import annotations

from kafkasse.server.worker import Worker as Patient


class Worker(Patient):
    """Chosen by `--worker-class tests.attacks.impatient.Worker`."""

    write_timeout_s = 0.5
