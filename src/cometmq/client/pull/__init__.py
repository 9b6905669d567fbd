"""The pull consumer's engine, and one pull."""
