"""A simulator of small pools, from request to request, with the real detector and lbengine."""
