"""A member's part in its group: queues, progress, retries."""
