"""gunicorn's settings for kafkasse. `gunicorn -c gunicorn.conf.py wsgi:app`, the Procfile and `kafkasse serve` all use them.

gevent patches here, before anything imports ssl, sockets or kafka: importing kafka first hangs.
"""

from gevent import monkey

monkey.patch_all()

import logging  # noqa: E402
import os  # noqa: E402
import resource  # noqa: E402
from contextlib import suppress  # noqa: E402

bind = os.environ.get("KAFKASSE_BIND") or f"0.0.0.0:{os.environ.get('PORT', '6917')}"
workers = int(os.environ.get("WEB_CONCURRENCY", "1"))
worker_class = "kafkasse.server.worker.Worker"
worker_connections = 10_000  # that a worker answers at a time; streams that wait do not count, but for max_streams
timeout = 60  # a worker whose loop has not turned for so long is dead; streams may last for ever
graceful_timeout = 10  # streams end themselves within two seconds of SIGTERM
keepalive = 5
limit_request_field_size = 65_536  # a Last-Event-ID of many partitions; kafkasse has its own, clearer limit below it
limit_request_line = 8_190
http_parser = "python"  # a compiled one that is there by chance has other bounds than those of docs/attacks.md
forwarder_headers = ""  # by default a proxy on this machine may pass on a client's SCRIPT_NAME, and so another path
control_socket_disable = True  # it would open a socket in the home folder, which a PaaS need not have
accesslog = os.environ.get("KAFKASSE_ACCESS_LOG") or None
loglevel = os.environ.get("KAFKASSE_LOG_LEVEL", "info")

# The usual soft limit is 1,024: past it clients would wait without an answer, in place of being told that we are full.
descriptors_max = 65_536
_soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
_most = descriptors_max if _hard == resource.RLIM_INFINITY else min(_hard, descriptors_max)
if 0 <= _soft < _most:
    with suppress(ValueError, OSError):  # a system may have a lower bound that it does not tell
        resource.setrlimit(resource.RLIMIT_NOFILE, (_most, _hard))

# gunicorn formats its own log alone. kafka-python says a hundred lines a second while a broker is away, so it is heard at
# the level debug only, where somebody looks for the reason that we cannot reach Kafka.
logging.basicConfig(level=logging.WARNING, format="[%(asctime)s] [%(process)d] [%(levelname)s] %(name)s: %(message)s")
logging.getLogger("kafka").propagate = loglevel == "debug"
