"""Spark Structured Streaming pipelines: a topic, a query, a topic.

    topics.read ─▶ queries/ (DataFrame ─▶ DataFrame) ─▶ topics.write
                     records.json_objects, top.top_n

`catalog` names the pipelines, `session` starts Spark or takes the one of spark-submit, `command` is
`kafkasse pipeline`. Flask and the web server's Kafka client are unknown here: whoever runs a pipeline needs neither.
"""
