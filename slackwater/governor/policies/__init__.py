"""One policy, one file, with its source."""
