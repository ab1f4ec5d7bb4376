"""What gunicorn serves in a soak: kafkasse as wsgi.py has it, once more behind a filter, and a look inside."""

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

TYPES_SHOWN_MAX = 40


def create() -> Flask:
    """The app; `/-/inside` shows what no metric of kafkasse's does."""
    app = create_app()
    app.register_blueprint(kafkasse.blueprint(Config.load(filterer=shows), name="filtered"), url_prefix="/filtered")
    app.add_url_rule("/-/inside", view_func=inside)
    return app


def inside() -> object:
    """Greenlets that live, and the objects that the garbage collector knows, by type: a leak is one of these."""
    objects = gc.get_objects()
    types = Counter(f"{type(each).__module__}.{type(each).__qualname__}" for each in objects)
    greenlets = sum(isinstance(each, greenlet) and not each.dead for each in objects)
    return jsonify(greenlets=greenlets, objects=len(objects), types=dict(types.most_common(TYPES_SHOWN_MAX)))


app = create()
