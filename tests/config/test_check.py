"""Values that are not valid: each error names the source, the value, the valid values, and an example."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kafkasse.config import Config

Problems = Callable[..., list[str]]
Write = Callable[[str], Path]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("heartbeat_s: 0", "heartbeat_s must be a number above 0 and at most 300, not 0. Example: heartbeat_s: 4"),
        ("heartbeat_s: .nan", "heartbeat_s must be a number above 0 and at most 300, not NaN."),
        ("heartbeat_s: .inf", "heartbeat_s must be a number above 0 and at most 300, not Infinity."),
        ("max_streams: many", "max_streams must be a whole number from 1 to 1000000, not 'many'. Example: max_str"),
        ("max_streams: 2.0", "max_streams must be a whole number from 1 to 1000000, not 2.0."),
        ("max_streams: true", "max_streams must be a whole number from 1 to 1000000, not true."),
        ("max_streams: 2026-01-01", "max_streams must be a whole number from 1 to 1000000, not '2026-01-01'."),
        ("trusted_proxies: 11", "trusted_proxies must be a whole number from 0 to 10, or a list of networks, not 11. Ex"),
        ("trusted_proxies: 10.0.0.0/8", "trusted_proxies must be a whole number from 0 to 10, or a list of networks, no"),
        ("trusted_proxies: [5]", "trusted_proxies[0] must be an IP address, or a network such as 10.0.0.0/8, not 5. Ex"),
        ("trusted_proxies: [10.0.0.1/8]", "trusted_proxies[0] must be an IP address, or a network such as 10.0.0.0/8"),
        ("trusted_proxies: ['::/0']", "trusted_proxies[0] is '::/0', which contains all addresses, so any client"),
        ("public: 'no'", "public must be true or false, not 'no'. Example: public: true"),
        ("id_type: time", "id_type must be one of offset, timestamp, both, not 'time'. Example: id_type: \"both\""),
        ("compact_ids: 1", "compact_ids must be true or false or null, not 1. Example: compact_ids: true"),
        ("allowed_topics: t", "allowed_topics must be a list of topic names and patterns, not 't'."),
        ("allowed_topics:", "allowed_topics must be a list of topic names and patterns, not null."),
        ("allowed_topics: [5]", 'allowed_topics[0] must be a topic name, or a pattern with * ? or [...], not 5. Ex'),
        ("topic_prefix: a/b", "topic_prefix must be letters, digits, dots, underscores and hyphens, not 'a/b'."),
        ("topic_prefix: \"a\\n\"", "topic_prefix must be letters, digits, dots, underscores and hyphens, not 'a\\n'."),
        ("kafka: 5", "kafka must be a mapping of client settings, not 5."),
        ("kafka: [a]", "kafka must be a mapping of client settings, not a list."),
        ("kafka: {security_protocol: ssl}", "kafka.security_protocol must be one of PLAINTEXT, SSL, SASL_"),
        ("kafka: {security_protocol: [SSL]}", "kafka.security_protocol must be one of PLAINTEXT, SSL"),
        ("kafka: {request_timeout_ms: soon}", "kafka.request_timeout_ms must be a whole number of at least 1, not 'soon'."),
        ("routes:", "routes must be a mapping of names to routes, not null."),
        ("routes: {a: 5}", "routes.a must be a mapping with at least path and topics, not 5."),
        ("routes: {a: {path: /a}}", 'routes.a needs topics. Example: topics: ["prices"]'),
        ("routes: {a: {path: a, topics: [t]}}", "routes.a.path must be a path that starts with /"),
        ("routes: {a: {path: /a, topics: []}}", "routes.a.topics must be a list of at least one topic name or pattern"),
        ("routes: {a: {path: /a, topics: [t], start: now}}", "routes.a.start must be latest, earliest, snapshot, a dur"),
        ("routes: {a: {path: /a, topics: [t], start: -15}}", "routes.a.start must be latest, earliest, snapshot, a dur"),
        ("routes: {a: {path: /a, topics: [t], start: -0m}}", "routes.a.start must be latest, earliest, snapshot, a dur"),
        ("routes: {a: {path: /a, topics: [t], start: 1969-12-31}}", "routes.a.start must be latest, earliest, snapshot,"),
        ("routes: {a: {path: /a, topics: [t], start: 2026-99-99}}", "routes.a.start must be latest, earliest, snapshot,"),
        ("routes: {a: {path: /, topics: [t]}}", "routes.a.path must be a path that starts with /, whose segments are"),
        ("routes: {a: {path: '/a/x{b}', topics: [t]}}", "routes.a.path must be a path that starts with /, whose segm"),
        ("routes: {a: {path: '/a/{int:b}', topics: [t]}}", "routes.a.path must be a path that starts with /, whose segm"),
        ("routes: {a: {path: '/a/<b>', topics: [t]}}", "routes.a.path must be a path that starts with /, whose segm"),
        ("routes: {a: {path: '/{b}/{b}', topics: [t]}}", "routes.a.path has the parameter {b} twice: choose another"),
        ("routes: {a: {path: '/a/{topics}', topics: [t]}}", "routes.a.path has the parameter {topics}, whose name kafka"),
        ("routes: {a: {path: '/a/{claims}', topics: [t]}}", "routes.a.path has the parameter {claims}, whose name kafka"),
        ("routes: {a: {path: '/{b}', topics: [t]}}", "routes.a.path is '/{b}', which matches the same URLs as /{topics}"),
        ("routes: {a: {path: /a, topics: [t], fields: []}}", "routes.a.fields must be a list of paths, not an empty list"),
        ("routes: {a: {path: /a, topics: [t], fields: [a..b]}}", "routes.a.fields[0] must be a path of at most 8 names wi"),
        ("routes: {a: {path: /a, topics: [t], redact: email}}", "routes.a.redact must be a list of paths, not 'email'."),
        ("routes: {a: {path: /a, topics: [t], redacted: [b]}}", "routes.a.redacted is not a setting of a route: did you"),
        ("routes: {a: {path: /a, topics: [t], heartbeat_s: 0.5}}", "routes.a.heartbeat_s must be a number from 1 to 30"),
        ("routes: {a: {path: /a, topics: [t], newest_by: {}}}", "routes.a.newest_by"),
        ("routes: {a: {path: /a, topics: [t], newest_by: {header: h, look_back: 0}}}", "routes.a.newest_by.look_back must"),
        ("routes: {a: {path: /a, topics: [t], max_streams: 9000}}", "routes.a.max_streams is 9000, but the setting max_"),
        ("routes: {a: {path: /a, topics: [t], cluster: eu}}", "routes.a.cluster is 'eu', which is not one of the clu"),
        ("{routes: {a: {path: /a, topics: [t], cluster: uest}}, clusters: {us_west: {bootstrap_servers: 'a:1'}}}",
         "routes.a.cluster is 'uest', which is not one of the clusters: did you mean us_west?"),
        ("topic_groups: {a+b: [t]}", "topic_groups.a… is not a valid name: a name consists of letters, digits, dots"),
        ("topic_groups: {a: []}", "topic_groups.a must be a list of at least one topic name, not an empty list."),
        ("{allowed_topics: [t], topic_groups: {a: [t, 't.*']}}", "topic_groups.a[1] must be a topic name: at most 249"),
        ("{allowed_topics: ['t.*'], topic_groups: {a: [t.a, u]}}",
         "topic_groups.a[1] is 'u', which clients may not read: add it to allowed_topics."),
        ("clusters:", "clusters must be a mapping of names to client settings, not null."),
        ("clusters: {eu: 5}", "clusters.eu must be a mapping of client settings, not 5."),
        ("clusters: {EU: {}}", "clusters.EU is not a valid name: a name consists of lowercase letters"),
        ("clusters: {eu: {client_id: a}}", 'clusters.eu needs bootstrap_servers. Example: bootstrap_servers: ["kafka-eu'),
        ("clusters: {eu: {bootstrap_servers: a}}", "clusters.eu.bootstrap_servers must be HOST:PORT, not 'a'. Ex"),
        ("clusters: {eu: {bootstrap_server: 'a:1'}}", "clusters.eu.bootstrap_server is not a client setting of kafka-p"),
        ("clusters: {eu: {group_id: a}}", "clusters.eu.group_id is set by kafkasse itself: remove it."),
        ("routes: {a: {path: '/a/{b}', topics: [t]}}", 'routes.a.path has the parameter {b}, which no setting uses. Ex'),
        ("routes: {a: {path: '/{b}/{c}', topics: [t], where: {headers: {x: ['{b}']}}}}",
         "routes.a.path has the parameter {c}, which no setting uses."),
        (
            "{guards: {g: {api_keys: {file: k}}},"
            " routes: {a: {path: /a, topics: [t], access: [{guard: g, claims: {s: ['{b}']}}]}}}",
            "routes.a.access contains {b}, which is not a parameter of the path '/a'.",
        ),
        ("routes: {a: {path: /-/health, topics: [t]}}", "routes.a.path is '/-/health', but paths that start with /-/ be"),
        ("routes: {topics: {path: /a, topics: [t]}}", "routes.topics is the name of the route /{topics}"),
        ("routes: {A-b: {path: /a, topics: [t]}}", "routes.A-b is not a valid name: a name consists of lowercase letters"),
        ("routes: {5: {path: /a, topics: [t]}}", "routes.5 is not a valid name"),
        ('cors_credentials: true\ncors_origins: ["*"]',
         "cors_credentials cannot be true while cors_origins contains *: list the origins instead."),
        ("{cors_origins: ['*'], routes: {r: {path: /r, topics: [t], access: public, cors_credentials: true}}}",
         "routes.r.cors_credentials cannot be true while cors_origins contains *"),
        ("{cors_credentials: true, cors_origins: ['http://a'], routes: {r: {path: /r, topics: [t], cors_origins: ['*']}}}",
         "routes.r.cors_credentials cannot be true while cors_origins contains *"),
        ("cors_credentials: true\ncors_origins: ['null']", "cors_credentials cannot be true while cors_origins contains nu"),
        ("routes: {a: {path: /a, topics: [t]}, b: {path: /a/, topics: [u]}}",
         "routes.b.path is '/a/', which matches the same URLs as routes.a: choose another path."),
        ("routes: {a: {path: '/p/{x}/q', topics: [t]}, b: {path: '/p/{y}/q', topics: [u]}}",
         "routes.b.path is '/p/{y}/q', which matches the same URLs as routes.a: choose another path."),
    ],
)  # fmt: skip
def test_a_value_in_a_file(problems, write, text, problem):
    file = write(f"\n{text}")

    (message,) = problems(file=file)

    assert message.startswith(f"{file}, line 2: {problem}")


def test_a_guard_of_the_app_may_use_path_parameters(write):
    """The app's function can read the parameters of the request, so that the other settings do not have to use them."""
    routes = {"a": {"path": "/a/{b}", "topics": ["t"], "access": ["login"]}}

    assert ("b",) == Config(guards={"login": lambda request: None}, routes=routes).routes[0].parameters


