"""The state that all streams of one process share. This package knows neither feeds nor Kafka.

open_streams     the open streams, and how they end
limits           how many streams a process and a client may open
control          lists and ends the streams of each worker, through a socket
stream_services  the stream services of this process, and requests that the worker rejects before an app receives them
runtime          the private directory of a running gunicorn
event_loop       lets other greenlets run during long computations
log_line         formats text as one line of the log
limited_log      limits how often something is logged
telemetry        metrics, logs and traces
"""
