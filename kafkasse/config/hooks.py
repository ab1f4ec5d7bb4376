"""The hooks: functions of the application that kafkasse calls. They can be set only in code."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kafkasse.config.names import suggestion

if TYPE_CHECKING:  # so that `kafkasse load` does not import the encoder
    from kafkasse.records.frame import Deserializer, Filterer

KAFKA_EVENTS = ("ready", "disconnected", "event.error")


@dataclass(frozen=True, kw_only=True)
class Hooks:
    """KafkaSSE's hooks as plain callables.

    Attributes:
        deserializer: converts a record (frame.TopicRecord) to a message. If it raises, the record is skipped. Text is sent
            as it is, anything else as JSON.
        filterer: receives the message and returns whether to send it. If it raises, the stream ends.
        on_connect_error: receives the error (errors.KafkasseError) of a request that gets no stream. If it returns a value
            other than None, that value is the response.
        kafka_event_handlers: functions by KafkaSSE's event names. `ready` and `disconnected` receive the stream's topics,
            `event.error` receives the exception.
        logger: receives the log messages about streams.
    """

    deserializer: Deserializer | None = None
    filterer: Filterer | None = None
    on_connect_error: Callable[[Exception], Any] | None = None
    kafka_event_handlers: Mapping[str, Callable[[Any], object]] = field(default_factory=dict)
    logger: logging.Logger = field(default_factory=lambda: logging.getLogger("kafkasse"))


NAMES = frozenset(Hooks.__dataclass_fields__)


def problems(hooks: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence for each hook that cannot work."""
    for name in ("deserializer", "filterer", "on_connect_error"):
        if (hook := hooks.get(name)) is not None and not callable(hook):
            yield f"The argument {name} must be a function, not {_type_of(hook)}. Example: {name}=lambda …: …"
    handlers = hooks.get("kafka_event_handlers", {})
    if isinstance(handlers, Mapping):
        yield from _problems_of_handlers(handlers)
    else:
        yield f"The argument kafka_event_handlers must be a mapping, not {_type_of(handlers)}. Example: {{'ready': print}}"
    if "logger" in hooks and not isinstance(hooks["logger"], logging.Logger | logging.LoggerAdapter):
        yield f"The argument logger must be a logger, not {_type_of(hooks['logger'])}. Example: logging.getLogger('shop')"


def _problems_of_handlers(handlers: Mapping[str, Any]) -> Iterator[str]:
    for name, handler in handlers.items():
        where = f"The argument kafka_event_handlers[{name!r}]"
        if name not in KAFKA_EVENTS:
            close = suggestion(str(name), KAFKA_EVENTS)
            yield f"{where} is not an event{close if '?' in close else ': the events are ' + ', '.join(KAFKA_EVENTS)}"
        elif not callable(handler):
            yield f"{where} must be a function, not {_type_of(handler)}. Example: {{{name!r}: print}}"


def _type_of(value: object) -> str:
    return f"a value of type {type(value).__name__}"
