"""Java: find or start a Java runtime, and resolve the jars of Kafka and Spark by their pinned hashes."""
