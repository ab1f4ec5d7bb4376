"""Config: the precedence of the sources, the typed objects, and routes."""

from __future__ import annotations

import typing

import pytest

from docs.site import config_schema
from kafkasse import schemas
from kafkasse.config import Config
from kafkasse.config.kafka import servers
from kafkasse.errors import ConfigurationError
from kafkasse.records.position import IdType
from kafkasse.route import StartAt
from tests.config.conftest import settings_of

SETTINGS = schemas.read("config")["properties"]
ROUTE_SETTINGS = schemas.read("config")["$defs"]["route"]["properties"]
NOT_SETTINGS = {"max_chunk_bytes", "max_ring_records"}  # constants that tests change


# The schema and the typed objects.


def test_the_default_heartbeat_keeps_clients_that_disconnect_after_5_s():
    """okhttp-eventsource and LaunchDarkly's client on Node disconnect after 5 s without data."""
    assert Config().web.heartbeat_s <= 4


def test_the_schema_is_generated_from_the_typed_objects():
    """Run `python -m docs.site.tables` after a change of kafkasse/settings.py."""
    assert config_schema.text() == config_schema.FILE.read_text("utf-8")


def test_a_setting_of_several_packages_has_the_same_type_in_each():
    """It is declared in one class. The others repeat its name and its type."""
    types = [(name, each) for owner in config_schema.GENERAL for name, each in typing.get_type_hints(owner).items()]

    assert len(dict(types)) == len(set(types))
    assert set(SETTINGS) == set(dict(types)) - NOT_SETTINGS


@pytest.mark.parametrize(("owner", "name"), [
    *(("all routes", name) for name in SETTINGS), *(("a route", name) for name in ROUTE_SETTINGS)
])  # fmt: skip
def test_every_setting_has_a_description_and_a_valid_example(owner, name):
    """Every pattern has a description in words, because no error message shows a regular expression."""
    schema = {"all routes": SETTINGS, "a route": ROUTE_SETTINGS}[owner][name]

    assert len(schema["description"]) > 20
    for subschema in (schema, schema.get("items", {}), schema.get("propertyNames", {})):
        assert "pattern" not in subschema or "x-expected" in subschema
    if owner == "all routes" and name != "kafka":
        of_others = {"schema_registries": ["clusters"], "archives": ["clusters"], "decoder": ["schema_registry"]}
        needed = {other: SETTINGS[other]["examples"][0] for other in of_others.get(name, [])}
        if name == "access":
            needed["guards"] = {"customers": lambda _: None}
        Config(**{"allowed_topics": ["*"], **needed, name: schema["examples"][0]})


def test_defaults_are_valid():
    defaults = {name: setting["default"] for name, setting in SETTINGS.items()}

    assert defaults == defaults | {name: value for name, value in settings_of(Config()).items() if name in defaults}


# Precedence.


def test_code_wins_over_environment_over_file(write):
    file = write("max_topics_per_stream: 1\nretry_ms: 1\nheartbeat_s: 1\n")
    environ = {"KAFKASSE_CONFIG": str(file), "KAFKASSE_RETRY_MS": "2", "KAFKASSE_HEARTBEAT_S": "2"}

    config = Config.load(environ, heartbeat_s=3, max_topics_per_stream=None)

    assert (1, 2, 3) == (config.web.max_topics_per_stream, config.web.retry_ms, config.feed.heartbeat_s)


def test_the_settings_of_kafka_are_merged_one_by_one(write):
    """A variable replaces one setting of `kafka` and keeps the others of the file."""
    file = write("kafka: {bootstrap_servers: 'file:1', client_id: file, ssl_check_hostname: false}")
    environ = {"KAFKASSE_BOOTSTRAP_SERVERS": "environ:1", "KAFKASSE_KAFKA_CLIENT_ID": "environ"}

    kafka = Config.load(environ, file, kafka={"client_id": "code"}).kafka_settings()

    assert {"bootstrap_servers": "environ:1", "client_id": "code", "ssl_check_hostname": False} == kafka


