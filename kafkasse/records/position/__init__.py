"""Stream positions: parse a Last-Event-ID header and write event IDs.

A position maps each partition to the next offset to read. Its text form is the event ID that a client receives and sends
back as Last-Event-ID:

    [{"topic":"t","partition":0,"offset":12,"leader_epoch":5,"topic_id":"kQ3d8y1Z"},{"topic":"t","partition":1,"offset":7}]

`leader_epoch` is the leader epoch of the record before the offset, if it is known. It reveals that the log was truncated.
The first entry of each topic has a `topic_id`: the first 8 characters of Kafka's topic ID. It reveals that the topic was
deleted and recreated after the ID was written. An ID from kafkasse lists every partition that existed at that time, so a
partition that is not listed was added later and is read from its first record. An ID without `topic_id` was written by
hand or by KafkaSSE, and selects only the partitions that it lists.

This package does no I/O; only the feeds talk to Kafka.
"""

from kafkasse.records.position.id_writer import IdTemplate, IdWriter
from kafkasse.records.position.parser import parse
from kafkasse.records.position.position import LATEST, IdType, Limits, Place, Places, Position, of_topics

__all__ = ["LATEST", "IdTemplate", "IdType", "IdWriter", "Limits", "Place", "Places", "Position", "of_topics", "parse"]
