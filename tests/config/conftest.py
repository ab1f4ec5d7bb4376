"""Fixtures for configurations in files, and for the errors of configurations that are not valid."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from kafkasse import schemas
from kafkasse.config import Config
from kafkasse.errors import ConfigurationError


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        file = tmp_path / "kafkasse.yaml"
        file.write_text(text)
        return file

    return write


@pytest.fixture
def problems() -> Callable[..., list[str]]:
    """Load a configuration that is not valid, and return its problems."""

    def problems(environ: dict[str, str] | None = None, file: Path | None = None, **arguments: Any) -> list[str]:
        with pytest.raises(ConfigurationError) as rejected:
            Config.load(environ or {}, file, **arguments)
        return rejected.value.detail.splitlines()

    return problems


def settings_of(config: Config) -> dict[str, Any]:
    return {
        name: list(value) if isinstance(value, tuple) else value
        for part in (config.kafka, config.feed, config.web)
        for name, value in asdict(part).items()
        if name in schemas.read("config")["properties"]  # and not a constant
    }
