"""The push consumer's engine: pulls, workers, listeners and their outcomes."""
