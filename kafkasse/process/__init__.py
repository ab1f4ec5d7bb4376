"""What all streams of one process share.

open_streams  the open streams, and how they end
limits        how many streams a process and a client may open
control       a socket of each worker, through which an operator lists and ends streams
runtime       the private directory of a running gunicorn
event_loop    giving other greenlets a turn
log_line      one line of the log
telemetry     metrics, logs and traces
"""
