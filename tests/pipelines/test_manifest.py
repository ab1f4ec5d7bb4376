"""A change that does not fit the checkpoint is rejected, with the difference and the possible solutions."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from kafkasse.errors import CommandError
from kafkasse.pipelines import Pipeline, failures
from kafkasse.pipelines.manifest import Manifest, differences, plain_settings

CHECKPOINT = "hdfs:///kafkasse/topn"


def query(rows: Any, **settings: Any) -> Any:
    """A query that returns its rows."""
    return rows


def pipeline(**settings: Any) -> Pipeline:
    """A pipeline whose query has these settings."""
    return Pipeline("topn", "countries", partial(query, **settings), "topn")


def manifest(pipeline: Pipeline) -> Manifest:
    return Manifest(pipeline.name, plain_settings(pipeline), 0, 0, "0.1.0", "4.3.0")


def test_an_unchanged_pipeline_continues() -> None:
    """The manifest survives its text form."""
    written = manifest(pipeline(n=3, fields={"code": "text"}))

    read = Manifest.parse(written.text(), CHECKPOINT)

    assert written == read
    read.check(pipeline(n=3, fields={"code": "text"}), {}, CHECKPOINT)


def test_another_n_is_rejected() -> None:
    """The message names both values and the solutions."""
    with pytest.raises(CommandError) as error:
        manifest(pipeline(n=3)).check(pipeline(n=5), {}, CHECKPOINT)

    assert str(error.value) == (
        "the pipeline topn cannot continue with the checkpoint hdfs:///kafkasse/topn: query.n was 3 and is 5 now. Run it "
        "with --rebuild to compute all results again beside the running version and then switch over, or undo the change, "
        "or use another --checkpoint, which writes all results again, from the oldest to the newest"
    )


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        ({"state_partitions": 4}, "state_partitions was null and is 4 now"),
        ({"version": 2}, "version was 1 and is 2 now"),
        ({"key": "code"}, 'key was null and is "code" now'),
        ({"mode": "microbatch", "output_mode": "append"}, 'output_mode was "update" and is "append" now'),
    ],
)
def test_other_incompatible_changes_are_rejected(change: dict[str, Any], difference: str) -> None:
    """Each of them changes the state, or what the results mean."""
    with pytest.raises(CommandError, match=difference):
        manifest(pipeline()).check(replace(pipeline(), **change), {}, CHECKPOINT)


@pytest.mark.parametrize("change", [{"mode": "microbatch"}, {"spark": {"spark.driver.memory": "2g"}}, {"summary": "x"}])
def test_other_changes_are_accepted(change: dict[str, Any]) -> None:
    """The state does not depend on them."""
    manifest(pipeline()).check(replace(pipeline(), **change), {}, CHECKPOINT)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ({"fields": {"a": "text"}}, {"fields": {"a": "text", "b": "text"}}, []),
        ({"fields": ["a"]}, {"fields": ["b", "a"]}, []),
        ({"fields": {"a": "text"}}, {"fields": {"b": "text"}}, ['fields.a was "text" and is null now']),
        ({"fields": ["a", "b"]}, {"fields": ["b"]}, ["fields no longer contains a"]),
        ({"select": ["a"]}, {"select": ["a", "2 * a AS b"]}, []),
        ({"select": ["a AS b"]}, {"select": ["c AS b"]}, ["select no longer contains a AS b"]),
        ({"fields": {"a": "text"}}, {"fields": {"a": "number"}}, ['fields.a was "text" and is "number" now']),
        ({}, {"where": "x > 1"}, ['where was null and is "x > 1" now']),
    ],
)
def test_only_adding_a_field_is_compatible(before: Any, after: Any, expected: list[str]) -> None:
    """Rows of the state that lack the new field are read with null in its place."""
    assert expected == list(differences(before, after))


@pytest.mark.parametrize(
    ("field", "difference"),
    [("code", 'state.1.fields.size was "bigint" and is null now'), ("size", 'and is "string" now')],
)
def test_a_state_without_a_field_or_with_another_type_is_rejected(field: str, difference: str) -> None:
    """The state contains rows as JSON text, so Spark itself would read a changed field as null."""
    written = replace(manifest(pipeline()), state={"1": {"fields": {"size": "bigint"}}})

    with pytest.raises(CommandError, match=difference):
        written.check(pipeline(), {"1": {"fields": {field: "string"}}}, CHECKPOINT)


@pytest.mark.parametrize(("before", "differs"), [({"n": 3}, True), ({"n": 2}, False), ({}, False)])
def test_another_number_of_ranks_is_rejected(before: dict[str, int], differs: bool) -> None:
    """A group that receives no row would keep its old results. Older manifests do not contain the number."""
    written = replace(manifest(pipeline()), state={"1": {"fields": {}, **before}})

    found = written.changes(pipeline(), {"1": {"fields": {}, "n": 2}})

    assert (["state.1.n was 3 and is 2 now"] if differs else []) == found


def test_another_schema_of_the_state_is_rejected() -> None:
    """Spark compares the schemas of its own aggregates, and its error names no solution."""
    error = failures.explain("[STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE] Provided value schema", committed=False)

    assert isinstance(error, CommandError)
    assert "--rebuild" in str(error)


def test_a_damaged_manifest_is_an_error() -> None:
    """The message names the file."""
    with pytest.raises(CommandError, match=f"{CHECKPOINT}/kafkasse.json is not a manifest"):
        Manifest.parse("{}", CHECKPOINT)


def test_settings_must_be_plain_data() -> None:
    """A function in the settings could not be compared with that of another run."""
    with pytest.raises(CommandError, match="must be plain data"):
        plain_settings(pipeline(n=query))
