"""The same job for CometMQ and for what else a Python program may embed as a durable queue."""
