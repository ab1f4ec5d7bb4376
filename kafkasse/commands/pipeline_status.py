"""`kafkasse pipeline status`: print the records of the status topic. It needs kafka-python, but not Spark."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import closing
from datetime import UTC, datetime
from typing import Any

import click
from kafka import KafkaConsumer, TopicPartition

from kafkasse.commands.kafka_clients import connected
from kafkasse.commands.table import print_table
from kafkasse.config import Config
from kafkasse.errors import CommandError, did_you_mean
from kafkasse.process.log_line import one_line
from kafkasse.tools.progress import waiting

IDLE_TIMEOUT_MS = 2000
SILENT_AFTER_S = {"running": 30}  # it writes its status every 5 s, but not while it stops, which takes 20 s
OTHERS_SILENT_AFTER_S = 60  # for example, while Spark starts
MAX_REASON_CHARACTERS = 1000
COLUMNS = ("PIPELINE", "STATE", "UPDATED", "LAG", "RESTARTS", "LATE ROWS", "DEAD LETTERS", "REASON")


def show(topic: str, kafka: Mapping[str, Any] | None, as_json: bool) -> None:
    """Print the latest status of each pipeline.

    Args:
        kafka: settings of kafka-python's client that override those of kafkasse, if there are any.
    """
    settings = Config.load(kafka=kafka).kafka_settings()
    with (
        waiting(f"reading the topic {topic}"),
        closing(connected(KafkaConsumer, settings, consumer_timeout_ms=IDLE_TIMEOUT_MS)) as consumer,
    ):
        existing = consumer.topics()  # with the prefix: topic_prefix is a setting of the server, not of pipelines
        if topic not in existing:
            hint = did_you_mean(topic, existing)
            raise CommandError(
                f"the topic {topic} does not exist{hint}; a pipeline with --status-topic {topic} creates it"
            )
        statuses = _latest(consumer, topic)
        for status in statuses:
            status["dead_letters_in_topic"] = _count(consumer, status.get("dead_letter_topic"))
    if as_json:
        for status in statuses:
            click.echo(json.dumps(status, ensure_ascii=False))
        return
    print_table([COLUMNS, *(_row(status, datetime.now(UTC)) for status in statuses)])


def _latest(consumer: KafkaConsumer, topic: str) -> list[dict[str, Any]]:
    latest: dict[bytes, dict[str, Any]] = {}
    partitions = _partitions(consumer, topic)
    consumer.assign(partitions)
    consumer.seek_to_beginning()
    ends = consumer.end_offsets(partitions)
    for record in consumer:
        if record.value is None:
            latest.pop(record.key, None)
        else:
            latest[record.key] = _parsed(record.value, topic)
        if all(consumer.position(partition) >= end for partition, end in ends.items()):
            break
    return sorted(latest.values(), key=lambda status: str(status["pipeline"]))


def _partitions(consumer: KafkaConsumer, topic: str) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for number in consumer.partitions_for_topic(topic) or ()]


def _count(consumer: KafkaConsumer, topic: str | None) -> int | None:
    """Return how many records a topic has, or None if it does not exist."""
    if not topic or not (partitions := _partitions(consumer, topic)):
        return None
    return int(sum(consumer.end_offsets(partitions).values()) - sum(consumer.beginning_offsets(partitions).values()))


def _parsed(value: bytes, topic: str) -> dict[str, Any]:
    try:
        status = json.loads(value)
        _row(status, datetime.now(UTC))
    except (TypeError, ValueError, KeyError) as error:
        raise CommandError(
            f"a record in the topic {topic} is not the status of a pipeline; choose the status topic with --topic"
        ) from error
    return dict(status)


def _row(status: dict[str, Any], now: datetime) -> tuple[str, ...]:
    age_s = (now - datetime.fromisoformat(status["updated"])).total_seconds()
    state = status["state"]
    is_silent = age_s > SILENT_AFTER_S.get(state, OTHERS_SILENT_AFTER_S)
    if is_silent and state not in ("stopped", "failed"):
        state = f"silent (was {state})"
    is_measured = status["state"] != "starting" or status["lag_records"]
    lag = f"{status['lag_records']} records, {status['lag_s']:.0f} s" if is_measured else "-"
    letters = status.get("dead_letters_in_topic")
    counts = status["restarts"], status["late_rows"], status["dead_letters"] if letters is None else letters
    cells = status["pipeline"], state, f"{age_s:.0f} s ago", lag, *map(str, counts), status["reason"]
    return tuple(one_line(cell, MAX_REASON_CHARACTERS) for cell in cells)
