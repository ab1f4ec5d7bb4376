"""A simulation with steps of other greenlets inside filters, after lookups, and between the pieces of a long computation.

The limits of a piece are so small that a few records make many pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from kafkasse.feed import backlog, tail
from kafkasse.feed.core import feed as feed_core
from kafkasse.feed.core import reader as reader_core
from kafkasse.feed.core.reader_states import CatchingUp, OpeningCursor, Waiting
from kafkasse.feed.tail import Tail
from kafkasse.records import encoder
from kafkasse.records.encoder import Encoder
from kafkasse.records.frame import JsonLines, ServerSentEvents
from kafkasse.records.position import IdType
from kafkasse.route import Route
from tests.history.checker import History
from tests.history.draws import Draws
from tests.history.simulation import TOPIC, Client
from tests.history.visitors import EVERYTHING, VISITORS, ChangingSimulation, PatternSimulation
from tests.support.turns import turns_given_by

TURNS_PER_MOVE = 7  # on average
PIECES = (encoder, "MAX_PIECE_RECORDS", 2), (reader_core, "MAX_PIECE_SEGMENTS", 2)
# A tail also sends between any two feeds.
LIMITS = *PIECES, (feed_core, "PARKED_CLIENTS_PER_TURN", 2), (tail, "MAX_UNSENT_S", -1.0)
SMALL_BACKLOG = (backlog, "MAX_BYTES", 2 * backlog.RECORD_BYTES)


class Interleaved(PatternSimulation):
    """A simulation in which any step may happen while another client, or the tail, is within a step.

    Args:
        hooked: whether a filter lets other greenlets run, like a filter that waits for I/O.
        is_backlog_small: whether the backlog of a feed with a filter overflows. No topics are created.
        is_json_lines: whether the clients read JSON lines. They have no event IDs, so no client reconnects.
    """

    _choices_of_clients = EVERYTHING, *VISITORS, EVERYTHING

    def __init__(
        self,
        draws: Draws,
        hooked: bool = False,
        is_backlog_small: bool = False,
        id_type: IdType = IdType.OFFSET,
        is_json_lines: bool = False,
        **settings: Any,
    ) -> None:
        self._is_nested = self._is_turning = True  # nothing else happens while the simulation is created
        self._busy: list[Client] = []
        self._id_type, self._is_json_lines, self._is_backlog_small = id_type, is_json_lines, is_backlog_small
        self._route = Route("topics", "/{topics}", (TOPIC, "events.*"), id_type=id_type)
        super().__init__(draws, **settings)
        self._feeds._slots._count = 2
        self._hook = {"filterer": lambda message: self.let_others_run() or True} if hooked else {}
        self._wire = JsonLines() if is_json_lines else ServerSentEvents()
        self._is_nested = self._is_turning = False

    def let_others_run(self, urgent: bool = False) -> None:
        """Give others a turn: sometimes make a move, but never within a move that was made here."""
        # In a recorded world, numbers that are missing are 0: then nothing happens.
        if not self._is_nested and self.draws.below(TURNS_PER_MOVE) == 1:
            self._is_nested = True
            self.tick()
            self.draws.choice(self._nested_moves())()
            self.tick()
            self._is_nested = False

    def _nested_moves(self) -> list[Callable[[], None]]:
        moves = [self.append, self.mark, self.turn, self.read, self.read, self.cut, self.cut_at_any_byte]
        moves += [self.heartbeat, self.drop, self.truncate, self.park, self.fill_socket, self.end]
        return [*moves, *self._more_moves()]

    def _more_moves(self) -> Iterable[Callable[[], None]]:
        return *super()._more_moves(), self.revoke

    def revoke(self) -> None:
        """Revoke the slot with which a client catches up. The client may be within a step."""
        states = [client.reader.core_state for client in self.clients if client.reader is not None]
        slots = [state.slot for state in states if isinstance(state, Waiting | OpeningCursor | CatchingUp)]
        if granted := [slot for slot in slots if slot.granted]:
            slot = self.draws.choice(granted)
            slot.revoked = True
            slot.on_revoke()

    def turn(self) -> None:
        if not self._is_turning:  # a tail has one greenlet
            self._is_turning = True
            super().turn()
            self._is_turning = False

    def _turn_to_end(self) -> None:
        with self._alone():  # others would move the end
            super()._turn_to_end()

    def _check_topics(self, tail: Tail) -> None:
        with self._alone():  # the turns after each partition would be most of all turns
            super()._check_topics(tail)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Give others no turns."""
        was_nested, self._is_nested = self._is_nested, True
        yield
        self._is_nested = was_nested

    def truncate(self) -> None:
        if not self._is_turning:  # the tail must notice it before a client returns
            super().truncate()

    def heartbeat(self) -> None:
        if not self._is_turning:
            self._is_turning = True
            super().heartbeat()
            self._is_turning = False

    def _some(self) -> Iterator[Client]:
        """Yield a client that is not within a step."""
        if free := [client for client in self.clients if client not in self._busy]:
            client = self.draws.choice(free)
            self._busy.append(client)
            yield client
            self._busy.remove(client)

    def connect(self, client: Client) -> None:
        chosen = self._choice(client).selection
        settings = {"filter": chosen.filter, "dimensions": chosen.dimensions, "id_frequency": self.id_frequency}
        shared = Encoder(wire=self._wire, **settings, **self._hook)
        self._busy.append(client)
        began = self.now
        self._open(client, self._encoders.setdefault((chosen.filter, chosen.dimensions), shared), chosen.selector)
        client._began = began  # records that were written while the stream opened may belong to it
        self._busy.remove(client)

    def settle(self) -> None:
        self._is_nested = True
        super().settle()

    def _history(self, number: int, client: Client) -> History:
        wire = "lines" if self._is_json_lines else "sse"
        return replace(super()._history(number, client), id_type=self._id_type.value, wire=wire)

    def play(self, steps: int) -> list[str]:
        with ExitStack() as patches:
            for limit in (*LIMITS, SMALL_BACKLOG) if self._is_backlog_small else LIMITS:
                patches.enter_context(patch.object(*limit))
            patches.enter_context(turns_given_by(self.let_others_run))
            return super().play(steps)


class ChangingInterleaved(Interleaved, ChangingSimulation):
    """A simulation in which topics are recreated while another greenlet is within a step."""

    def recreate(self) -> None:
        if not self._is_turning:
            super().recreate()

    def restart(self) -> None:
        if self._is_idle:
            self._busy += self.clients  # until all have reconnected
            super().restart()
            self._busy.clear()

    def _reconnect_ended(self) -> None:
        if self._is_idle:
            super()._reconnect_ended()

    @property
    def _is_idle(self) -> bool:
        """Whether no greenlet is within a step."""
        return not self._busy and not self._is_turning
