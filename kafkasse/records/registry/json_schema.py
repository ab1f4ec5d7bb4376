"""JSON Schema: values are JSON, and can be validated. `format` is not validated.

jsonschema validates. It has no limits for hostile values, so this module protects it: other greenlets run between the steps
of a validation, the number of steps is limited, and `uniqueItems` takes linear time.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from functools import cache
from typing import Any
from urllib.parse import urljoin

import msgspec
from jsonschema import Draft7Validator, validators
from jsonschema.exceptions import ValidationError
from jsonschema.protocols import Validator
from referencing import Registry
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT7, specification_with

from kafkasse.process.event_loop import take_turn
from kafkasse.process.log_line import one_line
from kafkasse.records.frame import DeserializationError
from kafkasse.records.frame.json_text import loads
from kafkasse.records.registry.client import RegisteredSchema

# A step is one keyword of the schema at one place of the value, and takes about 10 µs. A recursive schema with alternatives
# can take exponentially many steps.
MAX_STEPS = 1_000_000
STEPS_PER_TURN = 100
ITEMS_PER_TURN = 1000
MAX_UNEVALUATED = 2_000  # in one object or array. For `unevaluated…`, jsonschema compares each pair of them

_steps: ContextVar[Iterator[int]] = ContextVar("_steps")  # of the validation in the current greenlet


class _TooManySteps(Exception):
    pass


class JsonSchema:
    """A JSON Schema with the schemas to which it refers. One without `$schema` is of draft 7, as in Confluent's clients."""

    def __init__(self, schema: RegisteredSchema, references: Mapping[str, RegisteredSchema]) -> None:
        self._source = json.loads(schema.text)
        self._has_references = bool(references)
        # Values can be decoded without a validator. Python's rejects patterns that others accept, such as \p{L}.
        self._validator: Validator | None = None
        self._problem = ""
        try:
            self._validator = self._compile(references)
        except Exception as error:  # noqa: BLE001 - the libraries raise many types of exceptions
            reason = getattr(error, "message", error)  # without the schema, which may be large
            self._problem = one_line(f"the schema cannot validate values: {type(error).__name__}: {reason}")

    def _compile(self, references: Mapping[str, RegisteredSchema]) -> Validator:
        validator_class: Any = validators.validator_for(self._source, default=Draft7Validator)
        formats = validator_class.FORMAT_CHECKER  # checks regular expressions
        if error := _first_error(
            _protected(validator_class)(validator_class.META_SCHEMA, format_checker=formats), self._source
        ):
            raise error
        source = self._source if isinstance(self._source, dict) else {}
        base: str = source.get("$id") or source.get("id") or ""  # `id` in draft 4
        # The default registry of jsonschema would download the other schemas of a $ref.
        registry: Registry[Any] = Registry()
        for name, reference in references.items():
            contents = json.loads(reference.text)
            dialect = contents.get("$schema") if isinstance(contents, dict) else None
            resource = (specification_with(dialect) if dialect else DRAFT7).create_resource(contents)
            registry = registry.with_resources([(name, resource), (urljoin(base, name), resource)])
        validator: Validator = _protected(validator_class)(self._source, registry=registry)
        return validator

    def decode(self, data: bytes, validate: bool = False) -> Any:
        """Return a value in JSON types. See lookup.CompiledSchema."""
        value = loads(data, parse_float=_finite)
        if validate:
            self._validate(value)
        return value

    def _validate(self, value: Any) -> None:
        if self._validator is None:
            raise DeserializationError(self._problem, "invalid_schema")
        take_turn()
        try:
            error = _first_error(self._validator, value)
        except (RecursionError, _TooManySteps):
            raise DeserializationError("validation of the value exceeds the limits", "invalid") from None
        except Unresolvable:
            raise DeserializationError("a $ref of the schema cannot be resolved", "invalid_schema") from None
        except Exception as failure:  # jsonschema fails at some numbers outside the range of a double
            reason = f"the value cannot be validated: {type(failure).__name__}"
            raise DeserializationError(reason, "invalid") from failure
        if error is not None:  # its message contains data of the record, so it is not logged
            reason = f"the value does not match its schema: {error.validator} at {error.json_path}"
            raise DeserializationError(reason, "invalid")

    def json_schema(self) -> dict[str, Any]:
        """Return the schema, or {} if it is not valid or refers to other schemas, which a document would lack.

        The result allows more members than the schema, because the format `kafkasse` adds one.
        """
        if self._has_references or self._validator is None or not isinstance(self._source, dict):
            return {}
        closed = "additionalProperties", "unevaluatedProperties"
        return {keyword: value for keyword, value in self._source.items() if keyword not in closed}


