"""The load balancer's engine: Verdicts in, weights of the balancers out."""
