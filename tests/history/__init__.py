"""Clients that check what they receive. A package, so that its broker ends with its last test."""
