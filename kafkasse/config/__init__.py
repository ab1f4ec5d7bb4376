"""The configuration: typed settings, hooks and routes, from a file, the environment and code.

schemas/config.schema.json defines all settings. Later sources win: defaults, file, environment, code. Importing this package
reads nothing, and nothing here opens a connection. The modules: `settings` has the typed objects, `sources` reads the
sources, `check` and `names` find mistakes, `kafka` has the settings of kafka-python's client, `hooks` the hooks.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from kafkasse.config import check, hooks, kafka, sources
from kafkasse.config.hooks import Hooks
from kafkasse.config.names import FILE_VARIABLE
from kafkasse.config.settings import FeedSettings, KafkaSettings, RouteSettings, WebSettings
from kafkasse.errors import ConfigurationError

if TYPE_CHECKING:
    from kafkasse.route import Route

__all__ = ["FILE_VARIABLE", "Config", "Effective", "Hooks"]

PROBLEMS_SHOWN_MAX = 20
NOTHING_TO_SERVE = (
    "There is nothing to serve: neither allowed_topics nor routes are set. "
    'Example: allowed_topics: [orders, "events.*"] in the file, or KAFKASSE_ALLOWED_TOPICS=orders,events.*'
)

Settings = TypeVar("Settings", KafkaSettings, FeedSettings, WebSettings, RouteSettings)


class Effective(NamedTuple):
    """A setting as it is in effect. Secrets in `value` are masked."""

    name: str
    value: Any
    source: str


@dataclass(frozen=True, init=False)
class Config:
    """A checked configuration. `Config(allowed_topics=["events.*"], filterer=...)` takes settings and hooks alike.

    Raises:
        ConfigurationError: one sentence for each problem, with the source, the value and an example.
    """

    kafka: KafkaSettings
    feed: FeedSettings
    web: WebSettings
    route: RouteSettings
    hooks: Hooks = field(repr=False)
    _layer: sources.Layer = field(repr=False, compare=False)

    def __init__(self, **settings_and_hooks: Any) -> None:
        self._fill([], settings_and_hooks)

    @classmethod
    def load(
        cls, environ: Mapping[str, str] | None = None, file: Path | str | None = None, **settings_and_hooks: Any
    ) -> Config:
        """Read settings from a YAML file, then the environment, then the arguments.

        Args:
            environ: the environment; os.environ if omitted.
            file: a YAML file of settings; the file that KAFKASSE_CONFIG names if omitted.
            settings_and_hooks: as for Config(); None means not given.
        """
        environ = os.environ if environ is None else environ
        path = file or environ.get(FILE_VARIABLE)
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
        for name, value in (
            ("kafka", _typed(KafkaSettings, layer.values)),
            ("feed", _typed(FeedSettings, layer.values)),
            ("web", _typed(WebSettings, layer.values)),
            ("route", _typed(RouteSettings, layer.values)),
            ("hooks", Hooks(**given_hooks)),
            ("_layer", layer),
        ):
            object.__setattr__(self, name, value)

    @cached_property
    def routes(self) -> tuple[Route, ...]:
        """The named routes and then the open route, /{topics}."""
        # Imported here, because `kafkasse load` needs neither the routes nor their imports.
        from kafkasse.config.routes import routes

        return routes(self.route)

    def require_topics(self) -> None:
        """Raise ConfigurationError if there is nothing to serve: neither allowed topics nor routes."""
        if not self.route.allowed_topics and not self.route.routes:
            raise ConfigurationError(NOTHING_TO_SERVE)

    def kafka_settings(self) -> dict[str, Any]:
        """Return the arguments for a kafka-python client. Creates the TLS context for certificates of Heroku's add-on."""
        return kafka.client_settings(self.kafka.kafka)

    def source(self, *path: str | int) -> str:
        """Return where a setting comes from, such as `kafkasse.yaml, line 3` for ("routes", "prices", "topics")."""
        return self._layer.source(path).text

    def effective(self) -> Iterator[Effective]:
        """Yield every setting with its source, secrets masked. The settings of kafka and routes follow one by one."""
        kafka_settings = {"bootstrap_servers": kafka.BOOTSTRAP_DEFAULT, **self.kafka.kafka}
        yield from self._effective((), {**self._layer.values, "kafka": kafka_settings})

    def _effective(self, path: sources.SettingPath, value: Any) -> Iterator[Effective]:
        if isinstance(value, Mapping) and value:
            for name, each in value.items():
                yield from self._effective((*path, name), each)
        else:
            yield Effective(".".join(map(str, path)), check.masked(path, value), self._layer.source(path).text)


def _report(problems: list[str]) -> str:
    """Return one line for each problem, but not a screen full of them."""
    more = len(problems) - PROBLEMS_SHOWN_MAX
    return "\n".join(problems[:PROBLEMS_SHOWN_MAX] + ([f"There are {more} more problems."] if more > 0 else []))


def _typed(kind: type[Settings], values: Mapping[str, Any]) -> Settings:
    """Create a typed object of the settings that it names. The schema has checked the types; lists become tuples."""
    own: dict[str, Any] = {each.name: values[each.name] for each in fields(kind)}
    arguments: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in own.items()
    }
    return kind(**arguments)
