"""Plays a recording through the real detector, lbengine, journal and dashboard: `slackwater try`."""
