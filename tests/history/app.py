"""The app of the black-box tests: kafkasse with several settings, and the fault that the environment names, if any."""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from typing import Any

from flask import Flask

from kafkasse import blueprint
from kafkasse.config import Config
from tests.history import mutants

MUTANT_VARIABLE = "HISTORY_MUTANT"
LIMITS = {
    "max_chunk_bytes": 2048,
    "max_ring_records": 40,
}  # so small that a client receives many chunks, and falls behind
HIDDEN = "hide"  # the filter drops messages that contain this word


def shows(message: Any) -> bool:
    return HIDDEN not in str(message)


def create() -> Flask:
    """Create the app. The environment names the mutant, if any."""
    if mutant := os.environ.get(MUTANT_VARIABLE):
        mutants.MUTANTS[mutant]()
    # A warning for each record that a format skips would be thousands of lines.
    logging.getLogger("kafkasse").setLevel(logging.ERROR)
    app = Flask(__name__)
    for name, more in {"plain": {}, "filtered": {"filterer": shows}, "run": {"id_frequency": "run"}}.items():
        config = Config.load(**more)
        object.__setattr__(config, "feed", replace(config.feed, **LIMITS))  # these are not settings
        app.register_blueprint(blueprint(config, name=name), url_prefix=f"/{name}")
    app.add_url_rule("/-/mutants", view_func=lambda: dict(mutants.applied))
    return app
