"""What the command line, the page and the API show of a pool, from the journal."""
