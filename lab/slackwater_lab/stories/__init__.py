"""What the lab runs: demo, calm, recordings, scenarios."""
