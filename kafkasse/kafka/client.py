"""Wraps kafka-python's client: bootstrap, authentication, metadata, offsets, and sockets that are ready for Fetch requests.

This is the only module that uses kafka-python's private names; tests/kafka/test_client.py checks each of them against the
installed version. The module does not know about cursors and feeds.
"""

from __future__ import annotations

import io
import math
import random
import socket
import ssl
import struct
import time
from _thread import start_new_thread
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from threading import Lock
from typing import Any, NamedTuple, TypeVar

import gevent
from kafka import KafkaAdminClient, TopicPartition
from kafka import errors as kafka_errors
from kafka.future import Future
from kafka.net.compat import KafkaNetClient
from kafka.net.connection import KafkaConnection
from kafka.net.inet import KafkaNetSocket
from kafka.net.manager import KafkaConnectionManager
from kafka.net.sasl.oauth import AbstractTokenProvider
from kafka.net.selector import NetworkSelector
from kafka.net.transport import KafkaSSLTransport, KafkaTCPTransport
from kafka.protocol.api_header import RequestHeader
from kafka.protocol.consumer import OffsetForLeaderEpochRequest
from kafka.protocol.metadata import MetadataRequest, MetadataResponse
from kafka.protocol.schemas.fields.codecs import Int32, UnsignedVarInt32
from kafka.record.default_records import DefaultRecordBatch

from kafkasse.config.kafka import BOOTSTRAP_DEFAULT
from kafkasse.kafka.errors import PERMANENT_ERRORS, explain, message, tls_error
from kafkasse.kafka.fetch_protocol import VERSIONS, Broker, Leader, newest_version
from kafkasse.log import UNKNOWN_EPOCH, Epochs, OffsetAndEpoch, Partition
from kafkasse.process.event_loop import take_turn
from kafkasse.process.loop_thread import loop_thread
from kafkasse.process.threads import Threads

MAX_RECONNECT_BACKOFF_MS = 1_000
RETRY_BACKOFF_MS = 10  # kafka-python's default is 100
# Above this number of requests, kafka-python reports that no node is ready. Its default is 5.
MAX_IN_FLIGHT_REQUESTS = 1_000
MIN_REQUEST_TIMEOUT_MS = 2_000
MAX_HANDSHAKE_S = 5.0
MAX_FAILURES_SHOWN = 3
MAX_THREADS = 64  # of one client, under servers with threads

BOOTSTRAP_NOT_SET = f"KAFKASSE_BOOTSTRAP_SERVERS is not set; trying {BOOTSTRAP_DEFAULT}"
BOOTSTRAP_ADVICE = "If the brokers are running, check kafka.bootstrap_servers and kafka.security_protocol"
ADVERTISED_ADVICE = (
    "The brokers announce these addresses. If they never worked, check advertised.listeners of the brokers"
)

_FETCH_API_KEY = 1
_CONSUMER = -1  # in place of a replica's ID
_NO_SUCH_TOPIC = (3, 17)  # the error codes of an unknown topic and of a name that no topic can have
_LEADER_NOT_AVAILABLE = 5
_TLS_ALERT = b"\x15\x03"
# kafka-python checks some settings only when it connects, and fails with one of these.
_SETTINGS_ERRORS = (AssertionError, ImportError, KeyError, TypeError, ValueError)


Result = TypeVar("Result")


class TopicMetadata(NamedTuple):
    """A topic in the metadata.

    Attributes:
        topic_id: the topic ID; b"" if the cluster has no topic IDs.
        partitions: the number of partitions.
        leaders: the leader of each partition, except during an election.
        error_code: Kafka's error code; 0 for success.
    """

    topic_id: bytes
    partitions: int
    leaders: dict[int, Leader]
    error_code: int = 0


