//! The few Samples that wait for the bus. The oldest are dropped, and the first Sample behind a gap has their number.

use std::collections::VecDeque;

use slackwater_messages::Sample;

/// The Samples that wait, oldest first.
pub struct Backlog {
    waiting: VecDeque<Sample>,
    most: usize,
    dropped: u64,
}

impl Backlog {
    /// Keeps at most `most` Samples, and at least one.
    pub fn new(most: usize) -> Backlog {
        Backlog { waiting: VecDeque::new(), most: most.max(1), dropped: 0 }
    }

    /// Adds a Sample. When there are too many, drops the oldest; its successor counts it, and the Samples that it had
    /// counted.
    pub fn push(&mut self, sample: Sample) {
        self.waiting.push_back(sample);
        while self.waiting.len() > self.most
            && let Some(oldest) = self.waiting.pop_front()
        {
            self.dropped += 1;
            if let Some(next) = self.waiting.front_mut() {
                next.samples_dropped += 1 + oldest.samples_dropped;
            }
        }
    }

    /// The Sample to send next.
    pub fn oldest(&self) -> Option<&Sample> {
        self.waiting.front()
    }

    /// Removes the oldest Sample, which was sent.
    pub fn sent(&mut self) {
        self.waiting.pop_front();
    }

    /// Whether no Sample waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Number of Samples dropped since the start.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(seq: u64) -> Sample {
        Sample { seq, ..Sample::default() }
    }

    #[test]
    fn the_oldest_are_dropped_and_the_first_that_leaves_says_how_many() {
        let mut backlog = Backlog::new(3);
        (0..10).for_each(|seq| backlog.push(sample(seq)));
        let mut left = Vec::new();
        while let Some(oldest) = backlog.oldest() {
            left.push((oldest.seq, oldest.samples_dropped));
            backlog.sent();
        }
        assert_eq!(left, [(7, 7), (8, 0), (9, 0)]);
        assert_eq!((backlog.dropped(), backlog.is_empty()), (7, true));
        backlog.push(sample(10));
        assert_eq!(backlog.oldest().map(|next| next.samples_dropped), Some(0));
    }

    #[test]
    fn a_buffer_of_one_keeps_the_newest() {
        let mut backlog = Backlog::new(0);
        (0..3).for_each(|seq| backlog.push(sample(seq)));
        assert_eq!(backlog.oldest().map(|next| (next.seq, next.samples_dropped)), Some((2, 2)));
    }
}
