"""What came of a change."""
