"""The settings: the name, type, default, limits and purpose of each, in the class of the package that reads it.

A field with a docstring is a setting. `python -m docs.site.tables` writes schemas/config.schema.json from these
classes; the checks, the messages of errors and the reference page use the schema. Annotations are not evaluated at run time.

This module imports no other module of kafkasse, so that a command can read the Kafka settings without importing Flask.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Annotated, Any, Literal


@dataclass(frozen=True, eq=False, kw_only=True)
class ValueLimits:
    """The limits of a value, and an example of a valid one. By default, the example is the setting's default."""

    example: Any = None
    examples: Sequence[Any] = ()
    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None


@dataclass(frozen=True, eq=False)
class Value(ValueLimits):
    """What a value must be, beyond its type."""

    expected: str = ""  # in error messages, if the type and the limits do not say it
    _: KW_ONLY
    pattern: str | None = None
    min_length: int | None = None
    max_length: int | None = None
    min_items: int | None = None
    min_members: int | None = None
    unique: bool = False
    code_only: bool = False  # no file and no variable can hold it
    nullable: bool = False  # of an optional field in a mapping: None is a value, too
    of: str | None = None  # the name of the class with the members of a mapping


class OfRoutes(ValueLimits):
    """The setting exists in each route, too. Its limits and example apply instead of the general ones."""


