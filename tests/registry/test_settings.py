"""The settings of the schema registry, and those of the routes that use it."""

from __future__ import annotations

from typing import Any

import pytest

from kafkasse.config import Config
from kafkasse.errors import ConfigurationError
from kafkasse.schemas import read
from kafkasse.settings import SchemaRegistrySettings

URL = "https://registry.example/api"
BROKER = {"bootstrap_servers": ["kafka.example:9092"]}


def test_a_route_overrides_the_general_decoder():
    """`decoder` and `validate_values` apply to all routes that do not set them, and to the open route."""
    routes = {"a": {"path": "/a", "topics": ["a"]}, "b": {"path": "/b", "topics": ["b"], "decoder": "json"}}
    routes["c"] = {**routes["a"], "path": "/c", "validate_values": False}
    config = Config(decoder="registry", validate_values=True, schema_registry={"url": URL}, routes=routes)

    assert [("registry", True), ("json", True), ("registry", False), ("registry", True)] == [
        (route.decoder, route.validate_values) for route in config.routes
    ]


def test_a_cluster_may_have_a_registry_of_its_own():
    """All other clusters use `schema_registry`, which is not required if no route needs it."""
    route = {"path": "/a", "topics": ["a"], "cluster": "eu", "access": "public"}
    settings = {
        "decoder": "registry",
        "clusters": {"eu": BROKER, "us": BROKER},
        "schema_registries": {"eu": {"url": URL}},
        "routes": {"a": route},
    }
    without, with_both = Config(**settings), Config(**settings, schema_registry={"url": f"{URL}/2"})

    assert [URL, None] == [(found := without.schema_registry(cluster)) and found.url for cluster in ("eu", "us")]
    assert [URL, f"{URL}/2", f"{URL}/2"] == [with_both.schema_registry(cluster).url for cluster in ("eu", "us", "")]


def test_the_defaults_are_those_of_the_schema():
    properties = read("config")["$defs"]["schema_registry"]["properties"]
    settings = Config(schema_registry={"url": URL}).schema_registry()

    assert isinstance(settings, SchemaRegistrySettings)
    assert {name: setting.get("default") for name, setting in properties.items()} | {"url": URL} == {
        name: getattr(settings, name) for name in properties
    }


def registry(**settings: Any) -> dict[str, Any]:
    return {"schema_registry": {"url": URL, **settings}}


def eu_registry(**settings: Any) -> dict[str, Any]:
    return {"schema_registries": {"eu": {"url": URL, **settings}}}


PROBLEMS: list[tuple[dict[str, Any], str]] = [
    ({"decoder": "registry"}, "decoder is registry: set schema_registry too. Example: schema_registry: {url: https"),
    ({"decoder": "avro"}, "decoder must be one of json, registry, not 'avro'"),
    ({"schema_registry": {}}, "schema_registry needs url. Example"),
    ({"schema_registry": "https://registry.example"}, "schema_registry must be a mapping with at least url, not"),
    (registry(url="registry:8081"), "schema_registry.url must be an http or https URL without a user"),
    (registry(url="https://u:canary@host"), "schema_registry.url must be an http or https URL without"),
    (registry(username="u"), "schema_registry needs both username and password_file, or"),
    (registry(ca_file="/no/file"), "schema_registry.ca_file names a file that cannot be read"),
    (registry(ca_flie="x"), "schema_registry.ca_flie is not a setting of the schema registry: d"),
    (registry(key_file=__file__), "schema_registry needs cert_file too, because key_file is the key of a certificate"),
    (eu_registry(), "schema_registries.eu is the registry of an unknown cluster. Add eu to clusters"),
    ({"schema_registries": {"eu": None}}, "schema_registries.eu must be a mapping with at least url, not null"),
    (
        {**eu_registry(ca_file="/no/file"), "clusters": {"eu": BROKER}},
        "schema_registries.eu.ca_file names a file that cannot be read",
    ),
    (eu_registry(ca_flie="x"), "schema_registries.eu.ca_flie is not a setting of a schema registry: d"),
    (
        {"routes": {"a": {"path": "/a", "topics": ["t"], "decoder": "registry"}}},
        "routes.a.decoder is registry: set schema_registry too",
    ),
]


@pytest.mark.parametrize(("settings", "problem"), PROBLEMS)
def test_mistakes_are_found_at_startup(settings, problem):
    """Each mistake is a sentence with the name of the setting, and without a password."""
    with pytest.raises(ConfigurationError) as caught:
        Config(**settings)

    assert problem in str(caught.value)
    assert "canary" not in str(caught.value)


def test_a_file_and_variables(tmp_path):
    """`decoder` can be a variable. The registry is a mapping, which only a file or code can contain."""
    file = tmp_path / "kafkasse.yaml"
    file.write_text(f"schema_registry: {{url: '{URL}', timeout_s: 2}}\n")

    config = Config.load({"KAFKASSE_DECODER": "registry"}, file)

    assert SchemaRegistrySettings(url=URL, timeout_s=2) == config.schema_registry()
    with pytest.raises(ConfigurationError, match="schema_registry can be set only in a file or in code"):
        Config.load({"KAFKASSE_SCHEMA_REGISTRY": URL})
