"""From a record to the bytes of an event, and from an event ID to a position. Knows neither brokers, requests nor feeds.

position  event IDs: the next record of each partition
filter    which records a stream contains
frame     one record as the bytes of an event
encoder   filters, formats and frames the records of a batch
registry  decoders of records whose schemas are in a schema registry
"""