class Client:
    """One kafka-python client. It connects when it is first used, and does its I/O in a separate greenlet.

    Args:
        settings: settings of KafkaAdminClient.
        timeout_s: how long bootstrap, a connection attempt and a TLS handshake may take.
        topic_prefix: what the names of topics in Kafka begin with. Callers leave it out, and other topics do not exist.

    Attributes:
        brokers: the brokers of the cluster in the last metadata, by node ID.
    """

    def __init__(self, settings: Mapping[str, Any], timeout_s: float, topic_prefix: str = "") -> None:
        timeout_ms = int(timeout_s * 1000)
        self._timeout_s = timeout_s
        self._prefix = topic_prefix
        self._settings = {
            "request_timeout_ms": max(timeout_ms, MIN_REQUEST_TIMEOUT_MS),
            "bootstrap_timeout_ms": timeout_ms,
            "reconnect_backoff_max_ms": MAX_RECONNECT_BACKOFF_MS,
            "client_id": "kafkasse",
            "retry_backoff_ms": RETRY_BACKOFF_MS,
            "max_in_flight_requests_per_connection": MAX_IN_FLIGHT_REQUESTS,
            "bootstrap_servers": BOOTSTRAP_DEFAULT,
            **settings,
        }
        if (provider := self._settings.get("sasl_oauth_token_provider")) is not None:
            self._settings["sasl_oauth_token_provider"] = _TokenProvider(provider, timeout_s)
        self._advice = (
            BOOTSTRAP_ADVICE if "bootstrap_servers" in settings else f"{BOOTSTRAP_NOT_SET}. {BOOTSTRAP_ADVICE}"
        )
        self.brokers: Mapping[int, Broker] = {}
        self._lock = Lock()
        self._threads = Threads(MAX_THREADS)
        self._admin: KafkaAdminClient | None = None
        self._failure: Exception | None = None
        self._failures = 0
        self._closed = False

    @property
    def client_id(self) -> str:
        return str(self._settings["client_id"])

    @property
    def newest_fetch_version(self) -> int:
        """The newest Fetch version of the broker that was contacted first; 0 before the first contact. Does not block."""
        if self._admin is None:
            return 0
        return int(self._admin._manager.broker_version_data.api_versions[_FETCH_API_KEY][1])

    def metadata(self, topics: Iterable[str] | None) -> dict[str, TopicMetadata]:
        """Return those of `topics` that exist or about which the cluster reports an error. None means all topics.

        Raises:
            kafka.errors.KafkaError: the cluster does not answer, or rejects us.
        """
        topic_class = MetadataRequest.MetadataRequestTopic
        names = None if topics is None else [topic_class(name=self._prefix + topic) for topic in topics]
        manager = self._bootstrapped()._manager

        async def send() -> _EncodedMetadata:
            encoded: _EncodedMetadata = await manager.send(
                _MetadataRequest(topics=names, allow_auto_topic_creation=False)
            )
            return encoded

        with _reasons(manager):
            encoded = self._wait_for(manager.run, send)
        try:
            brokers, described = encoded.decode()
            known = self.brokers
            self.brokers = {broker.node_id: Broker(broker.node_id, broker.host, broker.port) for broker in brokers}
            for node_id, broker in self.brokers.items():
                if known.get(node_id) != broker:
                    manager.forget_failures(node_id)  # these were at its old address
            # Set them here, because kafka-python's own refreshes end at the first exception that escapes from a login.
            manager.cluster._brokers = {broker.node_id: broker for broker in brokers} or manager.cluster._brokers
            return {
                topic.name.removeprefix(self._prefix): _topic_metadata(topic, self.brokers)
                for topic in described
                if topic.error_code not in _NO_SUCH_TOPIC and topic.name.startswith(self._prefix)
            }
        except (ValueError, struct.error) as error:  # kafka-python's parser translates the same errors
            raise kafka_errors.KafkaProtocolError(f"Metadata cannot be decoded: {error}") from error

    def list_offsets(
        self, node_id: int, lookups: Iterable[Mapping[Partition, int]], isolation_level: int
    ) -> list[dict[Partition, tuple[int, OffsetAndEpoch]]]:
        """Look up offsets of partitions that one broker leads. All requests are sent before the first response is awaited.

        Args:
            node_id: the broker.
            lookups: each maps partitions to a timestamp or OffsetSpec.
            isolation_level: 0 for read_uncommitted, 1 for read_committed.

        Returns:
            For each lookup, Kafka's error code, and the offset of each partition, or -1 if there is none, with its epoch.

        Raises:
            kafka.errors.KafkaError: the broker does not answer.
        """
        admin = self._bootstrapped()
        prefix = self._prefix
        requests = [
            admin._list_partition_offsets_request(
                {TopicPartition(prefix + topic, number): when for (topic, number), when in lookup.items()},
                isolation_level,
            )
            for lookup in lookups
        ]
        return [
            {
                self._partition(topic.name, offset.partition_index): (
                    offset.error_code,
                    OffsetAndEpoch(offset.offset, offset.leader_epoch),
                )
                for topic in response.topics
                for offset in topic.partitions
            }
            for response in self._send(node_id, requests)
        ]

    def epoch_ends(self, node_id: int, epochs: Epochs, current: Epochs) -> dict[Partition, tuple[int, int, int]]:
        """Look up where leader epochs end, in partitions that one broker leads.

        Args:
            node_id: the broker.
            epochs: the leader epoch to look up in each partition.
            current: the current leader epochs, where they are known. If one is wrong, the broker returns an error.

        Returns:
            For each partition, Kafka's error code, the epoch that was found (the newest one that is not newer than the
            epoch to look up; UNKNOWN_EPOCH before Kafka 2.0) and its end offset. If the broker knows neither the epoch to
            look up nor a newer one, these are UNKNOWN_EPOCH and UNKNOWN_OFFSET.

        Raises:
            kafka.errors.KafkaError: the broker does not answer, or does not support the request.
        """
        topic_class = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
        topics = defaultdict(list)
        for partition, epoch in epochs.items():
            topics[self._prefix + partition.topic].append(
                topic_class.OffsetForLeaderPartition(
                    partition=partition.partition,
                    current_leader_epoch=current.get(partition, UNKNOWN_EPOCH),
                    leader_epoch=epoch,
                )
            )
        request = OffsetForLeaderEpochRequest(
            replica_id=_CONSUMER,
            topics=[topic_class(topic=topic, partitions=partitions) for topic, partitions in topics.items()],
        )
        [response] = self._send(node_id, [request])
        return {
            self._partition(topic.topic, end.partition): (end.error_code, end.leader_epoch, end.end_offset)
            for topic in response.topics
            for end in topic.partitions
        }

    def _partition(self, topic_in_kafka: str, number: int) -> Partition:
        return Partition(topic_in_kafka.removeprefix(self._prefix), number)

    def _send(self, node_id: int, requests: Iterable[Any]) -> list[Any]:
        manager = self._bootstrapped()._manager

        async def send() -> list[Any]:
            futures = [manager.send(request, node_id=node_id) for request in requests]
            return [await future for future in futures]

        with _reasons(manager):
            responses: list[Any] = self._wait_for(manager.run, send)
        return responses

    def connect(self, broker: Broker) -> tuple[socket.socket, tuple[int, int]]:
        """Open a connection, encrypted and authenticated as the settings say, and detach its socket from kafka-python.

        Returns:
            The socket, and the lowest and the highest Fetch version that the broker supports.

        Raises:
            kafka.errors.KafkaError, OSError: the connection failed.
        """
        manager = self._bootstrapped()._manager
        opened: tuple[socket.socket, tuple[int, int]] = self._wait_for(
            manager.run, _open_socket, manager, broker, time.monotonic() + self._timeout_s
        )
        return opened

    def close(self) -> None:
        self._closed = True
        with self._lock:
            admin, self._admin = self._admin, None
        if admin is not None:
            admin.close()

    def _bootstrapped(self) -> KafkaAdminClient:
        admin = self._admin
        return self._wait_for(self._bootstrap_once) if admin is None else admin

    def _wait_for(self, call: Callable[..., Result], *args: Any) -> Result:
        """Return what `call` returns. It blocks its thread, which must not be the one in which all other reads run."""
        if not loop_thread.is_current:
            return call(*args)
        return self._threads.run(call, *args)

    def _bootstrap_once(self) -> KafkaAdminClient:
        failures = self._failures
        with self._lock:
            if self._closed:
                raise kafka_errors.IllegalStateError("The client is closed")
            if self._admin is None:
                # Callers that waited for the lock share the failure. Otherwise each would wait for another timeout.
                if self._failure is not None and self._failures > failures:
                    raise self._failure
                try:
                    self._admin = self._bootstrap()
                except Exception as error:
                    self._failures, self._failure = self._failures + 1, error
                    raise
            return self._admin

    def _bootstrap(self) -> KafkaAdminClient:
        clients: list[_NetClient] = []

        def net_client(**config: Any) -> _NetClient:
            clients.append(_NetClient(**config))
            return clients[-1]

        try:
            admin = KafkaAdminClient(**self._settings, kafka_client=net_client)
        except Exception as error:
            for client in clients:
                client.stop()  # kafka-python would keep its greenlet and its descriptors
            raise self._bootstrap_error(error, clients[0].manager if clients else None) from error
        versions = admin._manager.broker_version_data.api_versions[_FETCH_API_KEY]
        if newest_version(*versions) is None:  # no stream could read, so no stream may open
            admin.close()
            raise unsupported_fetch(versions)
        # KafkaAdminClient does not accept these settings. Their defaults are 10 s, and 30 s after several failures.
        timeout_ms = int(self._timeout_s * 1000)
        for name in ("socket_connection_setup_timeout_ms", "socket_connection_setup_timeout_max_ms"):
            admin._manager.config[name] = timeout_ms
        return admin

    def _bootstrap_error(self, error: Exception, manager: _ConnectionManager | None) -> Exception:
        """Return the error to raise for a failed bootstrap. `manager` has recorded why connections failed."""
        cause = (manager and manager.connect_failure()) or error
        if isinstance(cause, _SETTINGS_ERRORS):
            text = self._masked(f"{type(cause).__name__}: {cause}")
            advice = "Check the settings kafka.sasl_*, kafka.ssl_* and kafka.proxy_url"
            cause = kafka_errors.KafkaConfigurationError(f"{text}. {advice}")
        reasons = manager.connect_failures() if manager is not None else ""
        timeout: Exception = kafka_errors.KafkaTimeoutError(f"{reasons or message(error)}. {self._advice}")
        return timeout if not isinstance(cause, PERMANENT_ERRORS) else cause

    def _masked(self, text: str) -> str:
        for name, value in self._settings.items():
            if ("password" in name or "proxy" in name) and value:
                text = text.replace(str(value), "***")
        return text


