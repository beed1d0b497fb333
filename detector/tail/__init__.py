"""Tail-latency estimators: p95 response time from a server's request rate and configuration.

Source: Eggen and Eggen, "Heimdall: Towards Energy-Proportional Computing" (NTNU 2019), sections 3.2, 4.1 and 4.2, which
predicts memcached's p95 from RPS, cores and frequency. Here a configuration is what a Sample contains of the server.
"""