@pytest.mark.parametrize(
    ("variable", "text", "problem"),
    [
        ("HEARTBEAT_S", "soon", " must be a number above 0 and at most 300, not 'soon'. Example: KAFKASSE_HEARTBEAT_S=4"),
        ("HEARTBEAT_S", "", " must be a number above 0 and at most 300, not ''."),
        ("HEARTBEAT_S", "nan", " must be a number above 0 and at most 300, not 'nan'."),
        ("MAX_TOPICS_PER_STREAM", "2.5", " must be a whole number from 1 to 1000, not '2.5'."),
        ("MAX_TOPICS_PER_STREAM", "9" * 5000, " must be a whole number from 1 to 1000, not '999"),
        ("PUBLIC", "maybe", " must be true or false, not 'maybe'. Example: KAFKASSE_PUBLIC=true"),
        ("ID_TYPE", "time", " must be one of offset, timestamp, both, not 'time'. Example: KAFKASSE_ID_TYPE=both"),
        ("KAFKA_SECURITY_PROTOCOL", "SASL-SSL", " must be one of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL, not 'SASL-SSL'."),
        ("ALLOWED_TOPICS", "a b", " must be a topic name, or a pattern with * ? or [...], not 'a b'."),
        ("CORS_ORIGINS", "https://a.example/", " must be * or an origin, without a path or a slash at the end, not 'ht"),
        ("TRUSTED_PROXIES", "10.0.0.0/8,lb", " must be an IP address, or a network such as 10.0.0.0/8, not 'lb'. Exam"),
        ("TRUSTED_PROXIES", "11", " must be a whole number from 0 to 10, or a list of networks, not 11. Example: KAFKASSE"),
        ("BOOTSTRAP_SERVERS", "", " must be HOST:PORT, not ''. Example: kafka-1.example:9092"),
        ("BOOTSTRAP_SERVERS", "kafka", " must be HOST:PORT, not 'kafka'. Example: kafka-1.example:9092"),
        ("ALOWED_TOPICS", "x", " is not a setting: did you mean KAFKASSE_ALLOWED_TOPICS?"),
        ("BNID", "x", " is not a setting: did you mean KAFKASSE_BIND?"),
        ("XYZZY", "x", " is not a setting. See docs/configuration.md for all settings."),
        ("CLUSTERS", "x", " is not a setting: clusters can be set only in a file or in code."),
        ("ROUTES", "x", " is not a setting: routes can be set only in a file or in code."),
        ("KAFKA_SSL_CAFIEL", "x", " is not a client setting of kafka-python: did you mean KAFKASSE_KAFKA_SSL_CAFILE?"),
        ("KAFKA_SASL_PASSWORD", "x",
         " is not a client setting of kafka-python: did you mean KAFKASSE_KAFKA_SASL_PLAIN_PASSWORD?"),
        ("SASL_PLAIN_PASSWORD", "x", " is not a setting: did you mean KAFKASSE_KAFKA_SASL_PLAIN_PASSWORD?"),
        ("PORT", "8080", " is not a setting: did you mean PORT or KAFKASSE_BIND?"),
        ("WORKERS", "4", " is not a setting: did you mean WEB_CONCURRENCY?"),
        ("KAFKA_TIMEOUT", "x", " is not a client setting of kafka-python: did you mean KAFKASSE_KAFKA_TIMEOUT_S?"),
    ],
)  # fmt: skip
def test_a_value_in_a_variable(problems, variable, text, problem):
    """The error names the variable. The example is in the syntax of variables. An unknown name gets a suggestion."""
    (message,) = problems({f"KAFKASSE_{variable}": text})

    assert message.startswith(f"KAFKASSE_{variable}{problem}")


