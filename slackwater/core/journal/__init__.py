"""The journal: what was measured, judged and changed."""
