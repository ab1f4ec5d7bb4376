"""The Kafka adapter: implements kafkasse.log.Log. No other room of the web process uses kafka-python.

    KafkaLog ─────▶ Client            metadata, offsets and new sockets, through kafka-python
       │              ▲
       │         ConnectionPool       opens connections and keeps idle ones
       ▼              ▲
    KafkaCursor ─▶ BrokerNode ─▶ Connection     one of each per broker; sends Fetch requests (fetch_protocol)
       │
       ├─▶ PartitionState             offset and leader of one partition
       └─▶ batches ─▶ compression     decodes the fetched records

Each class is in the module of the same name. The module errors translates kafka-python's errors into kafkasse's errors.
"""
