"""Spark Structured Streaming pipelines. A pipeline reads topics, runs a query and writes topics.

    topics.read ─▶ queries/ (DataFrame ─▶ DataFrame) ─▶ sink_rows ─▶ contract.records ─▶ topics.write
                   json_records, operators                             headers, checks
                      └─▶ dead_letters

`pipeline` defines a pipeline as data, `catalog` finds it by name, `session` starts Spark or uses the session of
spark-submit, `runner` runs a query from start to end, `supervisor` restarts it after failures, and `application` connects
all of them. `start` starts the queries, after `checkpoint` has compared the manifest and `sink_versions` has found what an
interrupted run has written. `lease` ends a run that a `rebuild` has replaced. The command is kafkasse/commands/pipeline.py.
This package does not import Flask or kafka-python, so a machine that runs a pipeline needs neither. Importing it does not
import PySpark.
"""

from kafkasse.pipelines.pipeline import Pipeline, Source

__all__ = ["Pipeline", "Source"]
