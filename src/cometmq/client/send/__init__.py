"""The producer's engine: from a message to a request, its attempts and its result."""
