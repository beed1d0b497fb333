"""Slackwater: interference mitigation for load-balanced web clusters."""

__version__ = "1.0.0"