def unsupported_fetch(versions: tuple[int, int]) -> Exception:
    """Return the error for a broker that supports none of our Fetch versions. `versions` are its lowest and highest."""
    ours = f"{min(VERSIONS)} to {max(VERSIONS)}"
    error: Exception = kafka_errors.IncompatibleBrokerVersion(
        f"the broker supports Fetch versions {versions[0]} to {versions[1]}, and kafkasse supports {ours}"
    )
    return error


def unknown_settings(settings: Iterable[str]) -> list[str]:
    """Return those of `settings` that kafka-python's client does not have."""
    return sorted(set(settings) - KafkaAdminClient.DEFAULT_CONFIG.keys())


def lenient_records(batch: memoryview) -> Iterator[Any]:
    """Decode an uncompressed batch in which a record header has a name that is not UTF-8.

    Kafka requires UTF-8 but does not check it. One such record must not end the streams of its topic. A byte that is not
    UTF-8 appears as `\\xff`.
    """
    records = DefaultRecordBatch(batch)
    records._buffer = _LenientBytes(batch)
    return iter(records)


@contextmanager
def _reasons(manager: _ConnectionManager) -> Iterator[None]:
    """Add the reasons for failed connections to kafka-python's errors, which say only that a broker is not ready.

    Convert other exceptions to KafkaConnectionError, so that clients retry.
    """
    try:
        yield
    except (kafka_errors.NodeNotReadyError, kafka_errors.KafkaConnectionError) as error:
        if reasons := manager.connect_failures():
            raise kafka_errors.KafkaConnectionError(f"{reasons}. {ADVERTISED_ADVICE}") from error
        raise
    except (kafka_errors.KafkaError, OSError):
        raise
    except Exception as error:  # it escaped from a login, for example from botocore while AWS gives no credentials
        raise kafka_errors.KafkaConnectionError(f"{type(error).__name__}: {error}") from error


