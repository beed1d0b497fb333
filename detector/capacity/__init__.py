"""How many requests per second a server can carry now: pure code over Samples."""
