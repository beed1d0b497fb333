"""The forecast and the outcome of a change."""
