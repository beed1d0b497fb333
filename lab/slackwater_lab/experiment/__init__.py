"""One run in the lab: policies, scenarios, who runs them, what is recorded."""
