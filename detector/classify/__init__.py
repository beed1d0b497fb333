"""From features to states: thresholds, the tree, episodes, and the judge that puts them together."""
