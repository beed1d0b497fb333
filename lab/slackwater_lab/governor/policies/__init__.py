"""Policies of papers that are only simulated: one policy, one file, with its source."""
