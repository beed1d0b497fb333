"""From Samples to features: signals, their baselines, and what the pool and the balancer add."""
