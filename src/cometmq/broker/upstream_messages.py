"""Texts of upstream's that clients and people know, and that several parts answer with."""

from __future__ import annotations

__all__ = ["FAQ"]

FAQ = "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."
"""Upstream's addition to refusals that its frequently asked questions explain."""
