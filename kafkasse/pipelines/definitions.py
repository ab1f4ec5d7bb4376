"""Read pipelines from a YAML file that matches schemas/pipelines.schema.json.

Each error names the file, the line and the reason. This module reads files and the schema registry; it does not depend on
Kafka or on a Spark session.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

from jsonschema.exceptions import ValidationError, best_match

from kafkasse import schemas
from kafkasse.errors import CommandError, did_you_mean
from kafkasse.pipelines import avro_records, table_files
from kafkasse.pipelines.avro_records import AvroSource
from kafkasse.pipelines.fields import fields
from kafkasse.pipelines.json_records import Type
from kafkasse.pipelines.pipeline import InvalidPipeline, Pipeline, Source
from kafkasse.pipelines.steps import DeclaredQuery, DeclaredSource, DeclaredTable, reversible

SCHEMA = "pipelines"
MAX_FILE_BYTES = 1_048_576
NOT_SHOWN = ("spark", "registry")  # their values may contain passwords
PARTS = ("source", "sources", "tables", "query", "sink", "sinks")  # the other settings are arguments of Pipeline
SCHEMA_FORMS = ("file", "registry", "properties")
EMPTY = ("minItems", "minLength", "minProperties")  # keywords of JSON Schema, which are 1 in the schema of the file

_Path = tuple[str | int, ...]


class SchemaUnavailable(CommandError):
    """The schema registry is not available. Another attempt may succeed."""


class Definitions:
    """The pipelines of a file.

    Args:
        path: the file.

    Raises:
        CommandError: the file cannot be read, is not YAML, or does not match the schema.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines: dict[_Path, int] = {}
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

    def error(self, path: _Path, reason: str) -> CommandError:
        """Return the error for the value at `path`."""
        where = ".".join(str(part) for part in path)
        return CommandError(f"{self._path}:{self._line(path)}: {where + ': ' if where else ''}{reason}")

    @property
    def directory(self) -> Path:
        """The folder to which paths in the file are relative."""
        return self._path.resolve().parent

    def _line(self, path: _Path) -> int:
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
        problem = best_match(schemas.validator(SCHEMA).iter_errors(value))
        if problem is not None:
            raise self._mismatch(problem)
        return value

    def _mismatch(self, error: ValidationError) -> CommandError:
        from kafkasse.config.messages import expected, shown  # here, because they take long to import

        error = schemas.deepest(error)
        while error.parent is not None and not error.relative_path:  # the whole anyOf, and not one of its alternatives
            error = cast("ValidationError", error.parent)
        path, given, schema = tuple(error.absolute_path), cast("Any", error.instance), cast("Any", error.schema)
        if error.validator == "additionalProperties":
            known = list(schema.get("properties", {}))
            name = next(each for each in given if each not in known)
            if name in SCHEMA_FORMS:
                return self.error((*path, name), f"cannot be combined with {known[0]}; remove one of them")
            hint = did_you_mean(name, known) or f"; use one of: {', '.join(known)}"
            return self.error((*path, name), f"is not a setting{hint}")
        if "propertyNames" in error.absolute_schema_path:
            return self.error((*path, given), f"is not a valid name; it must be {expected(schema)}")
        if error.validator == "required" and error.validator_value == ["properties"]:  # no form of a schema
            for name in given:
                if hint := did_you_mean(name, SCHEMA_FORMS):
                    return self.error((*path, name), f"is not a setting{hint}")
            return self.error(path, "needs file, or registry with subject, or properties")
        if error.validator in ("required", "oneOf", "dependentRequired"):
            return self.error(path, _missing(error))
        if error.validator in EMPTY:
            return self.error(path, "must not be empty")
        if any(part in NOT_SHOWN for part in path):
            return self.error(path, f"must be {expected(schema)}")
        hint = did_you_mean(str(given), schema.get("enum", []))
        return self.error(path, f"must be {expected(schema)}, not {shown(path, given)}{hint}")


