"""What the pages show, as texts and numbers."""
