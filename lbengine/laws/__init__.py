"""The laws: how many requests per second each server should get."""
