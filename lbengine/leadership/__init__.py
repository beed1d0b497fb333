"""Who drives a balancer."""