def test_a_tuple_is_a_list():
    assert ("a",) == Config(allowed_topics=("a",)).routes[-1].allowed


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"max_streams": "5"}, "max_streams must be a whole number from 1 to 1000000, not '5'. Example: 8000"),
        ({"heartbeat": 1}, "heartbeat is not a setting: did you mean heartbeat_s?"),
        ({"kafka": {"client_idd": "x"}},
         "kafka.client_idd is not a client setting of kafka-python: did you mean client_id?"),
        ({"filterer": 5}, "filterer must be a function, not a value of type int."),
        ({"logger": "shop"}, "logger must be a logger, not a value of type str."),
        ({"kafka_event_handlers": [print]},
         "kafka_event_handlers must be a mapping, not a value of type list."),
        ({"kafka_event_handlers": {"raedy": print}},
         "kafka_event_handlers['raedy'] is not an event: did you mean ready?"),
        ({"kafka_event_handlers": {"x": print}},
         "kafka_event_handlers['x'] is not an event: the events are ready, disconnected, event.error"),
        ({"kafka_event_handlers": {"ready": 5}},
         "kafka_event_handlers['ready'] must be a function, not a value of type int."),
    ],
)  # fmt: skip
def test_a_value_in_an_argument(problems, arguments, problem):
    """The error names the argument, and the example is in Python's syntax. A hook must be a function for a known event."""
    (message,) = problems(**arguments)

    assert message.startswith(f"The argument {problem}")