class _TokenProvider(AbstractTokenProvider):  # type: ignore[misc]  # kafka-python has no type hints
    """Adapts a function, or an object with a method token(), to the class that kafka-python requires.

    An app cannot define a subclass of that class at the top of a module, because gevent must patch the standard library
    before kafka-python is imported.
    """

    def __init__(self, provider: Any, timeout_s: float) -> None:
        super().__init__()
        self._provider = provider
        self._timeout_s = timeout_s

    def token(self) -> str:
        try:
            # All requests to the cluster wait for the token.
            with gevent.Timeout(self._timeout_s, TimeoutError(f"no token within {self._timeout_s:g} s")):
                return str(self._provider() if callable(self._provider) else self._provider.token())
        except Exception as error:
            text = f"kafka.sasl_oauth_token_provider failed: {type(error).__name__}: {error}"
            raise kafka_errors.KafkaConnectionError(text) from error

    def extensions(self) -> dict[str, str]:
        extensions: dict[str, str] = getattr(self._provider, "extensions", dict)()
        return extensions


class _LenientBytes(bytearray):
    def __getitem__(self, index: Any) -> Any:
        item = super().__getitem__(index)
        return _LenientBytes(item) if isinstance(index, slice) else item

    def decode(self, encoding: str = "utf-8", errors: str = "backslashreplace") -> str:
        return super().decode(encoding, errors)