# The types of the values that settings contain. `of` names a class below.
Name = Annotated[
    str, Value("lowercase letters, digits and underscores, starting with a letter", pattern="^[a-z][a-z0-9_]*$")
]
TopicName = Annotated[
    str,
    Value(
        "a topic name: at most 249 letters, digits, dots, underscores and hyphens", pattern=r"^[a-zA-Z0-9._-]{1,249}$"
    ),
]
TopicPattern = Annotated[
    str, Value("a topic name, or a pattern with * ? or [...]", pattern=r"^[a-zA-Z0-9._*?!\[\]-]+$", example="events.*")
]
FilePath = Annotated[str, Value("the path of a file", min_length=1)]
Origin = Annotated[
    str,
    Value(
        "* or an origin, without a path or a slash at the end",
        pattern=r"^(\*|null|[a-z][a-z0-9+.-]*://[^\s/,@]+)$",
        example="https://shop.example",
    ),
]
MemberPath = Annotated[
    str,
    Value(
        "a path of at most 8 names with dots between them",
        pattern=r"^[^.]+(\.[^.]+){0,7}$",
        max_length=249,
        example="customer.name",
    ),
]
OneOf = Annotated[
    str
    | float
    | bool
    | Sequence[Annotated[str | float | bool, Value("text, a number, true or false", example="created")]],
    Value("a value or a list of values", min_items=1, example=["created", "paid"]),
]
ClientFilter = Annotated[
    str,
    Value(
        "key, header.NAME, field.PATH or filter", pattern=r"^(key|filter|(header|field)\..+)$", example="header.type"
    ),
]
ClientMapping = Annotated[
    Mapping[str, Any],
    Value("a mapping of client settings", of="KafkaClient", example={"bootstrap_servers": ["kafka-1.example:9092"]}),
]
RegistryMapping = Annotated[
    Mapping[str, Any],
    Value("a mapping with at least url", of="SchemaRegistrySettings", example={"url": "https://registry.example"}),
]
RouteMapping = Annotated[
    Mapping[str, Any],
    Value(
        "a mapping with at least path and topics", of="NamedRoute", example={"path": "/prices", "topics": ["prices"]}
    ),
]
# Any: a guard can also be a function.
GuardMapping = Annotated[
    Any,
    Value(
        "a mapping with jwt or api_keys",
        of="GuardSettings",
        example={"api_keys": {"file": "/run/secrets/partner-keys"}},
    ),
]
Algorithm = Literal[
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "HS256", "HS384", "HS512"
]  # fmt: skip
GrantOfVisitors = Annotated[
    str | Mapping[str, Any],
    Value(
        "the name of a guard, or a mapping with guard and claims",
        of="GrantSettings",
        example={"guard": "customers", "claims": {"role": ["admin"]}},
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaSettings:
    """Read by kafkasse.kafka. repr() omits the settings of kafka-python's client, which can be secrets."""

    kafka: ClientMapping = field(repr=False, default_factory=dict)
    """How to connect to Kafka: the connection settings of kafka-python's KafkaAdminClient. kafkasse sets group_id,
    enable_auto_commit and similar settings itself and rejects them here."""
    clusters: Annotated[
        Mapping[Annotated[Name, Value(example="eu")], ClientMapping],
        Value(
            "a mapping of names to client settings", example={"eu": {"bootstrap_servers": ["kafka-eu.example:9093"]}}
        ),
    ] = field(repr=False, default_factory=dict)
    """Other Kafka clusters, each with its own connection settings, for routes with the setting cluster. topic_prefix
    does not apply to them. Add one if some topics are in another cluster, for example in another region."""
    topic_prefix: Annotated[
        str, Value("letters, digits, dots, underscores and hyphens", pattern=r"^[a-zA-Z0-9._-]*$", example="shop-42.")
    ] = ""
    """Added to the start of every topic name that is sent to Kafka, and removed from every name that clients see. Set it
    if all your topics share a prefix that clients should not see. On Heroku's shared Kafka plans, KAFKA_PREFIX sets it."""
    kafka_timeout_s: Annotated[float, Value(above=0, at_most=60)] = 5
    """Seconds to wait for Kafka before the server responds with status 503. Raise it if Kafka is far away or slow."""
    isolation_level: Literal["read_committed", "read_uncommitted"] = "read_committed"
    """read_committed shows the records of a transaction after its commit and never those of an aborted transaction.
    read_uncommitted shows all records immediately; choose it if clients need records before the commit."""
    client_rack: Annotated[str, Value(max_length=249, example="eu-central-1a")] = ""
    """The rack of this process, in the form that the brokers use for broker.rack; in a cloud, the availability zone. Set
    it if the brokers' replica.selector.class is RackAwareReplicaSelector: kafkasse then reads from replicas in this
    rack, which avoids traffic between zones. Records arrive later, because followers receive them after the leader.
    Empty: read from leaders."""
    max_fetch_bytes: Annotated[int, Value(at_least=1024, at_most=268435456)] = 1048576
    """The maximum number of bytes in one fetch from Kafka. If several brokers lead the partitions, each returns at most
    an equal share. A client that is catching up takes about three times as much memory. If the next batch of records is
    larger, the broker returns it anyway. Lower this limit if many clients catch up at the same time."""
    max_decompressed_bytes: Annotated[int, Value(at_least=1048576, at_most=1073741824)] = 16777216
    """The maximum size of a compressed batch of records after decompression. The limit protects the worker's memory,
    because one compressed megabyte can contain a gigabyte. Clients receive a gap event for a larger batch. Raise it if
    your producers write larger batches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteSettings:
    """Read by kafkasse.config.routes, which creates the routes."""

    allowed_topics: Annotated[
        tuple[TopicPattern, ...], Value("a list of topic names and patterns", example=["orders", "events.*"])
    ] = ()
    """The topics that clients may read at /{topics}: names and patterns such as events.*. By default there are none.
    ["*"] allows all topics except internal ones, whose names in Kafka start with two underscores. To allow an internal
    topic, give its exact name."""
    topic_groups: Annotated[
        Mapping[
            Annotated[TopicName, Value("letters, digits, dots, underscores and hyphens", example="changes")],
            Annotated[
                Sequence[Annotated[TopicName, Value(example="eu.changes")]],
                Value("a list of at least one topic name", min_items=1, example=["eu.changes", "us.changes"]),
            ],
        ],
        Value("a mapping of names to lists of topics", example={"changes": ["eu.changes", "us.changes"]}),
    ] = field(default_factory=dict)
    """Names that clients can use at /{topics} instead of a list of topics. The topics must be in allowed_topics. Add a
    group if clients should not need to know the topics of a stream, for example one topic for each data center. If a
    topic and a group have the same name, the name means the group."""
    schema_registry: RegistryMapping | None = None
    """The schema registry: Confluent's, or one with the same REST API, such as Karapace or Redpanda's. Required if a
    decoder is registry."""
    schema_registries: Annotated[
        Mapping[str, Annotated[RegistryMapping, Value(example={"url": "https://registry.eu.example"})]],
        Value(
            "a mapping of names of clusters to schema registries",
            example={"eu": {"url": "https://registry.eu.example"}},
        ),
    ] = field(default_factory=dict)
    """Schema registries by the name of their cluster. All other clusters use schema_registry. Set it if clusters have
    registries of their own, because the same schema ID means another schema in another registry."""
    decoder: Annotated[Literal["json", "registry"], Value(example="registry"), OfRoutes()] = "json"
    """How values become JSON. json: they are JSON already, or are sent unchanged. registry: each record names its schema
    in Confluent's wire format, and the schema registry knows whether it is Avro, Protobuf or JSON Schema. Set it to
    registry if your producers use a schema registry."""
    validate_values: Annotated[bool, Value(example=True), OfRoutes()] = False
    """Whether values are validated against their JSON Schema in the registry. A value that is not valid is skipped,
    logged and counted. Avro and Protobuf values always match their schemas. Set it to true if some producers do not
    validate, and if you trust everyone who registers schemas: validation takes much CPU time, and a regular expression
    that backtracks can stall a worker."""
    id_type: Annotated[Literal["offset", "timestamp", "both"], Value(example="both"), OfRoutes()] = "offset"
    """What an event ID contains for each partition. offset is exact. timestamp lets clients resume at another cluster,
    but may skip records that share a millisecond. both is exact at this cluster, and at another cluster it repeats
    records instead of skipping them."""
    compact_ids: Annotated[bool | None, Value(example=True), OfRoutes()] = None
    """Whether event IDs have the compact form: always (true), never (false), or only if the JSON form could become
    longer than 4,000 bytes (null), which many servers and proxies reject in a URL or header. Set it to true if your
    servers or proxies reject shorter event IDs, too."""
    access: Annotated[tuple[GrantOfVisitors, ...], Value("a list of guards", example=["customers"])] = ()
    """The guards whose visitors may read /{topics} and every route without an access setting of its own. Set it, or
    public, if allowed_topics is not empty."""
    client_filters: Annotated[
        tuple[ClientFilter, ...],
        Value("a list of key, header.NAME, field.PATH and filter", example=["key", "header.type"]),
        OfRoutes(),
    ] = ()
    """The filters that clients may set in their queries, on /{topics} and on routes that do not set their own: key,
    header.NAME, field.PATH or filter, which is a CEL expression. header.* and field.* allow all names. By default there
    are none. List the parts of your records by which clients should be able to select. Each different expression is a
    feed of its own, which evaluates each record, so allow filter only to clients that you trust with this CPU time."""
    public: Annotated[bool, Value(example=True)] = False
    """Whether everyone may read /{topics} and every route without an access setting. By default, such a route is an
    error at startup, so that nobody publishes a route by accident. Set it to true for a server whose data is public, or
    if your own app or proxy identifies the visitors."""
    routes: Annotated[
        Mapping[Annotated[Name, Value(example="prices")], RouteMapping],
        Value("a mapping of names to routes", example={"prices": {"path": "/prices", "topics": ["prices"]}}),
    ] = field(default_factory=dict)
    """Named streams: the topics of each, its path, the format of its events and where new clients start."""

    topic_prefix: str  # of KafkaSettings
    cors_origins: tuple[str, ...]  # of WebSettings
    cors_credentials: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class WebSettings:
    """Read by kafkasse.web."""

    heartbeat_s: Annotated[float, Value(above=0, at_most=300), OfRoutes(at_least=1, example=30)] = 4
    """Seconds without events after which the server sends a comment, so that clients and proxies keep the connection
    open. Some clients disconnect after 5 s without data (okhttp-eventsource, launchdarkly-eventsource). If you have no
    such clients, raise it to save CPU time, but keep it below the shortest idle timeout on the way to your clients: 55 s
    on Heroku, 60 s in many load balancers."""
    retry_ms: Annotated[int, Value(at_least=0, at_most=600000), OfRoutes(example=10000)] = 2000
    """Milliseconds that clients wait before they reconnect. The server varies the value by up to a half, so that clients
    do not all reconnect at the same moment. Raise it if a restart causes too many connections at once."""
    max_stream_age_s: Annotated[float, Value(at_least=0, at_most=604800, example=3600), OfRoutes()] = 0
    """Seconds after which the server ends a stream, so that the client reconnects and resumes before a platform cuts the
    connection. Set it below your platform's limit on the duration of a request. The server shortens it by up to a tenth,
    at random for each stream, so that clients do not all reconnect at the same moment. 0 means no limit."""
    shared_cache_s: Annotated[int, Value(at_least=0, at_most=31536000, example=3600), OfRoutes()] = 0
    """Seconds for which a shared cache, such as a CDN, may keep the chunks of finite reads that do not change any more.
    0: no cache may keep a chunk. Set it only if everyone may read the stream: kafkasse cannot know whether your app or a
    proxy checks a login, and a cache would send a stored chunk without this check. Chunks of routes with guards are
    never stored."""
    write_timeout_s: Annotated[float, Value(above=0, at_most=3600)] = 30
    """Seconds after which the server closes a stream whose client accepts no bytes, or has vanished without closing the
    connection. The client resumes with its Last-Event-ID. Lower it to free the memory of stalled clients sooner; raise
    it for clients on very slow connections."""
    max_streams: Annotated[int, Value(at_least=1, at_most=1000000)] = 8000
    """The maximum number of open streams in one worker. The server responds to further requests with status 503 and
    Retry-After. Set it to what the worker's memory and file descriptors allow: each stream takes one descriptor."""
    max_streams_per_client: Annotated[int, Value(at_least=1, at_most=1000000, example=20)] = 8000
    """The maximum number of open streams that one client address has in one worker. The server responds to further
    requests with status 429. Lower it so that one client cannot use up max_streams. Behind a proxy, set trusted_proxies
    as well: otherwise all clients count as one address."""
    max_rejections_per_s: Annotated[float, Value(at_least=0, at_most=1000000, example=10)] = 2
    """The number of requests per second of one client address that one worker rejects (status 4xx) without a delay,
    after the first 20. Some clients repeat a rejected request in a loop; this setting limits the work that they cause.
    Requests that succeed are never delayed. Raise it, or set 0 for no limit, if many clients share an address and cannot
    be distinguished with trusted_proxies."""
    max_topics_per_stream: Annotated[int, Value(at_least=1, at_most=1000)] = 50
    """The maximum number of topics in one stream. Each topic adds to the work of the feed and to the length of every
    event ID. Raise it if clients need more topics in one stream."""
    max_client_filters: Annotated[int, Value(at_least=1, at_most=1000)] = 100
    """The maximum number of different filters that the queries of clients cause in one worker: expressions, and sets of
    names such as header.type. Each is evaluated for every record of its topics. An address can have at most as many
    filters as are still free, so at most half of them. The server responds to further filters with status 429 if the
    address has half of them, and with status 503 otherwise. Lower it if your topics have thousands of records per
    second."""
    max_last_event_id_bytes: Annotated[int, Value(at_least=256, at_most=65536)] = 65536
    """The maximum length of a Last-Event-ID in bytes. The server rejects a stream whose event IDs could become longer.
    Lower it to the header limit of your proxies, so that a client gets an error at once if it could not resume the
    stream. It cannot be raised, because gunicorn.conf.py allows no longer headers."""
    trusted_proxies: Annotated[
        int | tuple[Annotated[str, Value("an IP address, or a network such as 10.0.0.0/8", example="10.0.0.0/8")], ...],
        Value(
            "a whole number from 0 to 10, or a list of networks",
            at_least=0,
            at_most=10,
            examples=[1, ["10.0.0.0/8", "::1"]],
        ),
    ] = 0
    """Your own proxies in front of the server: either their number, if each of them adds an address to X-Forwarded-For
    (1 on Heroku), or a list of their addresses and networks. Use the list if some requests pass through more proxies
    than others. The client's address is then the last one in the header that is not in the list. Unless the setting
    is 0, the catalog, the documents and the links to errors have the URL in X-Forwarded-Host, -Proto and -Prefix. With
    0 the server ignores these headers, because clients can write anything into them."""
    id_frequency: Annotated[Literal["event", "run"], Value(example="run")] = "event"
    """event gives every event an ID, so that a client never receives an event twice. run gives an ID only to the last of
    the events that are encoded together, at most 64. A client that loses its connection within a run receives the run
    again. Choose run for streams with hundreds of partitions: it saves most of the bytes."""
    position_events: Annotated[bool, Value(example=False), OfRoutes()] = True
    """Whether the server sends an event ID without a record as an event named position, at the start of a stream and
    whenever the position has moved without an event. Set it to false only for clients that cannot handle an event with
    an unknown name, or that read the data of all events as records: the server then sends the ID without data, and many
    clients, Firefox among them, ignore such an ID. The end of a snapshot is such an event too; with false, only JSON
    lines contain it."""
    compression: Annotated[
        tuple[Annotated[Literal["zstd", "gzip"], Value(example="gzip")], ...],
        Value("a list of zstd and gzip", unique=True, example=["zstd", "gzip"]),
    ] = ()
    """The content codings that clients may choose for streams, in order of preference. Enable compression to save
    bandwidth: records of 700 bytes shrink to 42 %, runs of such records to 23 %. Leave it off if a proxy compresses the
    streams, or if a client could find out a secret by comparing the sizes of events that contain both the secret and the
    client's own text."""
    cors_origins: Annotated[
        tuple[Origin, ...], Value("a list of origins", example=["https://shop.example"]), OfRoutes()
    ] = ()
    """The origins whose web pages may read the streams, or * for all. By default only pages of the server's own origin
    may read them."""
    cors_credentials: Annotated[bool, Value(example=True), OfRoutes()] = False
    """Whether pages of cors_origins may send cookies and other credentials with their requests. Set it to true if your
    app checks a cookie. Every page of these origins can then read what its visitors may read, so cors_origins must list
    the origins: * and null are errors."""
    catalog: Annotated[bool | None, Value(example=True)] = None
    """Whether the server lists its streams at / and /-/catalog, and describes them in /-/openapi.json and
    /-/asyncapi.json. Visitors see only streams that they may open, unless the route sets listed. null: a standalone
    server (kafkasse serve, wsgi.py) does, and a blueprint in your app does not, because the app may use the URL /
    itself. Set it to false if the list of your topics is not meant for the public."""
    console: Annotated[bool | None, Value(example=True)] = None
    """Whether browsers get the web console at /: a page that lists the streams, shows their events, and shows operators
    the state of the server. It shows visitors only what they may read. null: a standalone server (kafkasse serve,
    wsgi.py) has it unless catalog is false, and a blueprint in your app does not. With true, a blueprint serves its
    catalog too. Set it to false if / should remain a page without scripts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedSettings:
    """Read by kafkasse.feed. kafkasse.app reads `archive` and `archives`."""

    metadata_refresh_s: Annotated[float, Value(above=0, at_most=300)] = 3
    """Seconds between refreshes of the metadata of the topics that are being read. New partitions and deleted or
    recreated topics are noticed within twice this time. Raise it to send Kafka fewer requests."""
    idle_feed_timeout_s: Annotated[float, Value(at_least=0, at_most=3600)] = 30
    """Seconds that a feed keeps running after its last client has left, so that a client that reconnects can resume from
    the ring. Lower it if clients open many different selections."""
    max_ring_bytes: Annotated[int, Value(at_least=1024, at_most=1073741824)] = 4194304
    """The maximum number of bytes in the ring of each feed: events, event IDs and bookkeeping. A client whose position
    is inside the ring does not have to catch up. Raise it if clients often reconnect after longer breaks."""
    max_total_ring_bytes: Annotated[int, Value(at_least=1024, at_most=17179869184)] = 134217728
    """The maximum number of bytes in all rings of one worker together. With many feeds, each ring gets an equal share,
    which is then less than max_ring_bytes. Lower it if the worker has little memory."""
    max_catch_ups: Annotated[int, Value(at_least=1, at_most=100000)] = 64
    """The maximum number of clients of one worker that catch up at the same time, each with its own connections to
    Kafka. Others wait in their open streams. Client addresses take turns, and while others wait, each turn lasts about
    two seconds. Raise it if many clients catch up at the same time and the worker has memory for it: each takes about
    three times max_fetch_bytes, and max_decompressed_bytes more while it reads a large compressed batch."""
    max_snapshot_bytes: Annotated[int, Value(at_least=1024, at_most=17179869184)] = 134217728
    """The maximum number of bytes of a snapshot: events, keys and bookkeeping. The clients of a route with start:
    snapshot share one if they have the same content type and filters. Two versions of it may be in memory. If it would
    become larger, its clients get an error. Raise it for larger tables."""
    archive: Annotated[str, Value("the path of a directory", example="/srv/kafka-archive")] = ""
    """The directory of an archive that kafkasse archive run writes. Set it if clients should receive records that Kafka
    has already removed: a stream that starts before Kafka's oldest record then reads the archive first. The directory
    may be a mounted network file system. Empty: clients receive a gap instead. Needs the package pyarrow (pip install
    kafkasse[archive])."""
    archives: Annotated[
        Mapping[str, Annotated[str, Value("the path of a directory", min_length=1, example="/srv/eu-archive")]],
        Value("a mapping of names of clusters to directories", example={"eu": "/srv/eu-archive"}),
    ] = field(default_factory=dict)
    """The archives of the clusters of the setting clusters. Set it if routes of these clusters should start from an
    archive."""

    kafka_timeout_s: float  # of KafkaSettings
    heartbeat_s: float  # of WebSettings
    # No settings; only tests pass other values. A chunk is what is written at once to a client.
    max_chunk_bytes: int = 131_072
    max_ring_records: int = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessSettings:
    """Read by kafkasse.access. `guards` may contain functions of the application, which repr() does not show."""

    guards: Annotated[
        Mapping[Annotated[Name, Value(example="customers")], GuardMapping],
        Value(
            "a mapping of names to guards", example={"partners": {"api_keys": {"file": "/run/secrets/partner-keys"}}}
        ),
    ] = field(repr=False, default_factory=dict)
    """The guards that identify visitors, by name. Each is a mapping with jwt or api_keys. In code, a guard can also be a
    function of your app that receives Flask's request and returns a kafkasse.Visitor or None."""
    operations_access: Annotated[tuple[GrantOfVisitors, ...], Value("a list of guards", example=["public"])] = ()
    """The guards whose visitors may read /-/metrics and /-/status, and list and end streams at /-/streams, at the address
    of the streams; public stands for everyone. By default, nobody may: these endpoints exist only at the second address,
    KAFKASSE_OPERATIONS_BIND. Use public only if your proxy rejects the public paths of these endpoints."""
    tickets: Annotated[bool, Value(example=True)] = False
    """Whether POST /-/ticket exchanges a token for a ticket: short-lived text for the URL of one stream. Set it to true
    for pages of other origins that use EventSource, which cannot send a header."""
    ticket_secret_file: Annotated[str, Value("the path of a file", example="/run/secrets/ticket-secret")] = field(
        repr=False, default=""
    )
    """A file with a secret of at least 32 bytes that encrypts the tickets. Set it if a load balancer distributes
    requests over several machines: all of them need the same secret. By default, the processes of one machine share a
    random secret."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaRegistrySettings:
    """Read by kafkasse.records.registry."""

    url: Annotated[
        str,
        Value(
            "an http or https URL without a user name or a query",
            pattern=r"^https?://[^\s/@?#]+(/[^\s@?#]*)?$",
            example="https://registry.example",
        ),
    ]
    """The address of the registry, with the path below which it serves its API."""
    username: Annotated[str | None, Value("text", min_length=1, example="kafkasse")] = None
    """The user name of the login, or the API key. Requires password_file."""
    password_file: Annotated[FilePath, Value(example="/run/secrets/registry")] | None = None
    """A file that contains the password, or the API secret. It is read for each request, so you can change the password
    while the server runs."""
    ca_file: Annotated[FilePath, Value(example="/etc/kafka/ca.pem")] | None = None
    """A PEM file with the certificates of the authorities to trust, instead of those that requests trusts."""
    cert_file: Annotated[FilePath, Value(example="/run/secrets/registry.crt")] | None = None
    """A PEM file with the client certificate with which kafkasse logs in, and with the certificates between it and its
    authority. Set it if the registry requires client certificates (mutual TLS)."""
    key_file: Annotated[FilePath, Value(example="/run/secrets/registry.key")] | None = None
    """A PEM file with the private key of cert_file, without a password. Not needed if cert_file contains the key."""
    timeout_s: Annotated[float, Value(above=0, at_most=60)] = 5
    """Seconds to wait for a response of the registry."""
    max_wait_s: Annotated[float, Value(at_least=0, at_most=3600)] = 30
    """Seconds that streams wait for a schema while the registry is unavailable. They receive heartbeats meanwhile. After
    that, they end with status 503, and their clients resume at the record. Raise it if clients should not notice longer
    outages."""


# The mappings inside of settings. Their fields are optional, unless they have no default.


class NamedRoute:
    """A route of the setting `routes`. It also has each setting above that is marked with OfRoutes."""

    path: Annotated[
        str,
        Value(
            "a path that starts with /, whose segments are parameters such as {currency} or contain only "
            "letters, digits and the characters . _ ~ -",
            pattern=r"^(?!/$)(/([A-Za-z0-9._~-]*|\{[A-Za-z][A-Za-z0-9_]*\}))+$",
            examples=["/prices", "/prices/{currency}"],
        ),
    ]
    """The URL path of the stream, below the blueprint's prefix. A segment {name} is a path parameter: it matches any
    segment, and the other settings of the route can refer to its value. If several routes match a request, a fixed
    segment takes precedence over a parameter."""
    topics: Annotated[
        Sequence[
            Annotated[
                str,
                Value(
                    "a topic name or a pattern: at most 249 letters, digits, dots, underscores and hyphens, "
                    "and for patterns *, ? and [abc]",
                    pattern=r"^[a-zA-Z0-9._*?\[\]!-]{1,249}$",
                    example="prices",
                ),
            ]
        ],
        Value("a list of at least one topic name or pattern", min_items=1, example=["prices"]),
    ]
    """The topics of the stream: names, and patterns with *, ? or [abc]. A topic that is created later and matches a
    pattern joins the open streams with its first record. The topics do not have to be in allowed_topics: the route
    itself allows them. A pattern never matches an internal topic, such as __consumer_offsets."""
    access: Annotated[
        str | Sequence[GrantOfVisitors] | None,
        Value("public, or a list of guards", pattern=r"^public$", min_items=1, example=["customers"]),
    ] = None
    """Who may read the stream: public for everyone, or the guards whose visitors may read it. It is required unless the
    setting access or public applies to all routes."""
    format: Annotated[Literal["kafkasse", "value", "envelope", "cloudevents"], Value(example="value")] = "kafkasse"
    """The format of each event's data. kafkasse: the record's JSON object, with a member _kafka added. value: the
    record's value, unchanged. envelope: an object with topic, partition, offset, timestamp, key, headers and value.
    cloudevents: CloudEvents 1.0 in JSON."""
    start: Annotated[
        str,
        Value(
            "latest, earliest, snapshot, a duration such as -15m, or an ISO 8601 time",
            examples=["snapshot", "-15m", "2026-11-21T10:00:00Z"],
        ),
    ] = "latest"
    """Where a client without an event ID starts. latest: at the end. earliest: at the first record that Kafka still has.
    snapshot: with the newest record of each key and then live, for compacted topics that hold a table. A duration such
    as -15m (units s, m, h, d): at the first record of the last 15 minutes. An ISO 8601 time, in UTC if it has no time
    zone: at the first record since then."""
    description: Annotated[str | None, Value(max_length=10000, example="Prices in euros, one record per currency")] = (
        None
    )
    """What the stream contains, for the catalog of streams and the generated API documents."""
    listed: Annotated[bool | None, Value(example=False)] = None
    """Whether the catalog shows the stream to everyone (true) or to no one (false). By default, it shows the stream to
    visitors who may open it."""
    where: Annotated[
        Mapping[str, Any] | None,
        Value(
            "a mapping with key, headers, fields or expression",
            of="Conditions",
            min_members=1,
            example={
                "key": "{claims.sub}",
                "headers": {"type": ["created", "paid"]},
                "expression": "value.amount > 10.0",
            },
        ),
    ] = None
    """Which records of the topics the stream contains: those that meet all of these conditions. A text such as
    {claims.sub} or {currency} stands for a claim of the visitor or a path parameter; {{ and }} are literal braces.
    Clients with different values of these share a feed."""
    newest_by: Annotated[
        Mapping[str, Any] | None,
        Value("a mapping with header", of="NewestBySettings", example={"header": "kafkasse-version"}),
    ] = None
    """Drop a record if a record of the same key before it has the same or a higher version. Set it if the producer may
    repeat records after a failure and writes a version into a header of each record, as kafkasse's pipelines do: then
    clients never see an older value of a key after a newer one, even if they reconnect. Records without a key or without
    the header are sent."""
    cluster: Annotated[str | None, Value(example="eu")] = None
    """The cluster that has the topics: a name from clusters. By default, the cluster of the setting kafka."""
    fields: Annotated[
        Sequence[MemberPath] | None, Value("a list of paths", min_items=1, example=["id", "amount", "customer.name"])
    ] = None
    """The members of the value that clients receive, as paths such as customer.name; all other members are removed. A
    path applies to each element of an array. Records whose value is not a JSON object or array are skipped. Set it to
    publish a part of a topic, or to save bytes. Keys and headers are sent as they are."""
    redact: Annotated[
        Sequence[Annotated[MemberPath, Value(example="customer.email")]] | None,
        Value("a list of paths", min_items=1, example=["customer.email", "items.price"]),
    ] = None
    """The members of the value that clients never receive, as paths such as customer.email. All other members are sent,
    also those that producers add later; use fields to send only what you list. Records whose value is not a JSON object
    or array are skipped. Keys and headers are sent as they are."""
    max_streams: Annotated[int | None, Value(at_least=1, at_most=1000000, example=1000)] = None
    """The maximum number of open streams of this route in one worker. The server responds to further requests with
    status 503 and Retry-After. Set it so that one route cannot use up the general max_streams, which applies as well."""
    max_streams_per_client: Annotated[int | None, Value(at_least=1, at_most=1000000, example=2)] = None
    """The maximum number of open streams of this route that one client address has in one worker. The server responds to
    further requests with status 429. The general max_streams_per_client applies as well."""


class Conditions:
    """The setting `where` of a route."""

    key: Annotated[OneOf, Value(example="{claims.sub}")] | None = None
    """The record's key is one of these."""
    headers: Annotated[
        Mapping[str, OneOf] | None,
        Value("a mapping of header names to values", min_members=1, example={"type": ["created", "paid"]}),
    ] = None
    """The record has a header with this name and one of these values."""
    fields: Annotated[
        Mapping[str, OneOf] | None, Value("a mapping of paths to values", min_members=1, example={"customer.id": 7})
    ] = None
    """The field of the JSON value at this path, such as customer.id, is one of these. 12 and "12" are the same value."""
    expression: Annotated[
        str | None,
        Value(
            "a CEL expression with at most 500 characters", min_length=1, max_length=500, example="value.amount > 10.0"
        ),
    ] = None
    """A CEL expression that is true for the record. It can read topic, partition, offset, timestamp, key, headers and
    value. Needs pip install "kafkasse[cel]"."""


class NewestBySettings:
    """The setting `newest_by` of a route."""

    header: Annotated[str, Value("the name of a header", min_length=1, max_length=249, example="kafkasse-version")]
    """The header with the version: a decimal integer that grows with each change of the key."""
    look_back: Annotated[int, Value(at_least=1, at_most=100000)] = 1000
    """How many offsets before a record, in its partition, the server searches for a newer record of the same key. A
    client that reads through its own cursor first reads that many records before its position. Raise it if the producer
    may repeat more records."""


class GrantSettings:
    """A guard, and the claims that its visitors need."""

    guard: Annotated[str, Value(example="customers")]
    """The name of a guard."""
    claims: Annotated[
        Mapping[str, Annotated[Sequence[str | float | bool], Value("a list of values", min_items=1, example=["admin"])]]
        | None,
        Value("a mapping of claims to lists of values", example={"role": ["admin"]}),
    ] = None
    """For each claim, the values of which the visitor needs one. {name} stands for a path parameter."""


class GuardSettings:
    """A guard of the setting `guards`."""

    jwt: Annotated[
        Mapping[str, Any] | None,
        Value(
            "a mapping",
            of="JwtSettings",
            example={
                "jwks_url": "https://id.example/jwks.json",
                "issuer": "https://id.example/",
                "audience": "shop",
                "algorithms": ["RS256"],
            },
        ),
    ] = None
    """Accept the JSON Web Tokens of one issuer. Exactly one of jwks_url, jwks_file and secret_file says which keys
    verify them."""
    api_keys: Annotated[
        Mapping[str, Any] | None,
        Value("a mapping with file", of="ApiKeysSettings", example={"file": "/run/secrets/partner-keys"}),
    ] = None
    """Accept the API keys whose hashes are in a file. kafkasse key create NAME prints a new key and its line."""
    cookie: Annotated[
        str | None,
        Value("a name that starts with __Host-", pattern=r"^__Host-[A-Za-z0-9_-]{1,100}$", example="__Host-token"),
    ] = None
    """A cookie that may contain the token, for pages that use EventSource. Your login must set it with Secure, HttpOnly
    and Path=/."""


class JwtSettings:
    """The setting `jwt` of a guard."""

    jwks_url: Annotated[str | None, Value(example="https://id.example/jwks.json")] = None
    """The https URL of the issuer's key set (JWKS). It is fetched again every 10 minutes, and when a token names an
    unknown key."""
    jwks_file: Annotated[str | None, Value(example="/etc/kafkasse/jwks.json")] = None
    """A file with the issuer's key set (JWKS). Changes take effect within a second."""
    secret_file: Annotated[str | None, Value("the path of a file", example="/run/secrets/jwt-secret")] = None
    """A file with a secret that the issuer shares with this server: at least 32 bytes for HS256, 48 for HS384, and 64
    for HS512. Everyone who knows it can issue tokens, so prefer a key set."""
    issuer: Annotated[str, Value("text", min_length=1, example="https://id.example/")]
    """The claim iss that every token must have."""
    audience: Annotated[
        str | Sequence[Annotated[str, Value("text", min_length=1)]],
        Value("text, or a list of texts", min_length=1, min_items=1, example="shop"),
    ]
    """The claim aud that every token must have. With a list, one of its items is enough."""
    algorithms: Annotated[
        Sequence[Annotated[Algorithm, Value(example="RS256")]],
        Value("a list of algorithms", min_items=1, example=["RS256"]),
    ]
    """The signature algorithms that the issuer uses. HS256 to HS512 need secret_file, all others need jwks_url or
    jwks_file."""
    leeway_s: Annotated[float, Value(at_least=0, at_most=300)] = 30
    """How far the issuer's clock and this server's may differ, in seconds. A token is accepted this long before nbf and
    after exp."""


class ApiKeysSettings:
    """The setting `api_keys` of a guard."""

    file: Annotated[str, Value(example="/run/secrets/partner-keys")]
    """A file with the lines NAME:HASH. Changes take effect within a second, and the streams of a revoked key end within
    three."""


class KafkaClient:
    """The settings of kafka-python's client, in `kafka` and in each of the `clusters`."""

    bootstrap_servers: Annotated[
        str | Sequence[str] | None,
        Value("HOST:PORT, or several separated by commas or in a list", min_items=1, example="kafka-1.example:9092"),
    ] = None
    """The addresses of one or more brokers."""
    security_protocol: Annotated[
        Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] | None, Value(example="SASL_SSL")
    ] = None
    """Whether to use TLS (SSL) and a login (SASL)."""
    sasl_mechanism: Annotated[
        Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI", "AWS_MSK_IAM"] | None,
        Value(example="SCRAM-SHA-512"),
    ] = None
    """The SASL mechanism for the login."""
    sasl_plain_username: Annotated[str | None, Value(example="kafkasse")] = None
    """The user name for PLAIN and SCRAM."""
    sasl_plain_password: Annotated[str | None, Value(example="the password in quotes")] = None
    """The password for PLAIN and SCRAM."""
    sasl_kerberos_name: Annotated[Any, Value(example="kafka@kafka-1.example")] = None
    """The Kerberos principal of the broker."""
    sasl_kerberos_service_name: Annotated[str | None, Value(example="kafka")] = None
    """The service name for GSSAPI."""
    sasl_kerberos_domain_name: Annotated[str | None, Value(nullable=True, example="kafka.example")] = None
    """The Kerberos domain name of the brokers."""
    sasl_oauth_token_provider: Annotated[Any, Value(code_only=True)] = None
    """A function that returns a token for OAUTHBEARER, or an object whose method token() returns one. It is called for
    each connection, so it should return the same token until that expires."""
    ssl_cafile: Annotated[str | None, Value(example="/etc/kafka/ca.pem")] = None
    """A PEM file with the certificates of the authorities to trust."""
    ssl_certfile: Annotated[str | None, Value(example="/etc/kafka/client.pem")] = None
    """A PEM file with the client's certificate."""
    ssl_keyfile: Annotated[str | None, Value(example="/etc/kafka/client.key")] = None
    """A PEM file with the client's private key."""
    ssl_password: Annotated[str | None, Value(example="the password in quotes")] = None
    """The password of the private key."""
    ssl_crlfile: Annotated[str | None, Value(example="/etc/kafka/revoked.pem")] = None
    """A PEM file with revoked certificates."""
    ssl_check_hostname: Annotated[bool | None, Value(example=True)] = None
    """Whether the broker's certificate must contain its host name."""
    ssl_context: Annotated[Any, Value(code_only=True)] = None
    """An ssl.SSLContext, instead of the other ssl settings."""
    proxy_url: Annotated[str | None, Value(nullable=True, example="socks5://proxy.example:1080")] = None
    """A SOCKS5 or HTTP proxy for the connections to Kafka."""
    client_id: Annotated[str | None, Value(example="kafkasse-shop")] = None
    """The name of this client in the brokers' logs and quotas."""
    client_dns_lookup: Annotated[str | None, Value(example="use_all_dns_ips")] = None
    """How to use host names that have several addresses."""
    api_version: Annotated[Sequence[int] | None, Value("a list of numbers", nullable=True, example=[3, 9])] = None
    """The version of Kafka, instead of detecting it."""
    request_timeout_ms: Annotated[int | None, Value(at_least=1, example=10000)] = None
    """Milliseconds to wait for a response."""
    bootstrap_timeout_ms: Annotated[int | None, Value(at_least=1, example=5000)] = None
    """Milliseconds to wait for the first connection."""
    connections_max_idle_ms: Annotated[int | None, Value(at_least=1, example=540000)] = None
    """Milliseconds after which an idle connection is closed."""
    metadata_max_age_ms: Annotated[int | None, Value(at_least=1, example=300000)] = None
    """Milliseconds after which kafka-python refreshes its own metadata."""
    reconnect_backoff_ms: Annotated[int | None, Value(at_least=0, example=50)] = None
    """Milliseconds before the first attempt to reconnect."""
    reconnect_backoff_max_ms: Annotated[int | None, Value(at_least=0, example=1000)] = None
    """The longest time between attempts to reconnect."""
    retry_backoff_ms: Annotated[int | None, Value(at_least=0, example=100)] = None
    """Milliseconds before a failed request is repeated."""
    max_in_flight_requests_per_connection: Annotated[int | None, Value(at_least=1, example=1000)] = None
    """The maximum number of requests that wait for a response on one connection."""
    receive_buffer_bytes: Annotated[int | None, Value(at_least=0, nullable=True, example=65536)] = None
    """The size of the socket's receive buffer."""
    receive_message_max_bytes: Annotated[int | None, Value(at_least=1, example=100000000)] = None
    """The maximum size of a response."""
    send_buffer_bytes: Annotated[int | None, Value(at_least=0, nullable=True, example=65536)] = None
    """The size of the socket's send buffer."""
    socket_options: Annotated[
        Sequence[Sequence[Any]] | None, Value("a list of [level, option, value]", example=[[6, 1, 1]])
    ] = None
    """Options for setsockopt: a list of [level, option, value]."""
