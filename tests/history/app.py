"""What black-box tests serve: kafkasse with each setting that holds for all streams, and perhaps one fault in it."""

from __future__ import annotations

import logging
import os
from typing import Any

from flask import Flask

from kafkasse import blueprint
from kafkasse.config import Config
from tests.history import mutants

MUTANT_VARIABLE = "KAFKASSE_TEST_MUTANT"
HIDDEN = "hide"  # a message that holds this word does not pass the filter


def shows(message: Any) -> bool:
    """The filter."""
    return HIDDEN not in str(message)


def create() -> Flask:
    """The app, with the fault that the environment names."""
    if mutant := os.environ.get(MUTANT_VARIABLE):
        mutants.MUTANTS[mutant]()
    logging.getLogger("kafkasse").setLevel(
        logging.ERROR
    )  # a line for each record that a format skips is a thousand here
    app = Flask(__name__)
    for name, more in {"plain": {}, "filtered": {"filterer": shows}, "sparse": {"id_frequency": "run"}}.items():
        app.register_blueprint(blueprint(Config.load(**more), name=name), url_prefix=f"/{name}")
    app.add_url_rule("/-/done", view_func=lambda: dict(mutants.done))
    return app
