"""Metrics, log lines, request IDs and traces for operators. This package imports neither Flask nor Kafka.

metrics      all metrics of kafkasse, in prometheus_client's own registry or its multiprocess files
stalls       measures how long the event loop is blocked
multiprocess the directory of the multiprocess files: dead workers, and reading the files of all workers
request_id   the ID of a request
log_format   the lines of the log, as text or JSON
traces       OpenTelemetry spans, if the process uses OpenTelemetry
"""
