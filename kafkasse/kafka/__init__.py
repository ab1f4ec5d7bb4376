"""Reads a Kafka cluster behind the contract in kafkasse/log.py. No other part of the web process uses kafka-python.

    KafkaLog (log) ─▶ Client (client): metadata, offsets, new sockets
        │                  ▲
        │           ConnectionPool (connection_pool) ─▶ Connection (connection): frames
        ▼                  ▲                                  │
    KafkaCursor (cursor) ─▶ BrokerNode (broker_node) ◀────────┘ fetch_protocol: requests and responses
        │
        └─▶ PartitionState (partition_state), batches: records, compression

errors translates what goes wrong.
"""