def _first_error(validator: Validator, value: Any) -> ValidationError | None:
    _steps.set(iter(range(MAX_STEPS)))
    try:
        return next(validator.iter_errors(value), None)
    except BaseException as error:
        # jsonschema uses a library in Rust, which panics at Python's recursion limit. A panic is not an Exception.
        if type(error).__name__ == "PanicException":
            raise RecursionError from None
        raise


def _finite(number: str) -> float:
    """Parse a number. Reject one outside the range of a double, which would become null in the event."""
    if not math.isfinite(value := float(number)):
        raise ValueError(number)
    return value


@cache
def _protected(validator_class: Any) -> Any:
    """Return the validator class with limits."""
    keywords = {name: _in_turns(keyword) for name, keyword in validator_class.VALIDATORS.items()}
    keywords |= {name: _of_few(keyword) for name, keyword in keywords.items() if name.startswith("unevaluated")}
    if "uniqueItems" in keywords:
        keywords["uniqueItems"] = _unique_items
    extend: Any = validators.extend  # which has no types
    protected = extend(validator_class, keywords)
    protected.evolve = _evolve
    return protected


def _evolve(validator: Any, **changes: Any) -> Any:
    """Return the validator of another part of the schema. jsonschema's evolve() drops the limits if it has a `$schema`."""
    class_for: Any = validators.validator_for
    other_class = class_for(changes.get("schema", validator.schema), default=None)
    for field in validator.__attrs_attrs__:
        if field.init:
            changes.setdefault(field.alias, getattr(validator, field.name))
    return (type(validator) if other_class is None else _protected(other_class))(**changes)


def _in_turns(keyword: Callable[..., Iterator[ValidationError] | None]) -> Callable[..., Iterator[ValidationError]]:
    def steps(validator: Any, expected: Any, value: Any, schema: Any) -> Iterator[ValidationError]:
        step = next(_steps.get(), None)
        if step is None:
            raise _TooManySteps
        if step % STEPS_PER_TURN == STEPS_PER_TURN - 1:
            take_turn()
        yield from keyword(validator, expected, value, schema) or ()

    return steps


def _of_few(keyword: Callable[..., Iterator[ValidationError]]) -> Callable[..., Iterator[ValidationError]]:
    def limited(validator: Any, expected: Any, value: Any, schema: Any) -> Iterator[ValidationError]:
        if isinstance(value, list | dict) and len(value) > MAX_UNEVALUATED:
            raise _TooManySteps
        return keyword(validator, expected, value, schema)

    return limited


def _unique_items(validator: Any, expected: Any, value: Any, schema: Any) -> Iterator[ValidationError]:
    """Compare the JSON of the items. jsonschema compares each pair of items: 2,000 objects take it 14 s."""
    if expected is not True or not isinstance(value, list):
        return
    seen: set[bytes] = set()
    for number, item in enumerate(value):
        if number % ITEMS_PER_TURN == 0:
            take_turn()
        try:
            encoded = msgspec.json.encode(item, order="deterministic")
        except UnicodeEncodeError:  # a lone surrogate
            encoded = json.dumps(item, sort_keys=True).encode()
        if encoded in seen:
            yield ValidationError("the items are not unique")
            return
        seen.add(encoded)
