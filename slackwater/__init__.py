"""Slackwater: interference mitigation for load-balanced web clusters. This package is the core all parts share."""

__version__ = "0.1.0"
