"""From a record to the bytes of an event, and from an event ID to a position. Nothing here knows HTTP, clients or Kafka.

position  event IDs: which record of each partition is the next
filter    which records a stream contains
frame     one record as the bytes of an event
encoder   all of this for the records of a batch
registry  decoders of records whose schemas are in a schema registry
"""