def _missing(error: ValidationError) -> str:
    given, required = cast("Any", error.instance), cast("Any", error.validator_value)
    if error.validator == "dependentRequired":
        return "needs both username and password_file"
    if error.validator == "required":
        *others, last = (name for name in required if name not in given)
        return f"needs {', '.join(others)} and {last}" if others else f"needs {last}"
    alternatives = ", or ".join(" with ".join(each["required"]) for each in required)
    return f"needs {alternatives}" if error.context else f"has contradictory settings; use only {alternatives}"


class Named(NamedTuple):
    """A part of a definition by its name, and its path in the file."""

    value: dict[str, Any]
    path: _Path


class _Definition:
    """One pipeline of a file."""

    def __init__(self, file: Definitions, name: str, value: dict[str, Any]) -> None:
        self._file, self._name, self._value = file, name, value
        self._path: _Path = ("pipelines", name)

    def pipeline(self) -> Pipeline:
        sources, sinks, tables = self._sources(), self._sinks(), self._tables()
        for each in sinks.values():
            self._check_query(each, sources, tables)
        self._check_results(sinks)
        queries = {name: each.value.get("query", {}) for name, each in sinks.items()}
        query = DeclaredQuery(
            queries=queries,
            sources={name: self._declared(each) for name, each in sources.items()},
            tables={name: self._table(each) for name, each in tables.items()},
            paths={name: (*each.path, "query") for name, each in sinks.items()},
            error=self._file.error,
            check_tables=lambda: self._check_tables(sinks, tables),
        )
        topics: dict[str, str | Source] = {name: self._source(each) for name, each in sources.items()}
        topics |= {
            name: Source(each.value["topic"], table=True) for name, each in tables.items() if "topic" in each.value
        }
        try:
            return Pipeline(
                self._name,
                topics,
                query,
                {name: each.value["topic"] for name, each in sinks.items()},
                output_mode=self._output_mode(sinks),
                **{name: value for name, value in self._value.items() if name not in PARTS},
            )
        except InvalidPipeline as error:
            raise self._file.error(self._path_of(error.setting, sources, sinks), error.reason) from error

    def _sources(self) -> dict[str, Named]:
        return self._one_or_several("source", "sources", self._value.get("source"))

    def _sinks(self) -> dict[str, Named]:
        topic = self._value.get("sink")
        if "sinks" in self._value and "query" in self._value:
            raise self._file.error((*self._path, "query"), "each of several sinks has its own query; move it there")
        only = {"topic": topic, "query": self._value.get("query", {})} if topic else None
        found = self._one_or_several("sink", "sinks", only)
        return {
            name: Named(each.value, self._path if "sink" in self._value else each.path) for name, each in found.items()
        }

    def _one_or_several(self, one: str, several: str, only: dict[str, Any] | None) -> dict[str, Named]:
        if (one in self._value) == (several in self._value):
            raise self._file.error(self._path, f"it needs either {one} or {several}")
        if only is not None:
            return {one: Named(only, (*self._path, one))}
        return {name: Named(each, (*self._path, several, name)) for name, each in self._value[several].items()}

    def _tables(self) -> dict[str, Named]:
        tables = self._value.get("tables", {})
        return {name: Named(each, (*self._path, "tables", name)) for name, each in tables.items()}

    def _check_query(self, sink: Named, sources: Mapping[str, Named], tables: Mapping[str, Named]) -> None:
        query, path = sink.value.get("query", {}), (*sink.path, "query")
        chosen = [name for name in ("latest", "top", "window") if name in query]
        if chosen == ["latest", "window"]:
            self._check_aggregates(query["window"]["aggregates"], (*path, "window", "aggregates"))
            chosen = []
        if len(chosen) > 1:
            reason = f"a query has only one of: {', '.join(chosen)}; remove the others, or use another sink for each"
            raise self._file.error((*path, chosen[1]), reason)
        given = query.get("from", [])
        for name in [given] if isinstance(given, str) else given:
            if name not in sources:
                known = ", ".join(sources) + did_you_mean(name, sources)
                raise self._file.error((*path, "from"), f"{name} is not one of the sources: {known}")
        for number, each in enumerate(query.get("enrich", [])):
            if each["table"] not in tables:
                known = ", ".join(tables) + did_you_mean(each["table"], tables)
                reason = f"{each['table']} is not one of the tables: {known}"
                if not tables:
                    reason = f"the pipeline has no tables; add {each['table']} to tables"
                raise self._file.error((*path, "enrich", number, "table"), reason)

    def _path_of(self, setting: tuple[str, ...], sources: Mapping[str, Named], sinks: Mapping[str, Named]) -> _Path:
        """Return the path of an argument of Pipeline in the file."""
        match setting:
            case ("sources", name, attribute):
                return (*sources[name].path, attribute)
            case ("sinks", name):
                return (*sinks[name].path, "sink" if "sink" in self._value else "topic")
        return (*self._path, *setting)

    def _check_results(self, sinks: Mapping[str, Named]) -> None:
        if self._value.get("mode", "realtime") != "realtime":
            return
        for sink in sinks.values():
            if sink.value.get("query", {}).get("window", {}).get("results") == "final":
                reason = "final needs mode: microbatch or mode: once; add one of them to the pipeline, or write updates"
                raise self._file.error((*sink.path, "query", "window", "results"), reason)

    def _check_tables(self, sinks: Mapping[str, Named], tables: Mapping[str, Named]) -> None:
        """Check the files of the tables, and that `enrich` names columns of the tables."""
        columns = {name: self._columns(each) for name, each in tables.items()}
        for sink in sinks.values():
            for number, step in enumerate(sink.value.get("query", {}).get("enrich", [])):
                keys = [step["on"]] if isinstance(step["on"], str) else step["on"].values()
                try:
                    if (found := columns[step["table"]]) is not None:
                        table_files.check_keys(keys, found)
                except CommandError as error:
                    raise self._file.error((*sink.path, "query", "enrich", number, "on"), error.detail) from error

    def _columns(self, table: Named) -> list[str] | None:
        for format_ in table.value.keys() & {"csv", "parquet"}:
            try:
                return table_files.check(format_, self._location(table.value[format_]))
            except CommandError as error:
                raise self._file.error((*table.path, format_), error.detail) from error
        return None

    def _location(self, path: str) -> str:
        return path if "://" in path else str(self._file.directory / path)

    def _check_aggregates(self, aggregates: Mapping[str, str], path: _Path) -> None:
        for name, expression in aggregates.items():
            try:
                reversible(expression)
            except CommandError as error:
                raise self._file.error((*path, name), error.detail) from error

    def _output_mode(self, sinks: Mapping[str, Named]) -> Any:
        queries = [each.value.get("query", {}) for each in sinks.values()]
        final = [query.get("window", {}).get("results") == "final" for query in queries]
        if any(final) and any(
            not is_final and ("window" in query or "top" in query or "latest" in query)
            for query, is_final in zip(queries, final, strict=True)
        ):
            raise self._file.error(
                self._path,
                "a pipeline with final results writes no updates; define another pipeline for the other sinks",
            )
        return "append" if any(final) else "update"

    def _source(self, source: Named) -> Source:
        start = source.value.get("start", "earliest")
        try:
            return Source(
                source.value["topic"],
                {int(partition): offset for partition, offset in start.items()} if isinstance(start, dict) else start,
                source.value.get("max_records_per_s"),
            )
        except CommandError as error:
            reason = error.detail.replace("Source: start is", "must be")
            raise self._file.error((*source.path, "start"), reason) from error

    def _declared(self, source: Named) -> DeclaredSource:
        types, avro = self._fields(source)
        key = source.value.get("key")
        if key is not None and key not in types:
            known = ", ".join(types) + did_you_mean(key, types)
            raise self._file.error((*source.path, "key"), f"{key} is not one of the fields of the schema: {known}")
        return DeclaredSource(types, source.value.get("key"), "registry" in source.value["schema"], avro)

    def _table(self, table: Named) -> DeclaredTable:
        types, avro = self._fields(table) if "schema" in table.value else (None, None)
        if avro is not None:
            raise self._file.error((*table.path, "schema"), "the records of a table must be JSON, not Avro")
        for format_ in ("csv", "parquet"):
            if format_ in table.value:
                return DeclaredTable(format_, self._location(table.value[format_]), types)
        return DeclaredTable(fields=types)

    def _fields(self, owner: Named) -> tuple[dict[str, Type], AvroSource | None]:
        """Return the fields of the records, and how to decode them if they are Avro."""
        given, path = owner.value["schema"], (*owner.path, "schema")
        try:
            if "file" in given:
                return fields(json.loads((self._file.directory / given["file"]).read_text("utf-8"))), None
            if "registry" in given:
                return self._registered(given)
            found = fields(given)
        except SchemaUnavailable as error:
            raise SchemaUnavailable(self._file.error(path, error.detail).detail) from error
        except CommandError as error:
            raise self._file.error(path, error.detail) from error
        except OSError as error:
            raise self._file.error((*path, "file"), f"cannot read {error.filename}: {error.strerror}") from error
        except ValueError as error:
            raise self._file.error(path, f"the schema is not JSON: {error}") from error
        for name in given.get("required") or ():
            if name not in found:
                known = ", ".join(found) + did_you_mean(name, found)
                raise self._file.error((*path, "required"), f"{name} is not one of the properties: {known}")
        return found, None

    def _registered(self, given: Mapping[str, Any]) -> tuple[dict[str, Type], AvroSource | None]:
        named = (name for name in ("password_file", "ca_file") if name in given)
        return _registered({**given, **{name: str(self._file.directory / given[name]) for name in named}})


