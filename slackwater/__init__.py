"""Slackwater: interference mitigation for load-balanced web clusters."""

__version__ = "0.1.0"