class _NetClient(KafkaNetClient):  # type: ignore[misc]  # kafka-python has no type hints
    """KafkaNetClient with our connection manager."""

    def __init__(self, **config: Any) -> None:
        net = NetworkSelector(**config)
        self.manager = _ConnectionManager(net, **config)
        super().__init__(net=net, manager=self.manager, **config)

    def stop(self) -> None:
        with suppress(Exception):  # it may have failed in any state, and the caller reports the original error
            self.close()
        self._net.stop()


class _ConnectionManager(KafkaConnectionManager):  # type: ignore[misc]  # kafka-python has no type hints
    """KafkaConnectionManager that remembers why connections failed.

    kafka-python retries all failures until bootstrap times out, and then raises KafkaTimeoutError without the reason.
    """

    def __init__(self, net: NetworkSelector, **config: Any) -> None:
        super().__init__(net, **config)
        self._connect_errors: dict[Any, Exception] = {}  # by node ID
        self._lookups: dict[tuple[str, int], Future] = {}  # DNS lookups in flight, by host and port
        self._has_reached_broker = False  # at an advertised address

    def connect_failures(self) -> str:
        """Return the addresses of up to MAX_FAILURES_SHOWN brokers that cannot be reached, each with the reason, or ""."""
        brokers = self.cluster.brokers() if self.bootstrapped else self.cluster.bootstrap_brokers()
        failed = [
            f"{broker.host}:{broker.port}: {message(self._connect_errors[broker.node_id]).rstrip('.')}"
            for broker in brokers
            if broker.node_id in self._connect_errors
        ]
        return ". ".join(failed[:MAX_FAILURES_SHOWN])

    def connect_failure(self) -> Exception | None:
        """Return the last failure of a broker, preferably a permanent one, or None if no broker has failed."""
        errors = list(self._connect_errors.values())
        permanent = (error for error in errors if isinstance(error, (*PERMANENT_ERRORS, *_SETTINGS_ERRORS)))
        return next(permanent, errors[-1] if errors else None)

    def least_loaded_node(self) -> Any:
        """Return the node to ask for metadata, or None. Unlike the original, avoid brokers that could not be reached.

        If none is left, try all brokers and, if one was reached before, the bootstrap servers: the brokers may have new
        addresses.
        """
        brokers = self.cluster.brokers()
        reachable = [broker for broker in brokers if broker.node_id not in self._connect_errors]
        others = self.cluster.bootstrap_brokers() if self._has_reached_broker else []
        nodes = [broker.node_id for broker in reachable or (*brokers, *others) if not self._is_blocked(broker.node_id)]
        random.shuffle(nodes)
        return min(nodes, key=self._load, default=None)

    def _is_blocked(self, node_id: Any) -> bool:
        conn = self._conns.get(node_id)
        return bool(self.connection_delay(node_id) > 0 or (conn is not None and conn.paused))

    def _load(self, node_id: Any) -> tuple[int, bool]:
        """Return the number of requests that wait for a response, and whether there is no connection yet."""
        conn = self._conns.get(node_id)
        return (
            (0, True)
            if conn is None
            else (len(conn.in_flight_requests) + len(conn._request_buffer), not conn.connected)
        )

    def forget_failures(self, node_id: int) -> None:
        self._connect_errors.pop(node_id, None)
        self.reset_backoff(node_id)

    async def _connect(self, node: Any, conn: KafkaConnection, **options: Any) -> None:
        backoff = self._backoff.get(node.node_id)
        await super()._connect(node, conn, **options)
        if conn.init_future.failed():
            error = self._connect_errors[node.node_id] = explain(conn.init_future.exception)
            if self.bootstrapped and node.node_id not in self._backoff and not isinstance(error, PERMANENT_ERRORS):
                # kafka-python reset the backoff when the connection was made, before the login, which failed.
                self._backoff |= {} if backoff is None else {node.node_id: backoff}
                self.update_backoff(node.node_id)
            self._stop_bootstrap_if_rejected()
        else:
            self._connect_errors.pop(node.node_id, None)
            self._has_reached_broker |= not self.cluster.is_bootstrap(node.node_id)

    def _stop_bootstrap_if_rejected(self) -> None:
        """Give up if all bootstrap servers reject us: many wrong passwords in a row may lock the account."""
        errors = [self._connect_errors.get(broker.node_id) for broker in self.cluster.bootstrap_brokers()]
        if not self.bootstrapped and all(isinstance(error, (*PERMANENT_ERRORS, *_SETTINGS_ERRORS)) for error in errors):
            self.close()

    async def _build_transport(self, node: Any, timeout_at: float | None = None) -> KafkaTCPTransport:
        """Connect and wrap a socket. Unlike the original, this keeps the reason for a failure and then closes the socket."""
        sock = await self._open_socket(node, math.inf if timeout_at is None else timeout_at)
        transport = None
        try:
            transport = self._wrap(sock, node.host)
            await transport.handshake()
        except BaseException as error:
            (transport or sock).close()
            if isinstance(error, ssl.SSLError):
                raise tls_error(error) from error
            if isinstance(error, (OSError, kafka_errors.KafkaTimeoutError)):
                raise kafka_errors.KafkaConnectionError(f"Handshake failed: {error}") from error
            raise
        return transport

    async def _open_socket(self, node: Any, timeout_at: float) -> socket.socket:
        """Like create_connection() in kafka-python, but if one address of a name does not answer, try the others.

        The bootstrap servers share the timeout, because kafka-python tries them one by one.
        """
        servers = 1 if self.bootstrapped else len(self.cluster.bootstrap_brokers())
        net_socket, options = KafkaNetSocket(self.config["proxy_url"]), self.config["socket_options"]
        error: Exception = kafka_errors.KafkaConnectionError("DNS Resolution failure")
        addresses = await self._look_up(net_socket, node, timeout_at)
        for untried, address in zip(range(len(addresses), 0, -1), addresses, strict=True):
            now = time.monotonic()
            try:
                sock: socket.socket = await net_socket.connect(
                    self._net, address, options, timeout_at=now + (timeout_at - now) / untried / servers
                )
            except kafka_errors.KafkaTimeoutError:
                error = kafka_errors.KafkaConnectionError("Connection timed out")
            except OSError as failure:
                error = kafka_errors.KafkaConnectionError(str(failure))
            except kafka_errors.KafkaConnectionError as failure:
                error = failure
            else:
                return sock
        raise error

    async def _look_up(self, net_socket: KafkaNetSocket, node: Any, timeout_at: float) -> Any:
        """Look up the addresses of a node in another thread: DNS may not answer, and all connections share this thread."""
        lookups, name = self._lookups, (node.host, node.port)

        def look_up(lookup: Future) -> None:
            try:
                complete, result = lookup.success, net_socket.dns_lookup(*name)
            except Exception as error:  # noqa: BLE001 - raised where the lookup is awaited
                complete, result = lookup.failure, error

            async def end() -> None:
                del lookups[name]
                complete(result)

            with suppress(RuntimeError):  # the client was closed meanwhile
                self._net.call_soon_threadsafe(end)

        if name not in lookups:
            lookups[name] = Future()
            start_new_thread(look_up, (lookups[name],))  # cheaper than a Thread
        try:
            return await self.wait_for(lookups[name], (timeout_at - time.monotonic()) * 1000)
        except kafka_errors.KafkaTimeoutError:
            raise kafka_errors.KafkaConnectionError("DNS does not answer") from None

    def _wrap(self, sock: socket.socket, host: str) -> KafkaTCPTransport:
        if not self.ssl_enabled:
            return _TcpTransport(self._net, sock, host=host)
        config = {name: value for name, value in self.config.items() if name.startswith("ssl_")}
        try:
            context = KafkaSSLTransport._build_ssl_context(config)
        except (FileNotFoundError, IsADirectoryError, PermissionError, ssl.SSLError) as error:
            reason = error.reason if isinstance(error, ssl.SSLError) else error
            raise kafka_errors.KafkaConfigurationError(
                f"The TLS files cannot be used ({reason})."
                " Check kafka.ssl_cafile, kafka.ssl_certfile, kafka.ssl_keyfile, kafka.ssl_password and kafka.ssl_crlfile"
            ) from error
        return _TlsTransport(self._net, sock, host=host, **{**config, "ssl_context": context})


