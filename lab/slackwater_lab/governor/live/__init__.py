"""Policies on a real service beside a batch job: the load, what is seen and set, and the rounds of a comparison."""
