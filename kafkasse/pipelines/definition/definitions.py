"""Read pipelines from a YAML file that matches schemas/pipelines.schema.json.

Each error names the file, the line and the reason. This module reads files and the schema registry; it does not depend on
Kafka or on a Spark session.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from kafkasse.errors import CommandError, did_you_mean
from kafkasse.pipelines import avro_records
from kafkasse.pipelines.avro_records import AvroSource
from kafkasse.pipelines.definition.fields import fields
from kafkasse.pipelines.definition.steps import METADATA, DeclaredQuery, DeclaredSource, DeclaredTable, reversible
from kafkasse.pipelines.json_records import Type
from kafkasse.pipelines.pipeline import InvalidPipeline, Pipeline, Source
from kafkasse.pipelines.schema import DefinitionPath, default, mismatch

MAX_FILE_BYTES = 1_048_576
PARTS = ("source", "sources", "tables", "query", "sink", "sinks")  # the other settings are arguments of Pipeline


class SchemaUnavailable(CommandError):
    """The schema registry is not available. Another attempt may succeed."""


class Definitions:
    """The pipelines of a file. Raise CommandError if it cannot be read, is not YAML, or does not match the schema."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines: dict[DefinitionPath, int] = {}
        self._pipelines: dict[str, Any] = self._read()["pipelines"]

    @property
    def names(self) -> list[str]:
        """The names of the pipelines."""
        return list(self._pipelines)

    def pipeline(self, name: str) -> Pipeline:
        """Return a pipeline of the file.

        Raises:
            CommandError: there is no such pipeline, one of its names is unknown, or its schema cannot be read.
            SchemaUnavailable: the schema registry is not available.
        """
        if name not in self._pipelines:
            known = ", ".join(self.names)
            raise CommandError(f"{self._path} has no pipeline {name}{did_you_mean(name, self.names)}; it has: {known}")
        return _Definition(self, name, self._pipelines[name]).pipeline()

    def error(self, path: DefinitionPath, reason: str) -> CommandError:
        """Return the error for the value at `path`."""
        where = ".".join(str(part) for part in path)
        return CommandError(f"{self._path}:{self._line(path)}: {where + ': ' if where else ''}{reason}")

    @property
    def directory(self) -> Path:
        """The folder to which paths in the file are relative."""
        return self._path.resolve().parent

    def _line(self, path: DefinitionPath) -> int:
        for length in range(len(path), -1, -1):
            if path[:length] in self._lines:
                return self._lines[path[:length]]
        return 1

    def _read(self) -> Any:
        try:
            with self._path.open("rb") as file:
                content = file.read(MAX_FILE_BYTES + 1)
        except OSError as error:
            raise CommandError(f"cannot read {self._path}: {error.strerror}") from error
        if len(content) > MAX_FILE_BYTES:
            raise CommandError(f"{self._path} has more than {MAX_FILE_BYTES} bytes")
        from kafkasse.config import yaml_file  # here, because it takes long to import

        try:
            document = yaml_file.parse(content)
        except yaml_file.NotYaml as error:
            raise CommandError(f"{self._path}:{error.line or 1}: {error}".rstrip(".")) from error
        for path, _, line in document.repeated:
            raise CommandError(f"{self._path}:{line}: {path[-1]} is set twice; remove one")
        self._lines = document.lines
        value = {} if document.value is None else document.value
        if found := mismatch(value):
            raise self.error(*found)
        return value


class DefinitionPart(NamedTuple):
    """A part of the definition of a pipeline, and its path in the file."""

    file: Definitions
    value: dict[str, Any]
    path: DefinitionPath

    def error(self, reason: str, *names: str | int) -> CommandError:
        """Return the error for this part, or for what it contains under these names."""
        return self.file.error((*self.path, *names), reason)

    @contextmanager
    def locate_errors(self, *names: str | int) -> Iterator[None]:
        """Add the path and the line to the errors of the block."""
        try:
            yield
        except SchemaUnavailable as error:
            raise SchemaUnavailable(self.error(error.detail, *names).detail) from error
        except CommandError as error:
            raise self.error(error.detail, *names) from error

    def location(self, path: str) -> str:
        """Return a path in the file as an absolute path, or an address of another file system."""
        return path if "://" in path else str(self.file.directory / path)


def _not_one_of(name: str, kind: str, known: Iterable[str]) -> str:
    return f"{name} is not one of the {kind}: {', '.join(known)}{did_you_mean(name, known)}"