def test_the_settings_of_each_cluster_are_merged_one_by_one(write):
    """A variable can add a password to a cluster of the file, and the names of clusters may contain underscores."""
    file = write("clusters: {eu_west: {bootstrap_servers: 'a:1', client_id: x}, us: {bootstrap_servers: 'b:1'}}")
    environ = {"KAFKASSE_CLUSTERS_EU_WEST_SSL_PASSWORD": "secret", "KAFKASSE_CLUSTERS_US_CLIENT_ID": "y"}

    config = Config.load(environ, file, clusters={"eu_west": {"client_id": "code"}})

    expected = {"bootstrap_servers": "a:1", "client_id": "code", "ssl_password": "secret"}
    assert expected == config.kafka_settings("eu_west")
    assert {"bootstrap_servers": "b:1", "client_id": "y"} == config.kafka_settings("us")
    assert [
        ("clusters.eu_west.bootstrap_servers", "a:1", f"{file}, line 1"),
        ("clusters.eu_west.client_id", "code", "the argument clusters['eu_west']['client_id']"),
        ("clusters.eu_west.ssl_password", "********", "KAFKASSE_CLUSTERS_EU_WEST_SSL_PASSWORD"),
    ] == sorted(tuple(setting) for setting in config.effective() if setting.name.startswith("clusters.eu_west"))


def test_topic_prefix_applies_to_one_cluster():
    clusters = {"eu": {"bootstrap_servers": "a:1"}}
    routes = {"a": {"path": "/a", "topics": ["t"]}, "b": {"path": "/b", "topics": ["t"], "cluster": "eu"}}

    config = Config(topic_prefix="shop.", clusters=clusters, routes=routes)

    assert ["shop.", "", "shop."] == [route.topic_prefix for route in config.routes]
    assert ["shop.", "", "shop."] == [config.topic_prefix(route.cluster) for route in config.routes]


def test_each_setting_keeps_its_source(write):
    file = write("retry_ms: 1\nkafka:\n  client_id: me\nroutes:\n  a:\n    path: /a\n    topics: [t]\n")

    effective = Config.load({"KAFKASSE_PUBLIC": "yes"}, file, max_streams=5).effective()

    sources = {name: (value, source) for name, value, source in effective}
    assert (1, f"{file}, line 1") == sources["retry_ms"]
    assert ("me", f"{file}, line 3") == sources["kafka.client_id"]
    assert ("/a", f"{file}, line 6") == sources["routes.a.path"]
    assert (True, "KAFKASSE_PUBLIC") == sources["public"]
    assert (5, "the argument max_streams") == sources["max_streams"]
    assert (4, "default") == sources["heartbeat_s"]


def test_kafka_is_on_this_machine_by_default():
    assert "localhost:9092" == servers(Config.load({}).kafka_settings())


def test_an_empty_file_sets_nothing(write):
    """A file without settings is valid, and so is a file in which `kafka:` has nothing below it."""
    assert settings_of(Config.load({})) == settings_of(Config.load({}, write("")))
    assert settings_of(Config.load({})) == settings_of(Config.load({}, write("kafka:\n")))


# The topics that are served.


def test_nothing_is_served_by_default():
    """Without allowed topics and routes there is nothing to serve, and the error says what to set."""
    config = Config.load({})

    with pytest.raises(ConfigurationError, match="KAFKASSE_ALLOWED_TOPICS="):
        config.check_servable()
    assert not config.routes[-1].allows("orders")


@pytest.mark.parametrize(
    "settings",
    [
        {"public": True, "allowed_topics": ["*"]},
        {"public": True, "routes": {"a": {"path": "/a", "topics": ["a"]}}},
        {"routes": {"a": {"path": "/a", "topics": ["a"], "access": "public"}}},  # /{topics} has no topics
    ],
)
def test_allowed_topics_or_a_route_are_enough_to_serve(settings):
    Config(**settings).check_servable()


