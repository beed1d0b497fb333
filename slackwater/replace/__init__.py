"""Replaces machines that are chronically slow: drains one, waits until it is empty, and runs the site's command."""
