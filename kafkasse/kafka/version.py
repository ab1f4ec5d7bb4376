"""Check the installed version of kafka-python without importing it."""

from __future__ import annotations

from importlib import metadata

from kafkasse.errors import ConfigurationError

LOWEST = (3, 0, 9)
REQUIREMENT = "kafka-python>=3.0.9,<3.1"


def check_version() -> None:
    """Check that the installed kafka-python is one with which streams receive records.

    Raises:
        ConfigurationError: it is older. The message names the version and the command that replaces it.
    """
    installed = metadata.version("kafka-python")
    release = tuple(int(part) if part.isdigit() else 0 for part in installed.split(".")[:3])
    if release < LOWEST:
        raise ConfigurationError(
            f"kafka-python {installed} is installed, but kafkasse needs 3.0.9: with 3.0.6 and older versions, streams open "
            f"and receive no records. Run: pip install '{REQUIREMENT}'"
        )
