"""The manifest of a checkpoint: which pipeline wrote it, with which settings. No I/O: the caller passes in the content."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from kafkasse.errors import CommandError
from kafkasse.pipelines.pipeline import Pipeline

FILE = "kafkasse.json"  # in the directory of the checkpoint
FIELDS, SELECT = "fields", "select"  # settings of a query to which entries can be added
SOURCE_ORDER = "source_order"
RecordedState = dict[str, dict[str, Any]]  # {"1": {"fields": {"item.price": "double"}, "n": 3}}, numbered by operator


@dataclass(frozen=True)
class CheckpointManifest:
    """The pipeline, the settings and the versions that wrote a checkpoint."""

    pipeline: str
    settings: dict[str, Any]  # the settings on which the state depends; see Pipeline.settings
    generation: int  # see contract.records()
    created_at_ms: int  # when the checkpoint was created, in milliseconds since the epoch
    kafkasse: str
    spark: str
    # The fields in the state of each operator, and its settings; None if the checkpoint has not been used yet.
    state: RecordedState | None = None

    @classmethod
    def parse(cls, text: str, checkpoint: str) -> CheckpointManifest:
        """Parse the content of the file. Raise CommandError if the content is not a manifest."""
        try:
            return cls(**json.loads(text))
        except (TypeError, ValueError) as error:
            raise CommandError(
                f"{checkpoint}/{FILE} is not a manifest ({error}); restore the file, or use another --checkpoint"
            ) from error

    def text(self) -> str:
        """Return the content of the file."""
        return json.dumps(asdict(self), indent=2, sort_keys=True, ensure_ascii=False)

    def updated(self, pipeline: Pipeline, state: RecordedState, kafkasse: str, spark: str) -> CheckpointManifest:
        """Return the manifest of a checkpoint that a compatible pipeline continues."""
        return replace(self, settings=plain_settings(pipeline), state=state, kafkasse=kafkasse, spark=spark)

    def changes(self, pipeline: Pipeline, state: RecordedState) -> list[str]:
        """Return the differences because of which a pipeline cannot continue with the checkpoint."""
        # An older version of kafkasse has not recorded all settings.
        after = plain_settings(pipeline)
        query = {SOURCE_ORDER: after["query"].get(SOURCE_ORDER)} | self.settings["query"]
        changed = [*differences(self.settings | {"query": query}, after)]
        if self.state is None:
            return changed
        known = {
            number: {name: operator[name] for name in operator if name in self.state.get(number, operator)}
            for number, operator in state.items()
        }
        return [*changed, *differences(self.state, known, "state")]

    def check(self, pipeline: Pipeline, state: RecordedState, checkpoint: str) -> None:
        """Check that a pipeline can continue with the checkpoint.

        Raises:
            CommandError: the state does not fit. The message names the difference and the possible solutions.
        """
        if changed := self.changes(pipeline, state):
            advice = (
                "Undo the change, or use another --checkpoint, which writes only the results of new records"
                if pipeline.latest_sources
                else "Run it with --rebuild to compute all results again beside the running version and then switch over, "
                "or undo the change, or use another --checkpoint, which writes all results again, from the oldest to the "
                "newest"
            )
            raise CommandError(
                f"the pipeline {pipeline.name} cannot continue with the checkpoint {checkpoint}: {'; '.join(changed)}. "
                f"{advice}"
            )


def plain_settings(pipeline: Pipeline) -> dict[str, Any]:
    """Return the settings of a pipeline as they are after a round trip through JSON.

    Raises:
        CommandError: a setting of the query cannot be expressed in JSON.
    """
    try:
        settings: dict[str, Any] = json.loads(json.dumps(pipeline.settings))
    except (TypeError, ValueError) as error:
        raise CommandError(
            f"the pipeline {pipeline.name}: the settings of its query must be plain data such as numbers, texts, lists and "
            f"dicts, so that its checkpoint can contain them ({error})"
        ) from error
    return settings


def differences(before: Mapping[str, Any], after: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Yield the incompatible differences of two settings. Adding an entry to `fields` or to `select` is compatible."""
    for name in [*before, *(name for name in after if name not in before)]:
        old, new = before.get(name), after.get(name)
        at = f"{path}.{name}" if path else name
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            # A sink or a source may have any name.
            added_allowed = (name == FIELDS and path != "query.queries") or path in (FIELDS, f"query.{FIELDS}")
            yield from differences(old, {kept: new[kept] for kept in new if kept in old} if added_allowed else new, at)
        elif isinstance(old, list) and isinstance(new, list) and name in (FIELDS, SELECT):
            if removed := [entry for entry in old if entry not in new]:
                yield f"{at} no longer contains {', '.join(map(str, removed))}"
        elif old != new:
            yield f"{at} was {json.dumps(old)} and is {json.dumps(new)} now"
