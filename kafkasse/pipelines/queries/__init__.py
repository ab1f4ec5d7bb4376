"""Queries: functions from DataFrame to DataFrame. They do not use Kafka clusters, checkpoints or sessions."""