class _Definition:
    """One pipeline of a file."""

    def __init__(self, file: Definitions, name: str, value: dict[str, Any]) -> None:
        self._name, self._whole = name, DefinitionPart(file, value, ("pipelines", name))
        if "sinks" in value and "query" in value:
            raise self._whole.error("each of several sinks has its own query; move it there", "query")
        self._sources = self._parts("source", "sources")
        self._tables = self._parts_of("tables")
        self._sinks = self._parts("sink", "sinks")
        if "sink" in value:
            self._sinks = {
                "sink": self._whole._replace(value={"topic": value["sink"], "query": value.get("query", {})})
            }
        self._queries = {
            name: sink._replace(value=sink.value.get("query", {}), path=(*sink.path, "query"))
            for name, sink in self._sinks.items()
        }

    def _parts(self, one: str, several: str) -> dict[str, DefinitionPart]:
        if (one in self._whole.value) == (several in self._whole.value):
            raise self._whole.error(f"it needs either {one} or {several}")
        if one in self._whole.value:
            return {one: self._whole._replace(value=self._whole.value[one], path=(*self._whole.path, one))}
        return self._parts_of(several)

    def _parts_of(self, setting: str) -> dict[str, DefinitionPart]:
        file, value, path = self._whole
        return {
            name: DefinitionPart(file, part, (*path, setting, name)) for name, part in value.get(setting, {}).items()
        }

    def pipeline(self) -> Pipeline:
        for query in self._queries.values():
            self._check_query(query)
        declared = DeclaredQuery(
            queries={name: query.value for name, query in self._queries.items()},
            sources={name: _declared_source(source) for name, source in self._sources.items()},
            tables={name: _declared_table(table) for name, table in self._tables.items()},
            paths={name: query.path for name, query in self._queries.items()},
            error=self._whole.file.error,
        )
        topics: dict[str, str | Source] = {name: _source(source) for name, source in self._sources.items()}
        for name, table in self._tables.items():
            if "topic" in table.value:
                if name in topics:
                    raise table.error("is also the name of a source; rename the table")
                topics[name] = Source(table.value["topic"], table=True)
        try:
            return Pipeline(
                self._name,
                topics,
                declared,
                {name: sink.value["topic"] for name, sink in self._sinks.items()},
                output_mode=self._output_mode(),
                **{name: value for name, value in self._whole.value.items() if name not in PARTS},
            )
        except InvalidPipeline as error:
            match error.setting:
                case ("sources", name, attribute):
                    raise self._sources[name].error(error.reason, attribute) from error
                case ("sinks", name):
                    topic = "sink" if "sink" in self._whole.value else "topic"
                    raise self._sinks[name].error(error.reason, topic) from error
            raise self._whole.error(error.reason, *error.setting) from error

    def _check_query(self, query: DefinitionPart) -> None:
        steps = query.value
        chosen = [name for name in ("latest", "top", "window") if name in steps]
        if chosen == ["latest", "window"]:
            for name, expression in steps["window"]["aggregates"].items():
                with query.locate_errors("window", "aggregates", name):
                    reversible(expression)
        elif len(chosen) > 1:
            reason = f"a query has only one of: {', '.join(chosen)}; remove the others, or use another sink for each"
            raise query.error(reason, chosen[1])
        is_realtime = self._whole.value.get("mode", Pipeline.mode) == "realtime"
        modes = "mode: microbatch or mode: once; add one of them to the pipeline"
        if chosen and len(self._queries) > 1 and is_realtime:
            raise query.error(f"with several sinks, {chosen[0]} needs {modes}", chosen[0])
        top = steps.get("top", {})
        if top and top.get("as", default("query", "top", "as")) == top["group"]:
            raise query.error(f"{top['group']} is the column of the group; use another name for the list", "top", "as")
        given = steps.get("from", [])
        for name in [given] if isinstance(given, str) else given:
            if name not in self._sources:
                raise query.error(_not_one_of(name, "sources", self._sources), "from")
        for number, step in enumerate(steps.get("enrich", [])):
            if step["table"] not in self._tables:
                reason = f"the pipeline has no tables; add {step['table']} to tables"
                if self._tables:
                    reason = _not_one_of(step["table"], "tables", self._tables)
                raise query.error(reason, "enrich", number, "table")
        if _is_final(query) and is_realtime:
            raise query.error(f"final needs {modes}, or write updates", "window", "results")

    def _output_mode(self) -> Any:
        final = [query for query in self._queries.values() if _is_final(query)]
        others = [query for query in self._queries.values() if not _is_final(query)]
        if final and any(query.value.keys() & {"window", "top", "latest"} for query in others):
            raise self._whole.error(
                "a pipeline with final results writes no updates; define another pipeline for the other sinks"
            )
        return "append" if final else "update"


