"""What the balancer sees of servers that have no monitor, as Samples."""
