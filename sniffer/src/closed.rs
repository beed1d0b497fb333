//! Connections that ended, remembered for a while, so that late copies of their segments open no new connections.

use std::collections::VecDeque;

use hashbrown::HashMap;

use crate::key::Key;
use crate::piece::Side;
use crate::segment::Segment;

/// Most connections that are remembered.
const MOST: usize = 4_096;

/// How far back a copy may be, in bytes; no TCP window is larger.
const FARTHEST: u32 = 1 << 30;

/// Sequence numbers behind the last bytes of connections that ended.
#[derive(Default)]
pub struct Closed {
    ends: HashMap<Key, [Option<u32>; 2]>,
    order: VecDeque<Key>,
}

impl Closed {
    /// Remembers a connection with the ends of the key's client and server.
    pub fn remember(&mut self, key: Key, ends: [Option<u32>; 2]) {
        if self.order.len() >= MOST
            && let Some(oldest) = self.order.pop_front()
        {
            self.ends.remove(&oldest);
        }
        self.order.push_back(key);
        self.ends.insert(key, ends);
    }

    /// Forgets a connection, because another one between the same ports begins.
    pub fn forget(&mut self, key: &Key) {
        self.ends.remove(key);
    }

    /// Forgets all connections but those for which `is_kept` holds.
    pub fn keep(&mut self, is_kept: impl Fn(&Key) -> bool) {
        self.ends.retain(|key, _| is_kept(key));
        self.order.retain(|key| is_kept(key));
    }

    /// Whether a segment that the key's `side` sent brings nothing new to a connection that ended.
    pub fn repeats(&self, key: &Key, side: Side, segment: &Segment<'_>) -> bool {
        if segment.syn {
            return false;
        }
        let Some([client, server]) = self.ends.get(key) else { return false };
        let length = segment.payload.len() as u32 + segment.cut;
        let end = if side == Side::Client { client } else { server };
        let before_end = |end: &u32| end.wrapping_sub(segment.seq.wrapping_add(length)) <= FARTHEST;
        length == 0 || end.as_ref().is_some_and(before_end)
    }
}
