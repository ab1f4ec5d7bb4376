"""A pipeline as plain data: `Pipeline` and `Source`.

Invalid arguments raise a CommandError that names the argument and the fix. This module does not import PySpark, so that an
application can define pipelines in a module that its web process imports too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from kafkasse.errors import CommandError, did_you_mean

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    Query: TypeAlias = Callable[..., DataFrame | Mapping[str, DataFrame]]

Mode = Literal["realtime", "microbatch", "once"]
OutputMode = Literal["update", "append"]

MAX_PARTITION = 2**31 - 1
MAX_OFFSET = 2**63 - 1


@dataclass(frozen=True)
class Source:
    """A topic that a pipeline reads.

    Args:
        start: where a run without a checkpoint starts to read: `earliest`, `latest`, a time in ISO 8601 with its offset from
            UTC (`2026-11-01T00:00:00Z`), a datetime with a time zone, or a map from each partition to an offset. A run with
            a checkpoint resumes from there.
        max_records_per_s: an upper limit for mode `microbatch`. It protects the sink and the state while the pipeline reads
            a long topic from its start.
        table: whether the topic is a table. The query then receives the latest record of each key, as it is when the query
            starts, and not a stream. This suits small, compacted topics.

    Raises:
        CommandError: an argument is invalid.
    """

    topic: str
    start: str | datetime | Mapping[int, int] = "earliest"
    max_records_per_s: float | None = None
    table: bool = False

    def __post_init__(self) -> None:
        from kafkasse.pipelines.schema import mismatch  # here, because it takes long to import

        given: dict[str, Any] = {
            "topic": self.topic,
            "schema": {"properties": {}},
        }  # the file needs one; a Source has none
        if self.max_records_per_s is not None:
            given["max_records_per_s"] = self.max_records_per_s
        if found := mismatch(given, "#/$defs/source"):
            raise CommandError(f"Source: {found[0][0]} {found[1]}")
        _check_start(self.start)

    def start_ms(self) -> int | None:
        """Return the start as milliseconds since the epoch if it is a time, or else None."""
        if isinstance(self.start, Mapping) or self.start in ("earliest", "latest"):
            return None
        start = datetime.fromisoformat(self.start) if isinstance(self.start, str) else self.start
        return max(0, int(start.timestamp() * 1000))


class InvalidPipeline(CommandError):
    """An argument of a pipeline is invalid.

    Attributes:
        setting: the path of the invalid argument, such as `("sources", "orders", "max_records_per_s")`; () if the error
            concerns the whole pipeline.
        reason: what is wrong, without the pipeline and the path.
    """

    def __init__(self, pipeline: str, reason: str, *setting: str) -> None:
        path = f"{'.'.join(setting)}: " if setting else ""
        super().__init__(f"the pipeline {pipeline}: {path}{reason}")
        self.reason, self.setting = reason, setting


@dataclass(frozen=True)
class Pipeline:
    """A query that reads topics and writes topics.

    Args:
        name: the name in commands, metrics and headers, and the start of the names of its checkpoint's directories.
        source: a topic, a Source, or several by name: `{"orders": "orders", "customers": Source(…)}`.
        query: a function from the rows of Spark's Kafka source (`key`, `value`, `topic`, `partition`, `offset`, `timestamp`,
            `headers`) to rows of `key` and `value` and, optionally, `version` and `position`. If there are several sources,
            the function receives one DataFrame for each, as keyword arguments with the names of the sources. If there are
            several sinks, the function returns a dict from the name of each sink to its rows.
        sink: a topic, a list of topics (the name of each is the topic), or several by name.
        mode: `realtime` processes each record when it arrives, and rejects some queries. `microbatch` accepts all queries,
            and processes records in batches. `once` processes the records that the topics contain now, and ends.
        output_mode: `update` emits each change of a result. `append` emits only final results, such as those of a window
            that the watermark has passed. Real-time mode requires `update`.
        key: a column of the query's result. Its text becomes the record's key, and a JSON object of all columns becomes the
            value, or a tombstone if all other columns are null. Without it, the query returns `key` and `value` itself.
        checkpoint: the default of the option --checkpoint: a directory for the state and the positions.
        state_partitions: how many parallel tasks each stateful stage of the query has. It cannot change while a
            checkpoint is in use.
        commit_interval_s: the interval, in seconds, at which real-time mode commits. A record that arrives during a commit
            waits for the commit to end, so a longer interval delays fewer records. But after a crash, all records since the
            last commit are processed again, and a stop and the metrics wait for the next commit. The default is 10.
        spark: Spark settings, such as `{"spark.driver.memory": "2g"}`. They override the defaults of kafkasse. Those of
            spark-submit and of the command line override them.
        version: the version of the query. Increase it if the sinks must not contain results of both the old and the
            new query.
        dead_letters: the topic for records that the query cannot parse.
        summary: what the pipeline computes, in one line.

    Raises:
        InvalidPipeline, CommandError: an argument is invalid.
    """

    name: str
    source: str | Source | Mapping[str, str | Source]
    query: Query
    sink: str | Sequence[str] | Mapping[str, str]
    mode: Mode = field(default="realtime", kw_only=True)
    output_mode: OutputMode = field(default="update", kw_only=True)
    key: str | None = field(default=None, kw_only=True)
    checkpoint: str | None = field(default=None, kw_only=True)
    state_partitions: int | None = field(default=None, kw_only=True)
    commit_interval_s: int | None = field(default=None, kw_only=True)
    spark: Mapping[str, object] = field(default_factory=dict, kw_only=True)
    version: int = field(default=1, kw_only=True)
    dead_letters: str | None = field(default=None, kw_only=True)
    summary: str = field(default="", kw_only=True)

    def __post_init__(self) -> None:
        self._check_settings()
        self._check_topics()
        if self.mode == "realtime" and self.output_mode != "update":
            raise self._error("mode 'realtime' requires output_mode 'update'; for final results, use mode 'microbatch'")
        for name, source in self.sources.items():
            if source.max_records_per_s is not None and self.mode != "microbatch":
                reason = "requires mode 'microbatch'; use this mode, or remove the limit"
                raise self._error(reason, "sources", name, "max_records_per_s")
        if self.commit_interval_s is not None and self.mode != "realtime":
            reason = "requires mode 'realtime'; the other modes commit after each batch"
            raise self._error(reason, "commit_interval_s")

    def _check_topics(self) -> None:
        """Check the topics and the names of the sources."""
        if not self.source:
            raise self._error("source is empty; name at least one topic")
        try:
            sources = self.sources
        except TypeError as error:
            raise self._error(f"source {error}") from None
        if all(source.table for source in sources.values()):
            raise self._error("source has no stream; at least one source must not be a table")
        for name in self.source if isinstance(self.source, Mapping) else ():
            if not isinstance(name, str) or not name.isidentifier():
                raise self._error(
                    f"the source name {name!r} is invalid, because it is a keyword argument of the query; "
                    "use letters, digits and '_'"
                )
        for name, topic in self.sinks.items():
            if topic in self.source_topics:
                raise self._error(f"{topic} is also a source; write to another topic", "sinks", name)
        for kind, others in (("source", self.source_topics), ("sink", self.sink_topics)):
            if self.dead_letter_topic in others:
                raise self._error(f"{self.dead_letter_topic} is also a {kind}; use another topic", "dead_letters")

    def _check_settings(self) -> None:
        """Check the arguments that do not depend on others. The schema declares those that a YAML file can set."""
        from kafkasse.pipelines.schema import mismatch  # here, because it takes long to import

        if found := mismatch(self.name, "#/properties/pipelines/propertyNames"):
            raise CommandError(f"Pipeline: name {found[1]}")
        if not callable(self.query):
            raise self._error(f"query must be a function, not {self.query!r}")
        if self.output_mode not in (choices := get_args(OutputMode)):
            hint = did_you_mean(str(self.output_mode), choices)
            raise self._error(f"must be one of {', '.join(choices)}, not {self.output_mode!r}{hint}", "output_mode")
        if self.key is not None and not (isinstance(self.key, str) and self.key):
            raise self._error(f"must be text, not {self.key!r}", "key")
        sink = self.sink
        if not isinstance(sink, str | list | tuple | Mapping):
            raise self._error(f"sink must be a topic, a list of topics, or a dict of topics by name, not {sink!r}")
        if not sink:
            raise self._error("sink is empty; name at least one topic")
        arguments = [each for each in fields(self) if each.kw_only and each.name not in ("output_mode", "key")]
        given = {each.name: value for each in arguments if (value := getattr(self, each.name)) is not each.default}
        given["spark"] = dict.fromkeys(self.spark, "")  # Spark settings can have values of any type
        for topic in [sink] if isinstance(sink, str) else sink.values() if isinstance(sink, Mapping) else sink:
            if found := mismatch({**given, "sink": topic}, "#/$defs/pipeline"):
                path, reason = found
                raise self._error(reason, *map(str, path))

    def _error(self, reason: str, *setting: str) -> InvalidPipeline:
        return InvalidPipeline(self.name, reason, *setting)

    @property
    def sources(self) -> dict[str, Source]:
        """The sources by name. The name of a single source is its topic."""
        if isinstance(self.source, Mapping):
            return {name: _source(source) for name, source in self.source.items()}
        source = _source(self.source)
        return {source.topic: source}

    @property
    def latest_sources(self) -> list[str]:
        """The topics that a run without a checkpoint reads from their ends. A rebuild would find no records there."""
        return [source.topic for source in self.sources.values() if source.start == "latest"]

    @property
    def sinks(self) -> dict[str, str]:
        """The topic of each sink by the name of the sink, which is the topic unless the sinks are named."""
        if isinstance(self.sink, Mapping):
            return dict(self.sink)
        topics = [self.sink] if isinstance(self.sink, str) else self.sink
        return dict(zip(topics, topics, strict=True))

    @property
    def source_topics(self) -> list[str]:
        """The topics of the sources."""
        return [source.topic for source in self.sources.values()]

    @property
    def sink_topics(self) -> list[str]:
        """The topics of the sinks."""
        return [*self.sinks.values()]

    @property
    def dead_letter_topic(self) -> str:
        """The topic for dead letters. By default, its name is that of the first sink, with a suffix."""
        return self.dead_letters or f"{self.sink_topics[0]}.dead-letters"

    @property
    def spark_settings(self) -> dict[str, str]:
        """The Spark settings as Spark writes them: text, and `true` or `false`."""
        settings = {
            name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in self.spark.items()
        }
        if self.state_partitions is not None:
            settings["spark.sql.shuffle.partitions"] = str(self.state_partitions)
        return settings

    @property
    def settings(self) -> dict[str, Any]:
        """The settings on which the state depends, as plain data that JSON can express.

        `query` contains the query's own settings: those of its attribute `settings`, or the keyword arguments of a
        `functools.partial`, such as `partial(topn, n=3)`.
        """
        of_query = self.query.keywords if isinstance(self.query, partial) else getattr(self.query, "settings", {})
        return {
            "version": self.version,
            "sources": {name: source.topic for name, source in self.sources.items()},
            "sinks": self.sinks,
            "output_mode": self.output_mode,
            "key": self.key,
            "state_partitions": self.state_partitions,
            "query": dict(of_query),
        }


def _source(source: str | Source) -> Source:
    if not isinstance(source, str | Source):
        raise TypeError(f"must be the name of a topic or a Source, not {source!r}")
    return Source(source) if isinstance(source, str) else source


def _check_start(start: object) -> None:
    if isinstance(start, Mapping):
        if start and all(_is_whole(p, MAX_PARTITION) and _is_whole(o, MAX_OFFSET) for p, o in start.items()):
            return
    elif start in ("earliest", "latest") or _has_time_zone(start):
        return
    raise CommandError(
        "Source: start is 'earliest', 'latest', a time with its offset from UTC such as '2026-11-01T00:00:00Z', or a map "
        f"from partitions to offsets, not {start!r}"
    )


def _is_whole(value: object, maximum: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= maximum


def _has_time_zone(start: object) -> bool:
    try:
        time = datetime.fromisoformat(start) if isinstance(start, str) else start
    except ValueError:
        return False
    return isinstance(time, datetime) and time.tzinfo is not None
