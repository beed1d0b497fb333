"""Leadership: which lbengine drives a balancer, by locks on this host and leases among hosts."""
