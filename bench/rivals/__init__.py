"""Servers to compare kafkasse with, each written as its authors would: short, without resume, checks and limits."""
