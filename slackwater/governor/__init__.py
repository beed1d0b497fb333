"""The governor: as many cores and as high a clock as the response-time target needs, and no more.

Pure code: a policy takes what was observed and returns what should be set. Nothing here reads or writes a machine.
"""