def test_a_route_without_access_is_an_error(write):
    """Unless the whole server is public, each route must say who may read it, and so must /{topics}."""
    text = "allowed_topics: [a]\nroutes:\n  b: {path: /b, topics: [b]}\n  c: {path: /c, topics: [c], access: public}\n"
    file = write(text)

    with pytest.raises(ConfigurationError) as rejected:
        Config.load({}, file).check_servable()
    Config.load({"KAFKASSE_PUBLIC": "true"}, file).check_servable()

    first, second = (line.removeprefix(f"{file}, line ") for line in rejected.value.detail.splitlines())
    assert first.startswith("3: routes.b does not say who may read it: add access: [GUARD] or access: public.")
    assert first.endswith("set public: true (KAFKASSE_PUBLIC=true).")
    assert second.startswith("1: allowed_topics does not say who may read these topics: set access: [GUARD].")


def test_a_topic_prefix_does_not_open_internal_topics():
    """`["*"]` does not allow a name that, with the prefix, is the name of an internal topic."""
    open_route = Config(topic_prefix="__", allowed_topics=["*"]).routes[-1]

    assert not open_route.allows("consumer_offsets")


def test_routes(write):
    """A setting of a route overrides the general setting of the same name."""
    file = write(
        "id_type: both\nroutes:\n  a: {path: /a, topics: [t, u], format: value, start: snapshot}\n"
        "  b: {path: /b/c, topics: [t], id_type: offset, compact_ids: true}\n"
    )

    a, b, open_route = Config.load({}, file).routes

    assert ("/a", ("t", "u"), "value") == (a.path, a.topics, a.format)
    assert (StartAt.SNAPSHOT, IdType.BOTH) == (a.start, a.id_type)
    assert ("kafkasse", StartAt.LATEST, IdType.OFFSET, True) == (b.format, b.start, b.id_type, b.compact_ids)
    assert (None, (), IdType.BOTH) == (open_route.topics, open_route.allowed, open_route.id_type)


@pytest.mark.parametrize(
    ("start", "start_at", "start_time_ms"),
    [
        ("earliest", StartAt.EARLIEST, None),
        ("-90s", StartAt.LATEST, -90_000),
        ("-15m", StartAt.LATEST, -900_000),
        ("-2h", StartAt.LATEST, -7_200_000),
        ("-7d", StartAt.LATEST, -604_800_000),
        ("1970-01-01", StartAt.LATEST, 0),
        ("1970-01-01T01:00:00+01:00", StartAt.LATEST, 0),
        ("1970-01-01T00:00:01.5Z", StartAt.LATEST, 1_500),
    ],
)
def test_the_start_of_a_route(write, start, start_at, start_time_ms):
    """A start is a name, a duration back from now, or a time, which needs no quotes in YAML."""
    route = Config.load({}, write(f"routes: {{a: {{path: /a, topics: [t], start: {start}}}}}")).routes[0]

    assert (start_at, start_time_ms) == (route.start, route.start_time_ms)


def test_settings_of_the_open_route_from_the_environment():
    variables = {"ALLOWED_TOPICS": "a, events.* ,", "COMPACT_IDS": "1", "ID_TYPE": "both"}

    route = Config.load({f"KAFKASSE_{name}": text for name, text in variables.items()}).routes[-1]

    assert (("a", "events.*"), True, IdType.BOTH) == (route.allowed, route.compact_ids, route.id_type)


def test_warns_of_settings_without_effect_that_an_earlier_release_accepted():
    """They are not errors, so that an upgrade does not stop a server."""
    mine = {"path": "/me", "topics": ["orders"], "access": ["login"], "shared_cache_s": 60}
    news = {"path": "/news", "topics": ["news"], "access": "public", "shared_cache_s": 60}
    config = Config(
        guards={"login": lambda _: None},
        routes={"mine": mine, "news": news},
        clusters={"eu": {"bootstrap_servers": "eu.example:9092", "sasl_oauth_token_provider": str}},
    )

    assert [
        "routes.mine.shared_cache_s has no effect, because caches never store chunks of a route with guards: remove it.",
        "clusters.eu.sasl_oauth_token_provider has no effect without sasl_mechanism: OAUTHBEARER. Add this setting, or "
        "remove sasl_oauth_token_provider.",
    ] == list(config.warnings())
