"""What each mechanism of the decision brings: drawn scenarios, each played with one mechanism after the other off."""
