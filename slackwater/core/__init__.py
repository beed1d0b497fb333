"""What all parts share: messages, settings, the bus, the journal, files. It imports nothing of the layers above it."""
