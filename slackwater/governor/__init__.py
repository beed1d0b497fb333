"""The governor: as many cores and as high a clock as the response-time target needs, and no more.

A policy takes an Observation and returns an Action. Nothing here reads or writes a machine: Orders do.
"""
