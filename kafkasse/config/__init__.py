"""The configuration: typed settings, hooks and routes, from a file, the environment and code.

schemas/config.schema.json defines all settings. A setting in code overrides the environment, the environment overrides the
file, and the file overrides the defaults. Importing this package reads no configuration. The package opens no connection.

    sources   reads the file (with yaml_file), the environment and the arguments, and remembers where each value comes from
    check     validates the values; uses names (suggestions for unknown names) and messages (the words of errors)
    rules     checks settings that depend on each other; uses kafka (kafka-python's settings)
    routes    creates the routes
    times     start times, such as -15m
    hooks     the functions of the application that kafkasse calls
    whole_topics  finds personal routes whose visitors can read the whole topic on another route
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from kafkasse import config_file
from kafkasse.config import check, hooks, kafka, messages, sources
from kafkasse.config.hooks import Hooks
from kafkasse.errors import ConfigurationError
from kafkasse.settings import (
    AccessSettings,
    FeedSettings,
    KafkaSettings,
    RouteSettings,
    SchemaRegistrySettings,
    WebSettings,
)

if TYPE_CHECKING:
    from kafkasse.route import Route

__all__ = ["Config", "Effective", "Hooks"]

MAX_PROBLEMS_SHOWN = 20
NOTHING_TO_SERVE = (
    "There is nothing to serve: neither allowed_topics nor routes are set. "
    'Example: allowed_topics: [orders, "events.*"] in the file, or KAFKASSE_ALLOWED_TOPICS=orders,events.*'
)

_TYPES: Mapping[str, Any] = {
    "kafka": KafkaSettings,
    "feed": FeedSettings,
    "web": WebSettings,
    "route": RouteSettings,
    "access": AccessSettings,
}


class Effective(NamedTuple):
    """An effective setting and its source. Secrets in `value` are masked."""

    name: str
    value: Any
    source: str


@dataclass(frozen=True, init=False)
class Config:
    """A valid configuration. The arguments are settings and hooks: `Config(allowed_topics=["events.*"], filterer=...)`.

    Raises:
        ConfigurationError: one sentence for each problem, with the source, the value and an example.
    """

    kafka: KafkaSettings
    feed: FeedSettings
    web: WebSettings
    route: RouteSettings
    access: AccessSettings
    hooks: Hooks = field(repr=False)
    _layer: sources.Layer = field(repr=False, compare=False)

    def __init__(self, **settings_and_hooks: Any) -> None:
        self._fill([], settings_and_hooks)

    @classmethod
    def load(
        cls, environ: Mapping[str, str] | None = None, file: Path | str | None = None, **settings_and_hooks: Any
    ) -> Config:
        """Read settings from a YAML file, the environment and the arguments. Later sources override earlier ones.

        Args:
            environ: the environment; os.environ if omitted.
            file: a YAML file of settings; the file that KAFKASSE_CONFIG names if omitted.
            settings_and_hooks: as for Config(). Arguments that are None are ignored.

        Raises:
            ConfigurationError: see Config.
        """
        environ = os.environ if environ is None else environ
        path = file or environ.get(config_file.VARIABLE)
        layers = [sources.file(Path(path))] if path else []
        config = cls.__new__(cls)
        given = {name: value for name, value in settings_and_hooks.items() if value is not None}
        config._fill([*layers, sources.environment(environ)], given)
        return config

    def _fill(self, layers: list[sources.Layer], settings_and_hooks: Mapping[str, Any]) -> None:
        given_hooks = {name: value for name, value in settings_and_hooks.items() if name in hooks.NAMES}
        settings = {name: value for name, value in settings_and_hooks.items() if name not in hooks.NAMES}
        layer = sources.merged(*layers, sources.arguments(settings))
        if problems := [*layer.problems, *check.problems(layer), *hooks.problems(given_hooks)]:
            raise ConfigurationError(_report(problems))
        typed = {name: _typed(settings_class, layer.values) for name, settings_class in _TYPES.items()}
        for name, value in {**typed, "hooks": Hooks(**given_hooks), "_layer": layer}.items():
            object.__setattr__(self, name, value)

    @cached_property
    def routes(self) -> tuple[Route, ...]:
        """The named routes and then the open route, /{topics}."""
        # Imported here, so that `kafkasse load` does not import the modules that routes need.
        from kafkasse.config.routes import routes

        return routes(self.route)

    def warnings(self) -> Iterator[str]:
        """Yield a sentence for each setting that is valid, but probably a mistake."""
        from kafkasse.config import whole_topics  # imported here for the same reason as in routes()

        yield from whole_topics.warnings(self.routes)
        for route in self.routes:
            if route.access and self.route.routes.get(route.name, {}).get("shared_cache_s"):
                reason = "caches never store chunks of a route with guards"
                yield f"routes.{route.name}.shared_cache_s has no effect, because {reason}: remove it."
        for cluster in ("", *self.kafka.clusters):
            if setting := kafka.unused(self.kafka_settings(cluster)):
                where = f"clusters.{cluster}" if cluster else "kafka"
                remedy = f"Add this setting, or remove {setting}."
                yield f"{where}.{setting} has no effect without sasl_mechanism: OAUTHBEARER. {remedy}"

    def archive(self, cluster: str = "") -> str:
        """Return the directory of the archive of a cluster, or "" if there is none."""
        return self.feed.archives.get(cluster, "") if cluster else self.feed.archive

    def schema_registry(self, cluster: str = "") -> SchemaRegistrySettings | None:
        """Return the settings of the schema registry of a cluster, or None if there is none."""
        given = self.route.schema_registries.get(cluster, self.route.schema_registry)
        return None if given is None else SchemaRegistrySettings(**given)

    def check_servable(self) -> None:
        """Check that there is something to serve, and that the configuration says who may read it.

        Raises:
            ConfigurationError: there are neither allowed topics nor routes, a route does not set its access, or a file of a
                guard cannot be read.
        """
        if not self.route.allowed_topics and not self.route.routes:
            raise ConfigurationError(NOTHING_TO_SERVE)
        if problems := check.problems_of_access(self._layer):
            raise ConfigurationError(_report(problems))
        from kafkasse.access import Guards  # imported here for the same reason as in routes()

        Guards(self.access.guards, self.hooks.logger)

    def web_of(self, route: Route) -> WebSettings:
        """Return the settings of kafkasse.web for a route, whose own settings override the general ones."""
        settings = self.route.routes.get(route.name, {})
        return replace(
            self.web,
            **{setting.name: settings[setting.name] for setting in fields(WebSettings) if setting.name in settings},
        )

    def kafka_settings(self, cluster: str = "") -> dict[str, Any]:
        """Return the arguments for a kafka-python client of a cluster: one of `clusters`, or "" for that of `kafka`.

        Certificates of Heroku's add-on become a TLS context.
        """
        return kafka.client_settings(self.kafka.clusters[cluster] if cluster else self.kafka.kafka)

    def topic_prefix(self, cluster: str) -> str:
        """Return the prefix that the topics have in a cluster."""
        return "" if cluster else self.kafka.topic_prefix

    def source(self, *path: str | int) -> str:
        """Return where a setting comes from, such as `kafkasse.yaml, line 3` for ("routes", "prices", "topics")."""
        return self._layer.source(path).text

    def effective(self) -> Iterator[Effective]:
        """Yield every setting with its source. Each setting inside `kafka` and `routes` is a separate item."""
        kafka_settings = {"bootstrap_servers": kafka.BOOTSTRAP_DEFAULT, **self.kafka.kafka}
        yield from self._effective((), {**self._layer.values, "kafka": kafka_settings})

    def _effective(self, path: sources.SettingPath, value: Any) -> Iterator[Effective]:
        if isinstance(value, Mapping) and value:
            for name, part in value.items():
                yield from self._effective((*path, name), part)
        else:
            yield Effective(".".join(map(str, path)), messages.masked(path, value), self._layer.source(path).text)


def _report(problems: list[str]) -> str:
    """Return one line for each problem, for at most MAX_PROBLEMS_SHOWN problems."""
    more = len(problems) - MAX_PROBLEMS_SHOWN
    return "\n".join(problems[:MAX_PROBLEMS_SHOWN] + ([f"There are {more} more problems."] if more > 0 else []))


def _typed(settings_class: Any, values: Mapping[str, Any]) -> Any:
    """Create a typed object from its settings in `values`, whose types have been checked. Lists become tuples."""
    settings = {setting.name: values[setting.name] for setting in fields(settings_class) if setting.name in values}
    return settings_class(
        **{name: tuple(value) if isinstance(value, list) else value for name, value in settings.items()}
    )
