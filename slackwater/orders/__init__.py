"""Orders to the nodes' wsengines: signed, recorded before they are sent, and leased. Their givers build on it."""
