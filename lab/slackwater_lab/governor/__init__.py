"""The machines of the papers, simulated, and one table for each paper."""
