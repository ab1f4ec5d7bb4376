"""Kafka behind the contract in kafkasse/log.py: the only package that uses kafka-python."""
