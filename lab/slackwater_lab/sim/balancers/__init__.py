"""The balancers of the request-level model: which server gets the next request. No clocks, no sockets."""
