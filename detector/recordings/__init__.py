"""Recordings of Samples: the file format, recording a live pool, and the marks that become labels."""
