"""A shop that shows its customers the status of their orders."""

from flask import Flask, render_template

import kafkasse
import login

app = Flask(__name__)
app.config.update(SESSION_COOKIE_SAMESITE="Lax")
app.config.from_prefixed_env()
app.register_blueprint(login.pages)

config = kafkasse.Config.load(
    guards={"customers": login.customer},
    routes={
        "orders": {
            "path": "/orders/{customer}",
            "topics": ["orders"],
            "format": "value",
            "start": "snapshot",
            "access": [{"guard": "customers", "claims": {"sub": ["{customer}"]}}],
            "where": {"fields": {"customer": "{customer}"}},
        }
    },
)
app.register_blueprint(kafkasse.blueprint(config), url_prefix="/streams")


@app.get("/")
@login.required
def orders():
    """Show the page. Its script reads the stream."""
    return render_template("orders.html")
