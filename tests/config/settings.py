"""Reads settings from text, as from a file."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from kafkasse.config import Config


def settings_of(config: Config) -> dict[str, Any]:
    return {
        name: list(value) if isinstance(value, tuple) else value
        for part in (config.kafka, config.feed, config.web)
        for name, value in asdict(part).items()
    }
