"""The supervisor: `slackwater serve`."""
