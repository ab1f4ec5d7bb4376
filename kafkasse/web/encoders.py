"""The encoders of one blueprint. Streams with the same encoder share a feed, so equal requests get the same encoder."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakValueDictionary

from kafkasse.config import Config
from kafkasse.feed.slots import has_its_share, no_place
from kafkasse.process.event_loop import take_turn
from kafkasse.records.absent_parts import CHECKED_RECORDS, AbsentParts, has_member, has_value
from kafkasse.records.encoder import Encoder
from kafkasse.records.filter import Selection
from kafkasse.records.frame import Projection, Wire
from kafkasse.records.frame.record_view import RecordView
from kafkasse.route import Route

if TYPE_CHECKING:  # its packages are optional
    from kafkasse.records.registry.lookup import SchemaRegistry

ABSENT = (
    f"The route %s names parts that none of its first {CHECKED_RECORDS} records has: %s."
    " Check the spelling, unless other records have them."
)

DropIdle = Callable[[Iterable[Encoder]], Encoder | None]


class Encoders:
    """Creates an encoder for each combination of a route, a wire format and a filter that is in use."""

    def __init__(
        self,
        config: Config,
        on_skipped: Callable[[str, int, int, str, str], None],
        registries: Mapping[str, SchemaRegistry],
    ) -> None:
        self._config = config
        self._on_skipped = on_skipped
        self._decoders = _decoders(config, registries)
        self._absent = {route.name: self._absent_of(route) for route in config.routes}
        # Weak references, so that an unused encoder is freed: clients can request any number of different filters.
        self._encoders: WeakValueDictionary[tuple[Hashable, ...], Encoder] = WeakValueDictionary()
        self._of_clients: WeakKeyDictionary[Encoder, str] = WeakKeyDictionary()  # the address whose query caused it

    def get(self, route: Route, wire: Wire, selection: Selection, address: str, drop_idle: DropIdle) -> Encoder:
        """Return the encoder for a selection of a route in a wire format.

        Args:
            drop_idle: drops the feeds of one of these encoders if it has no readers, and returns it.

        Raises:
            TooManySelections: this address uses half of the different filters (max_client_filters).
            ServerFull: all clients together use too many of them.
        """
        key = route.name, type(wire), selection.filter, selection.dimensions
        encoder = self._encoders.get(key)
        is_new_filter = selection.is_of_client and encoder not in self._of_clients
        if is_new_filter:
            self._make_room(address, drop_idle)
        if encoder is None:
            encoder = self._encoders[key] = self._create(route, wire, selection)
        if is_new_filter:
            self._of_clients[encoder] = address
        return encoder

    def _make_room(self, address: str, drop_idle: DropIdle) -> None:
        """While the address has its share of max_client_filters, drop an idle encoder. Raise an error if none is idle."""
        limit = self._config.web.max_client_filters
        while has_its_share(address, owners := list(self._of_clients.values()), limit):
            if (idle := drop_idle(list(self._of_clients))) is None:
                raise no_place(address, owners, limit, "different filters (max_client_filters)")
            del self._of_clients[idle]

    def _create(self, route: Route, wire: Wire, selection: Selection) -> Encoder:
        hooks = self._config.hooks
        in_topic, in_stream = self._absent[route.name]
        return Encoder(
            route.format,
            wire,
            hooks.deserializer,
            hooks.filterer,
            self._on_skipped,
            id_frequency=self._config.web.id_frequency,
            decoder=self._decoders.get(route.name),
            filter=selection.filter,
            dimensions=selection.dimensions,
            projection=Projection(route.fields, route.redact) if route.fields or route.redact else None,
            clock=time.monotonic,
            take_turn=take_turn,
            absent_in_topic=in_topic,
            absent_in_stream=in_stream,
        )

    def _absent_of(self, route: Route) -> tuple[AbsentParts, AbsentParts]:
        """Return the checks of what `where` names in all records, and of what `fields` and `redact` name in those sent."""
        hooks, is_json = self._config.hooks, route.name not in self._decoders
        conditions = {
            f"where.{part.source}s: {part.name}": has_value(part)
            for part in sorted(route.where.headers_and_fields)
            if is_json or part.source == "header"
        }
        projected = [("fields", path) for path in route.fields] + [("redact", path) for path in route.redact]
        is_checked = is_json and hooks.deserializer is None  # otherwise, they apply to what the deserializer returns
        members = {f"{setting}: {path}": has_member(path) for setting, path in projected if is_checked}

        def warn(absent: list[str]) -> None:
            hooks.logger.warning(ABSENT, route.name, ", ".join(absent))

        return AbsentParts(conditions, warn), AbsentParts(members, warn)


def _decoders(config: Config, registries: Mapping[str, SchemaRegistry]) -> dict[str, Callable[[RecordView], Any]]:
    """Return the decoders of the routes whose values are not JSON, by the name of the route."""
    if not registries:
        return {}
    from kafkasse.records.registry.decoder import Decoder  # its packages are optional

    return {
        route.name: Decoder(registries[route.cluster], route.validate_values)
        for route in config.routes
        if route.decoder == "registry"
    }
