"""Models and their scores: recordings, labels, training, evaluation."""
