"""What a balancer knows of its servers, by three ways that are measured against the load generator."""
