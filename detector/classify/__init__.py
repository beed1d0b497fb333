"""From features to states: the trees, evidence, episodes, and the judge that puts them together."""
