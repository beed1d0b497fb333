"""The balancers: each reads and writes one kind."""