def _is_final(query: DefinitionPart) -> bool:
    return bool(query.value.get("window", {}).get("results") == "final")


def _source(source: DefinitionPart) -> Source:
    start = source.value.get("start", Source.start)
    if isinstance(start, dict):
        start = {int(partition): offset for partition, offset in start.items()}
    try:
        return Source(source.value["topic"], start, source.value.get("max_records_per_s"))
    except CommandError as error:
        raise source.error(error.detail.replace("Source: start is", "must be"), "start") from error


def _declared_source(source: DefinitionPart) -> DeclaredSource:
    types, avro = _fields(source)
    for name in METADATA:
        if name in types:
            raise source.error(f"the field {name} has the name of a column of all rows; leave it out", "schema")
    key = source.value.get("key")
    if key is not None and key not in types:
        raise source.error(_not_one_of(key, "fields of the schema", types), "key")
    return DeclaredSource(types, key, "registry" in source.value["schema"], avro)


def _declared_table(table: DefinitionPart) -> DeclaredTable:
    types, avro = _fields(table) if "schema" in table.value else (None, None)
    if avro is not None:
        raise table.error("the records of a table must be JSON, not Avro", "schema")
    for format_ in ("csv", "parquet"):
        if format_ in table.value:
            return DeclaredTable(format_, table.location(table.value[format_]), types)
    return DeclaredTable(fields=types)


def _fields(owner: DefinitionPart) -> tuple[dict[str, Type], AvroSource | None]:
    """Return the fields of the records, and how to decode them if they are Avro."""
    given = owner.value["schema"]
    with owner.locate_errors("schema"):
        try:
            if "file" in given:
                return fields(json.loads(Path(owner.location(given["file"])).read_text("utf-8"))), None
            if "registry" in given:
                files = {name: owner.location(given[name]) for name in ("password_file", "ca_file") if name in given}
                return _registered({**given, **files})
            types = fields(given)
        except OSError as error:
            raise CommandError(f"cannot read {error.filename}: {error.strerror}") from error
        except ValueError as error:
            raise CommandError(f"the schema is not JSON: {error}") from error
    for name in given.get("required") or ():
        if name not in types:
            raise owner.error(_not_one_of(name, "properties", types), "schema", "required")
    return types, None


def _registered(given: Mapping[str, Any]) -> tuple[dict[str, Type], AvroSource | None]:
    """Read a JSON Schema or an Avro schema from the schema registry. Returns what _fields() returns."""
    try:
        from kafkasse.records.registry.avro import AvroSchema
        from kafkasse.records.registry.client import Misconfigured, RegistryClient, SchemaNotFound, TemporaryFailure
        from kafkasse.settings import SchemaRegistrySettings
    except ImportError as error:
        raise CommandError(f"a schema registry needs {error.name}; run pip install 'kafkasse[schemas]'") from error

    login: dict[str, Any] = {name: given.get(name) for name in ("username", "password_file", "ca_file")}
    settings = SchemaRegistrySettings(url=given["registry"], **login)
    subject, version = given["subject"], given.get("version", "latest")
    try:
        schema = RegistryClient(settings).version(subject, version)
    except SchemaNotFound:
        raise CommandError(f"the registry has no version {version} of the subject {subject}") from None
    except TemporaryFailure as error:
        raise SchemaUnavailable(f"the registry is not available: {error}") from error
    except Misconfigured as error:
        raise CommandError(f"cannot read the schema from the registry: {error}") from error
    if schema.type not in ("JSON", "AVRO"):
        raise CommandError(
            f"the schema of {subject} has the type {schema.type}, but a YAML pipeline reads only JSON and AVRO; for other "
            "formats, define a Pipeline in Python, see docs/pipelines-python.md"
        )
    if schema.references:
        raise CommandError(f"the schema of {subject} refers to other subjects, which a pipeline does not read")
    if schema.type == "JSON":
        return fields(json.loads(schema.text)), None
    try:
        described = AvroSchema(schema, {}).json_schema()
    except Exception as error:  # fastavro raises many types
        raise CommandError(f"the schema of {subject} is not valid: {error}") from error
    source = AvroSource(schema.text, given["registry"], **login)
    return fields(avro_records.with_number_types(described)), source
