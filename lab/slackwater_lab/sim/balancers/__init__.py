"""The balancers of the simulator: which server gets the next request. No clocks, no sockets."""
