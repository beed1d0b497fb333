"""What operators and the second stage set over configuration and Verdicts."""
