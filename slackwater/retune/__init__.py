"""The second stage: in episodes that last, the web servers themselves are retuned, and all of it is put back."""
