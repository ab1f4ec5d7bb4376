"""Faults of the Kafka cluster, the network and the workers. A package, so that its fixtures end with its last test."""
