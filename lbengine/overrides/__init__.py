"""What operators and the second stage ask for."""
