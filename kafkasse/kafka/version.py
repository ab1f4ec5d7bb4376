"""Check the installed version of kafka-python without importing it."""

from __future__ import annotations

from importlib import metadata

from kafkasse.errors import ConfigurationError

LOWEST = (3, 0, 8)
REQUIREMENT = "kafka-python>=3.0.8,<3.1"


def check_version() -> None:
    """Check that streams receive records, also over TLS, with the installed version of kafka-python.

    Raises:
        ConfigurationError: the version is older than LOWEST. The message names it and the command that replaces it.
    """
    installed = metadata.version("kafka-python")
    release = tuple(int(part) if part.isdigit() else 0 for part in installed.split(".")[:3])
    if release < LOWEST:
        raise ConfigurationError(
            f"kafka-python {installed} is installed, but kafkasse needs 3.0.8 or newer: 3.0.7 cannot be used "
            f"with TLS, and with older versions, streams open and receive no records. Run: pip install '{REQUIREMENT}'"
        )
