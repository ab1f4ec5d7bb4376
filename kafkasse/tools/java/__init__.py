"""Java: find a Java runtime, and download the jars of Kafka and Spark by their pinned hashes."""
