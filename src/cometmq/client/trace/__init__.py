"""Upstream's message trace."""
