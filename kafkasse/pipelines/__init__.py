"""Spark Structured Streaming pipelines. Each pipeline reads one topic, runs a query and writes another topic.

    topics.read ─▶ queries/ (DataFrame ─▶ DataFrame) ─▶ topics.write
                   json_records.json_objects, stateful_processor.top_n

`catalog` lists the pipelines, `session` starts Spark or uses the session of spark-submit, and `runner` runs a query from
start to end. The command is kafkasse/commands/pipeline.py. This package does not import Flask or kafka-python, so a
machine that runs a pipeline needs neither.
"""