class _TcpTransport(KafkaTCPTransport):  # type: ignore[misc]  # kafka-python has no type hints
    """KafkaTCPTransport that delivers the last bytes before the end of a connection, and that recognizes a TLS listener.

    A broker that rejects a password sends the reason and closes the connection at once. The original discards the reason.
    """

    _received = False

    def _sock_recv(self) -> tuple[bytes, Exception | None]:
        data, error = super()._sock_recv()
        if data.startswith(_TLS_ALERT) and not self._received:
            return b"", kafka_errors.KafkaConfigurationError(
                "The broker's listener expects TLS. Check kafka.security_protocol and the port in kafka.bootstrap_servers"
            )
        self._received = self._received or bool(data)
        return data, None if data else error


class _TlsTransport(KafkaSSLTransport):  # type: ignore[misc]  # kafka-python has no type hints
    """KafkaSSLTransport with the correction of _TcpTransport, a deadline for the handshake, and the reason for a failure."""

    async def handshake(self) -> None:
        # Without a deadline the original waits forever for a broker that accepts connections but does not answer.
        deadline_s = time.monotonic() + MAX_HANDSHAKE_S
        while True:
            try:
                self._sock.do_handshake()
                return
            except ssl.SSLWantReadError:
                await self._net.wait_read(self._sock, deadline_s)
            except ssl.SSLWantWriteError:
                await self._net.wait_write(self._sock, deadline_s)

    def _sock_recv(self) -> tuple[bytes, Exception | None]:
        data, error = super()._sock_recv()
        # In TLS 1.3 the broker rejects our certificate after the handshake, when we read for the first time.
        cause = error.args[0] if error is not None and error.args else None
        if isinstance(cause, ssl.SSLError):
            error = tls_error(cause)
        return data, None if data else error


