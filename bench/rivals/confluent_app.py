"""A baseline: a Flask app that creates one consumer of confluent-kafka, which is written in C, for each HTTP client.

    gunicorn -k gthread --threads 200 bench.rivals.confluent_app:app

It reads BENCH_BOOTSTRAP_SERVERS. It implements only the part of event IDs that the benchmark needs.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

from confluent_kafka import Consumer, Message, TopicPartition
from flask import Flask, Response, request

MAX_POLL_S = 1.0
MAX_BATCH = 500

app = Flask(__name__)


@app.get("/<topic>")
def stream(topic: str) -> Response:
    """Stream the topic from its end, or from the Last-Event-ID."""
    settings = {
        "bootstrap.servers": os.environ["BENCH_BOOTSTRAP_SERVERS"],
        "group.id": "unused",
        "enable.auto.commit": False,
        "fetch.queue.backoff.ms": 10,  # with the default of 1 s, it pauses whenever 64 MB have been fetched ahead
    }
    consumer = Consumer(settings)
    found = consumer.list_topics(topic).topics[topic].partitions
    entries = {entry["partition"]: entry["offset"] for entry in json.loads(request.headers.get("Last-Event-ID", "[]"))}
    position = entries or {each: consumer.get_watermark_offsets(TopicPartition(topic, each))[1] for each in found}
    consumer.assign([TopicPartition(topic, each, offset) for each, offset in position.items()])
    return Response(events(consumer, topic, position), content_type="text/event-stream")


def events(consumer: Consumer, topic: str, position: dict[int, int]) -> Iterator[str]:
    """Yield one event for each record. Its ID contains the next offset of each partition."""
    try:
        yield ":ok\n\n"
        while True:
            first = consumer.poll(MAX_POLL_S)
            if first is None:
                yield ":\n\n"  # fails if the client has left
                continue
            frames = [
                _frame(each, topic, position) for each in (first, *consumer.consume(MAX_BATCH, 0)) if not each.error()
            ]
            yield "".join(frames)
    finally:
        consumer.close()


def _frame(record: Message, topic: str, position: dict[int, int]) -> str:
    position[record.partition()] = record.offset() + 1
    entries = ",".join([f'{{"topic":"{topic}","partition":{each},"offset":{at}}}' for each, at in position.items()])
    return f"id: [{entries}]\ndata: {record.value().decode()}\n\n"
