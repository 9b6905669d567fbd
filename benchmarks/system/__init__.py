"""Whole servers under load: our broker and Apache RocketMQ's, as processes, by one load generator."""
