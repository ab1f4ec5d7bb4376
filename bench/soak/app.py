"""The app for a soak test: the app of wsgi.py, the same streams with a filter, and a page with internal counts."""

from gevent import monkey

monkey.patch_all()

import gc  # noqa: E402
from collections import Counter  # noqa: E402

from flask import Flask, jsonify  # noqa: E402
from greenlet import greenlet  # noqa: E402

import kafkasse  # noqa: E402
from bench.soak.records import shows  # noqa: E402
from kafkasse.app import create_app  # noqa: E402
from kafkasse.config import Config  # noqa: E402

MAX_TYPES_SHOWN = 40


def create() -> Flask:
    """Create the app. `/-/internals` shows counts that kafkasse's metrics lack."""
    app = create_app()
    app.register_blueprint(kafkasse.blueprint(Config.load(filterer=shows), name="filtered"), url_prefix="/filtered")
    app.add_url_rule("/-/internals", view_func=internals)
    return app


def internals() -> object:
    """Return the number of live greenlets, and of the objects that the garbage collector tracks, by type."""
    objects = gc.get_objects()
    types = Counter(f"{type(each).__module__}.{type(each).__qualname__}" for each in objects)
    greenlets = sum(isinstance(each, greenlet) and not each.dead for each in objects)
    return jsonify(greenlets=greenlets, objects=len(objects), types=dict(types.most_common(MAX_TYPES_SHOWN)))


app = create()