def _topic_metadata(topic: Any, brokers: Mapping[int, Broker]) -> TopicMetadata:
    name, topic_id = topic.name.encode(), topic.topic_id.bytes if topic.topic_id and topic.topic_id.int else b""
    leaders = {
        partition.partition_index: Leader(brokers[partition.leader_id], partition.leader_epoch, name, topic_id)
        for partition in topic.partitions
        if partition.leader_id in brokers
    }
    # A topic that is being created or deleted may have no partitions.
    error_code = topic.error_code or (0 if topic.partitions else _LEADER_NOT_AVAILABLE)
    return TopicMetadata(topic_id, len(topic.partitions), leaders, error_code)


class _EncodedMetadata(NamedTuple):
    """The body of a metadata response, and its version."""

    version: int
    body: bytes

    def decode(self) -> tuple[list[Any], Iterator[Any]]:
        """Return the brokers, and an iterator that decodes one topic in each turn of the event loop."""
        flexible = MetadataResponse.flexible_version_q(self.version)
        encoding = {"version": self.version, "compact": flexible, "tagged": flexible}
        source = io.BytesIO(self.body)
        fields = iter(MetadataResponse._struct.untagged_fields(self.version))
        before = {}
        while (field := next(fields)).name != "topics":
            before[field.name] = field.decode(source, **encoding)
        count = UnsignedVarInt32.decode(source) - 1 if flexible else Int32.decode(source)
        decode_topic = field.array_of.compiled_decode_from(**encoding)

        def topics() -> Iterator[Any]:
            view, at = memoryview(self.body), source.tell()
            for _ in range(count):
                take_turn(urgent=True)  # many clients may wait for the same metadata
                topic, at = decode_topic(view, at)
                yield topic

        return before["brokers"], topics()


