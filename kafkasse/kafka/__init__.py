"""The Kafka adapter: implements kafkasse.log.Log. No other room of the web process uses kafka-python.

    KafkaLog ─────▶ Client            metadata, offsets and new sockets, through kafka-python
       │              ▲
       │         ConnectionPool       opens connections and keeps idle ones
       ▼              ▲
    KafkaCursor ─▶ BrokerNode ─▶ Connection     one of each per broker; sends Fetch requests (fetch_protocol)
       │
       ▼
    CursorCore                        decides, without I/O: the state of each partition (partition_states)
       ├─▶ FetchSession               one per broker: what the next Fetch request contains
       ├─▶ FetchPosition              offset and leader of one partition
       └─▶ decoding ─▶ batches ─▶ compression   decodes the fetched records

Most classes are in the module of the same name. The module errors translates kafka-python's errors into kafkasse's errors.
If all your brokers run Kafka 3.1 or newer, you may skip old_brokers.
"""
