"""Models of pools: `requests` goes from request to request (small pools), `cycles` from decision to decision."""
