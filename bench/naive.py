"""The naive way, to compare with: a Kafka consumer for each client, in a Flask app under gunicorn's gevent worker.

    gunicorn -k gevent bench.naive:app

It is what one writes first. It reads BENCH_BOOTSTRAP_SERVERS, and knows of ids only as much as the benchmark needs.
"""

from gevent import monkey

monkey.patch_all()

import json  # noqa: E402
import os  # noqa: E402
from collections.abc import Iterator  # noqa: E402

from flask import Flask, Response, request  # noqa: E402
from kafka import KafkaConsumer, TopicPartition  # noqa: E402

app = Flask(__name__)


@app.get("/<topic>")
def stream(topic: str) -> Response:
    """The topic from its end, or from the Last-Event-ID."""
    consumer = KafkaConsumer(bootstrap_servers=os.environ["BENCH_BOOTSTRAP_SERVERS"])
    partitions = [TopicPartition(topic, each) for each in sorted(consumer.partitions_for_topic(topic) or ())]
    consumer.assign(partitions)
    consumer.seek_to_end()
    for entry in json.loads(request.headers.get("Last-Event-ID", "[]")):
        consumer.seek(TopicPartition(entry["topic"], entry["partition"]), entry["offset"])
    place = {each.partition: consumer.position(each) for each in partitions}
    return Response(events(consumer, topic, place), content_type="text/event-stream")


def events(consumer: KafkaConsumer, topic: str, place: dict[int, int]) -> Iterator[str]:
    """One event for each record, with the offsets that follow it."""
    try:
        yield ":ok\n\n"
        for record in consumer:
            place[record.partition] = record.offset + 1
            entries = [{"topic": topic, "partition": each, "offset": at} for each, at in place.items()]
            yield f"id: {json.dumps(entries)}\ndata: {record.value.decode()}\n\n"
    finally:
        consumer.close()