def _registered(given: Mapping[str, Any]) -> tuple[dict[str, Type], AvroSource | None]:
    """Read a JSON Schema or an Avro schema from the schema registry. Returns what _fields() returns."""
    try:
        from kafkasse.records.registry.avro import AvroSchema
        from kafkasse.records.registry.client import Misconfigured, NotFound, RegistryClient, TemporaryFailure
        from kafkasse.settings import SchemaRegistrySettings
    except ImportError as error:
        raise CommandError(f"a schema registry needs {error.name}; run pip install 'kafkasse[schemas]'") from error

    login: dict[str, Any] = {name: given.get(name) for name in ("username", "password_file", "ca_file")}
    settings = SchemaRegistrySettings(url=given["registry"], **login)
    subject, version = given["subject"], given.get("version", "latest")
    try:
        found = RegistryClient(settings).version(subject, version)
    except NotFound:
        raise CommandError(f"the registry has no version {version} of the subject {subject}") from None
    except TemporaryFailure as error:
        raise SchemaUnavailable(f"the registry is not available: {error}") from error
    except Misconfigured as error:
        raise CommandError(f"cannot read the schema from the registry: {error}") from error
    if found.type not in ("JSON", "AVRO"):
        raise CommandError(
            f"the schema of {subject} has the type {found.type}, but a YAML pipeline reads only JSON and AVRO; for other "
            "formats, define a Pipeline in Python, see docs/pipelines.md"
        )
    if found.references:
        raise CommandError(f"the schema of {subject} refers to other subjects, which a pipeline does not read")
    if found.type == "JSON":
        return fields(json.loads(found.text)), None
    try:
        described = AvroSchema(found, {}).json_schema()
    except Exception as error:  # fastavro raises many types
        raise CommandError(f"the schema of {subject} is not valid: {error}") from error
    source = AvroSource(found.text, given["registry"], **login)
    return fields(avro_records.with_number_types(described)), source
