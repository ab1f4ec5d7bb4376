"""When a client reads a stream with long polls, because a proxy holds back an endless response. This module does no I/O.

    stream ── nothing arrived within FIRST_EVENT_S ──▶ long polls
       ▲                                                  │
       └────── after PROBE_S, the client tries again ─────┘

kafkasse.js has the same rules; tests/client/fallback_contract.json describes them.
"""

from __future__ import annotations

FIRST_EVENT_S = 15.0  # for the start of a stream, which kafkasse sends at once, or after its kafka_timeout_s
PROBE_S = 300.0  # each attempt costs FIRST_EVENT_S, so it doubles after each that fails
MAX_PROBE_S = 3600.0
POLL_PARAMETERS = {"live": "events"}


class Fallback:
    """Decides whether the next request is for a stream or a long poll.

    Attributes:
        polls: whether it is a long poll.
    """

    def __init__(self) -> None:
        self.polls = False
        self._is_proven = False  # a stream has arrived through this network
        self._polled_s = 0.0
        self._probe_s = self._next_probe_s = PROBE_S

    def timeout_s(self, timeout_s: float) -> float:
        """Return how long the next connection may be silent. `timeout_s` is the client's setting.

        The drivers cannot change the timeout of an open connection. Therefore, a connection with the short timeout that ends
        after its first event, before a heartbeat was due, proves that the network is good.
        """
        return timeout_s if self.polls or self._is_proven else min(timeout_s, FIRST_EVENT_S)

    def ended(self, is_silent: bool, has_received: bool, elapsed_s: float) -> None:
        """A connection has ended.

        Args:
            is_silent: because nothing arrived for too long.
            has_received: whether a part of the body has arrived.
            elapsed_s: the seconds since the request.
        """
        if self.polls:
            self._polled_s += elapsed_s
            self.polls = not is_silent and self._polled_s < self._probe_s
            self._is_proven = False
        elif is_silent:
            self.polls = not has_received
            self._is_proven = has_received and not self._is_proven
            self._polled_s = 0
            if self.polls:
                self._probe_s, self._next_probe_s = self._next_probe_s, min(2 * self._next_probe_s, MAX_PROBE_S)
        elif has_received:
            self._is_proven = True
            self._next_probe_s = PROBE_S
