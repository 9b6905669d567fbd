"""The simple consumer's engine, and popped messages with their handles."""
