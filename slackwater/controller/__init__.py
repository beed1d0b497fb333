"""The controller: all commands, what runs the parts, the playing of recordings, the bundle for bug reports."""
