"""Metrics and episodes for an OpenTelemetry collector."""
