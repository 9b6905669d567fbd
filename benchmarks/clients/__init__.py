"""Clients of message brokers under one job: ours, Apache RocketMQ's Java client, and what Python people use besides."""