class _MetadataClass(NamedTuple):
    """Replaces kafka-python's class of metadata responses, which decodes all topics in one turn of the event loop."""

    version: int

    def parse_header(self, data: Any) -> Any:
        return MetadataResponse[self.version].parse_header(data)

    def decode(self, data: Any) -> _EncodedMetadata:
        return _EncodedMetadata(self.version, data.read())


class _MetadataHeader(RequestHeader, init=False):  # type: ignore[misc,call-arg]  # kafka-python has no type hints
    def get_response_class(self) -> _MetadataClass:
        return _MetadataClass(self.request_api_version)


class _MetadataRequest(MetadataRequest, init=False):  # type: ignore[misc,call-arg]  # kafka-python has no type hints
    """A metadata request whose response is an _EncodedMetadata."""

    header_class = _MetadataHeader


async def _open_socket(
    manager: _ConnectionManager, broker: Broker, deadline_s: float
) -> tuple[socket.socket, tuple[int, int]]:
    """Implements Client.connect(). Runs in kafka-python's event loop."""
    connection = KafkaConnection(
        manager._net, node_id=broker.node_id, broker_version_data=manager.broker_version_data, **manager.config
    )
    transport = await manager._build_transport(broker, timeout_at=deadline_s)
    try:
        connection.connection_made(transport)
        await connection.initialize(timeout_at=deadline_s)
        await connection
        versions: tuple[int, int] = connection.broker_version_data.api_versions[_FETCH_API_KEY]
    except BaseException:
        transport.close()
        raise
    # Detach the socket, so that kafka-python neither reads from it nor closes it.
    connection._reauth.cancel()
    for task in (transport._read_task, transport._write_task):
        if task is not None:
            manager._net.cancel(task)
    sock: socket.socket = transport._sock
    transport._sock = None
    return sock, versions
