"""The Kafka clusters of the routes: their feeds, and whether they answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import chain
from typing import Any

from flask import request
from gevent.lock import BoundedSemaphore

from kafkasse.config import Config
from kafkasse.config.kafka import servers
from kafkasse.errors import KafkasseError, ServerStopping
from kafkasse.feed.feeds import Feeds, ring_limits
from kafkasse.log import Log
from kafkasse.process import runtime
from kafkasse.process.open_streams import OPERATIONS_KEY, streams
from kafkasse.route import is_pattern
from kafkasse.web.observer import Observer
from kafkasse.web.wsgi_server import WsgiServer

MAX_STATE_AGE_S = 1.0  # of the state of a cluster for operators
MISSING = (
    "%s names the topic %s, which does not exist in Kafka at %s, or is not readable. Requests for this topic get 404. Check"
    " the address, the name, topic_prefix and the ACLs of the Kafka user: kafkasse topics lists the topics."
)


class Clusters:
    """The clusters of one blueprint.

    Args:
        open_log: opens the log of a cluster. The first request calls it, because importing an app must not connect to Kafka.
    """

    def __init__(self, config: Config, open_log: Callable[[str], Log], observer: Observer, server: WsgiServer) -> None:
        self._config = config
        self._open_log = open_log
        self._observer = observer
        self._server = server
        self._feeds: dict[str, Feeds] = {}  # by cluster
        self._locks = {route.cluster: BoundedSemaphore() for route in config.routes}
        self._names = sorted({route.cluster for route in config.routes if route.topics or route.allowed})
        self._ring_limits = ring_limits(config.feed)
        self._is_ready = False  # whether a cluster has answered; see check_ready()

    def feeds(self, cluster: str, environ: Mapping[str, Any]) -> Feeds:
        """Return the feeds of a cluster. A cluster that cannot be opened does not delay the routes of another one."""
        with self._locks[cluster]:
            if cluster not in self._feeds:
                feeds = Feeds(self._open_log(cluster), self._config.feed, limits=self._ring_limits)
                self._feeds[cluster] = feeds
                self._observer.observe(feeds, has_worker=OPERATIONS_KEY in environ)
            return self._feeds[cluster]

    def check_ready(self) -> None:
        """Check that this worker is not stopping, and that a Kafka cluster has answered a worker of this gunicorn once.

        Later failures of Kafka do not count. They affect all processes, so a platform would remove all of them at once, and
        clients would get the platform's errors instead of ours. A worker that starts while Kafka is down is ready, too,
        because a probe may reach any worker. With several clusters, one that cannot be reached must not affect the routes of
        the others.

        Raises:
            ServerStopping: the process is stopping.
            KafkasseError: no cluster has answered yet. The error is that of the last cluster.
        """
        if streams.stopping:
            raise ServerStopping("This server is stopping. Retry after 1 s.", retry_after_s=1)
        self._is_ready = self._is_ready or runtime.is_ready()
        failure: KafkasseError | None = None
        for _, failure in () if self._is_ready else self._reach(request.environ):
            if failure is None:
                return
        if failure is not None:
            raise failure

    def states(self) -> list[dict[str, str]]:
        """Return the state of each cluster: `reachable`, or `unavailable` with the reason."""
        return [
            {"name": cluster, "state": "unavailable", "detail": failure.detail}
            if failure
            else {"name": cluster, "state": "reachable", "detail": ""}
            for cluster, failure in self._reach(request.environ)
        ]

    def reach(self) -> None:
        """Connect to Kafka before the first request, and log which topics of the routes are missing.

        The adapter logs which clusters cannot be reached, and why.
        """
        for _ in self._reach({OPERATIONS_KEY: False}, self._log_missing):
            pass

    def _log_missing(self, cluster: str, existing: set[str]) -> None:
        address = servers(self._config.kafka_settings(cluster))
        for route in self._config.routes:
            if route.cluster == cluster:
                where = f"The route {route.name}" if route.topics else "allowed_topics or topic_groups"
                named = route.topics or chain(route.allowed, *(topics for _, topics in route.groups))
                for topic in dict.fromkeys(named):
                    if topic not in existing and not is_pattern(topic):
                        self._config.hooks.logger.warning(MISSING, where, topic, address)

    def _reach(
        self, environ: Mapping[str, Any], on_names: Callable[[str, set[str]], object] = lambda *_: None
    ) -> Iterator[tuple[str, KafkasseError | None]]:
        """Yield the name of each cluster, and the error if it does not answer. Pass its topics to `on_names`."""
        run = self._server.runner(environ)
        for cluster in self._names:
            failure = None
            try:
                on_names(cluster, run(partial(self._topic_names, cluster, environ)))
                self._is_ready = True
                runtime.set_ready()
            except KafkasseError as error:
                failure = error
            yield cluster, failure

    def _topic_names(self, cluster: str, environ: Mapping[str, Any]) -> set[str]:
        return self.feeds(cluster, environ).topic_names(MAX_STATE_AGE_S)
