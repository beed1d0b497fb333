"""IPVS where keepalived owns the table."""
