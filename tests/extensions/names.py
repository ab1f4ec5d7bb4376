"""What the tests share with the apps of tests/extensions/app.py. This module does not import the extensions."""

ORIGIN = "https://shop.example"
# The apps whose extension does not change the body of a stream.
UNCHANGED = (
    "both_cors", "compress", "cors", "lazy", "limiter", "login", "otel_flask", "otel_wsgi", "plain", "prometheus",
    "proxy_fix", "sessions", "sqlalchemy", "talisman",
)  # fmt: skip
