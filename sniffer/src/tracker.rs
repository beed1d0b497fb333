//! The table of connections: finds the connection of a packet, and stays bounded whatever the packets are.

use std::cmp::Reverse;
use std::collections::VecDeque;

use hashbrown::HashMap;

use crate::closed::Closed;
use crate::figures::{Exchange, Period, Summary};
use crate::key::Key;
use crate::ledger::{Budget, Keeps, Ledger};
use crate::link::Skip;
use crate::piece::Side;
use crate::protocol::Protocol;
use crate::routes::MOST_ROUTES;
use crate::sampling::Sampling;
use crate::segment::{Packet, Segment};
use crate::settings::TrackerSettings;
use crate::spread::{Booked, Spread};
use crate::stream::{Connection, SegmentFate};
use crate::waiting::Waiting;

mod sample;

/// A clock that goes back by more than this was set; packets of several queues are out of order by less.
const STEP_NS: u64 = 250_000_000;

/// How long a closed connection is kept, for late retransmissions.
const LINGER_NS: u64 = 1_000_000_000;

/// After this time without a packet a turn of an unknown protocol is over.
const IDLE_NS: u64 = 1_000_000_000;

/// Time between two sweeps over all connections.
const SWEEP_NS: u64 = 1_000_000_000;

/// Connections looked at for each packet while a sweep is under way.
const SWEEP_STEP: usize = 16;

/// Connections for which no memory is reserved.
const SMALL_TABLE: usize = 4_096;

/// Number of connections from which one is chosen to make room.
const CANDIDATES: usize = 16;

struct Slot {
    connection: Connection,
    /// The slot is in `stuck`.
    listed: bool,
    /// The slot is in `holders`.
    holds: bool,
    booked: Booked,
}

/// Follows connections and records the exchanges that end on them.
pub struct Tracker {
    ports: Box<[u64; 1024]>,
    settings: TrackerSettings,
    index: HashMap<Key, u32>,
    slots: Vec<Option<Slot>>,
    free: Vec<u32>,
    /// Slots with segments held back.
    stuck: Vec<u32>,
    /// Slots that held bytes back, each with its stream, in the order in which they began to.
    holders: VecDeque<(u32, u64)>,
    /// The next slot of the sweep; at the end of `slots` no sweep is under way.
    cursor: usize,
    swept_ns: u64,
    /// The slot at which the search for a connection that makes room continues.
    next_candidate: usize,
    streams: u64,
    /// The time of the latest packet since the clock was last set back.
    latest_ns: u64,
    closed: Closed,
    others: HashMap<Key, Option<u32>>,
    ledger: Ledger,
    waiting: Waiting,
    spread: Spread,
}

impl Tracker {
    /// Watches the settings' ports.
    pub fn new(settings: TrackerSettings) -> Tracker {
        let mut ports = Box::new([0u64; 1024]);
        for port in &settings.ports {
            ports[usize::from(port >> 6)] |= 1 << (port & 63);
        }
        let keeps =
            Keeps { exchanges: settings.keep_exchanges, histograms: settings.with_histograms, total: settings.sums_up };
        let budget = Budget { most_bytes: settings.most_held_bytes, most_waiting: settings.most_waiting };
        let routes = settings.routes.iter().take(MOST_ROUTES).cloned().collect();
        let ledger = Ledger::new(budget, Sampling::new(settings.sample_seed), routes, keeps);
        // Unused capacity costs no memory, and growing later would cost the time to move all connections. A small table is
        // moved within a millisecond, and a thousand servers would reserve gigabytes.
        let reserved = if settings.most_connections > SMALL_TABLE { settings.most_connections.min(1 << 16) } else { 0 };
        let slots = Vec::with_capacity(reserved);
        Tracker {
            ports,
            settings,
            index: HashMap::new(),
            slots,
            free: Vec::new(),
            stuck: Vec::new(),
            holders: VecDeque::new(),
            cursor: 0,
            swept_ns: 0,
            next_candidate: 0,
            streams: 0,
            latest_ns: 0,
            closed: Closed::default(),
            others: HashMap::new(),
            ledger,
            waiting: Waiting::default(),
            spread: Spread::default(),
        }
    }

    /// Takes a packet of any kind.
    pub fn packet(&mut self, packet: &Packet<'_>) {
        self.ledger.counts.packets += 1;
        if packet.time_ns.saturating_add(STEP_NS) < self.latest_ns {
            (self.latest_ns, self.ledger.stepped_at) = (packet.time_ns, packet.frame);
            self.change_share(u64::MAX);
        }
        self.latest_ns = self.latest_ns.max(packet.time_ns);
        self.change_share(packet.time_ns);
        let segment = match packet.segment() {
            Ok(segment) => segment,
            Err(Skip::Fragment) => {
                self.ledger.counts.fragments += 1;
                return;
            }
            Err(Skip::NotTcp) => return,
            Err(Skip::NotUnderstood(unread)) => return self.ledger.not_understood(unread),
        };
        match self.key(&segment) {
            Some((key, side)) if self.ledger.sampling.includes(&key) => self.segment(key, side, &segment, packet),
            Some(_) => {}
            None if self.settings.number_all => self.number(&segment),
            None => {}
        }
        self.sweep(packet.time_ns, SWEEP_STEP);
    }

    /// The figures since the last call. `now_ns` is in the clock of the packets: nanoseconds since 1970.
    pub fn take_period(&mut self, now_ns: u64) -> Period {
        self.change_share(now_ns);
        self.settle_stuck(now_ns);
        self.sweep(now_ns, usize::MAX);
        let oldest_unanswered_ms = self.oldest_unanswered_ms(now_ns);
        let period = self.ledger.take_period(self.in_flight(), oldest_unanswered_ms);
        Period { exchanges_error: self.spread.take_error(), foreign_ports: self.ledger.ports.take(now_ns), ..period }
    }

    /// The figures since the start; closes the period. Open connections stay open.
    pub fn summary(&mut self) -> Summary {
        self.ledger.summary()
    }

    /// Ends the capture: decides everything, closes all connections, and returns the figures since the start.
    pub fn finish(&mut self) -> Summary {
        for slot in 0..self.slots.len() {
            self.remove(slot, false);
        }
        self.ledger.summary()
    }

    /// The exchanges since the last call, if the settings keep them.
    pub fn take_exchanges(&mut self) -> Vec<Exchange> {
        self.ledger.take_exchanges()
    }

    /// Bytes held back at the moment, of at most `most_held_bytes`.
    pub fn held_bytes(&self) -> usize {
        self.ledger.held_bytes()
    }

    /// Connections in the table, of at most `most_connections`.
    pub fn connections(&self) -> usize {
        self.index.len()
    }

    fn is_watched(&self, port: u16) -> bool {
        self.ports[usize::from(port >> 6)] & 1 << (port & 63) != 0
    }

    fn protocol(&self, port: u16) -> &'static Protocol {
        let named = self.settings.protocols.iter().find(|(other, _)| *other == port);
        named.and_then(|(_, name)| Protocol::named(name)).unwrap_or_else(|| Protocol::of_port(port))
    }

    /// The connection's key, and the sender. The watched port is taken for the server's.
    fn key(&self, segment: &Segment<'_>) -> Option<(Key, Side)> {
        let (source, destination) = (segment.source, segment.destination);
        let from_server = match (self.is_watched(source.1), self.is_watched(destination.1)) {
            (false, false) => return None,
            (true, true) => (source.1, source.0) < (destination.1, destination.0),
            (from_server, _) => from_server,
        };
        Some(if from_server {
            (Key { server: source, client: destination }, Side::Server)
        } else {
            (Key { server: destination, client: source }, Side::Client)
        })
    }

    fn segment(&mut self, key: Key, side: Side, segment: &Segment<'_>, packet: &Packet<'_>) {
        let mut position = self.index.get(&key).map(|slot| *slot as usize);
        let idle_ns = self.settings.idle_s.saturating_mul(1_000_000_000);
        if let Some(slot) = position
            && let Some(Slot { connection, .. }) = &self.slots[slot]
            && packet.time_ns.saturating_sub(connection.last_ns) >= idle_ns
        {
            self.remove(slot, !connection.is_closed());
            position = None;
        }
        if position.is_none() && self.closed.repeats(&key, side, segment) {
            self.ledger.counts.retransmitted += u64::from(!segment.payload.is_empty() || segment.cut > 0);
            return;
        }
        // The second round is for a SYN that opens another connection between the same ports.
        for _ in 0..2 {
            let slot = position.unwrap_or_else(|| self.insert(key, side, segment));
            let Some(Slot { connection, listed, holds, booked }) = &mut self.slots[slot] else { return };
            let (held_before, booked_before) = (self.ledger.held_bytes(), self.ledger.counts.exchanges);
            let sender = if connection.swapped { side.other() } else { side };
            let before = connection.in_flight();
            let fate = connection.take(sender, segment, packet.time_ns, packet.frame, &mut self.ledger);
            self.waiting.moved(slot, before, connection.in_flight(), &mut self.ledger);
            self.spread.book(booked, booked_before, &self.ledger);
            if connection.is_stuck() && !*listed {
                *listed = true;
                self.stuck.push(slot as u32);
            }
            if self.ledger.held_bytes() > held_before && !*holds {
                *holds = true;
                self.holders.push_back((slot as u32, connection.stream));
            }
            if fate == SegmentFate::Taken {
                self.free_memory();
                return;
            }
            self.remove(slot, false);
            position = None;
        }
    }

    /// Adds a connection whose first captured segment is `segment`.
    fn insert(&mut self, key: Key, side: Side, segment: &Segment<'_>) -> usize {
        while self.index.len() >= self.settings.most_connections.max(1) {
            self.make_room();
        }
        // When both ports are watched, only a SYN shows which side is the server.
        let opener = if segment.ack.is_some() { Side::Server } else { Side::Client };
        let both = self.is_watched(key.client.1);
        let swapped = both && segment.syn && side != opener;
        let port = if swapped { key.client.1 } else { key.server.1 };
        let protocol = self.protocol(port);
        let connection = Connection::new(self.streams, key, swapped, protocol, self.settings.times_upgraded);
        self.streams += 1;
        self.ledger.connections += 1;
        self.closed.forget(&key);
        let slot = Slot { connection, listed: false, holds: false, booked: Booked::default() };
        let position = match self.free.pop() {
            Some(position) => {
                self.slots[position as usize] = Some(slot);
                position
            }
            None => {
                self.slots.push(Some(slot));
                (self.slots.len() - 1) as u32
            }
        };
        self.index.insert(key, position);
        position as usize
    }

    fn remove(&mut self, slot: usize, evicted: bool) {
        let Some(Slot { connection, booked, .. }) = &mut self.slots[slot] else { return };
        let booked_before = self.ledger.counts.exchanges;
        self.index.remove(&connection.key);
        if connection.is_closed() {
            self.closed.remember(connection.key, connection.ends_at());
        }
        self.ledger.counts.evicted += u64::from(evicted);
        self.waiting.moved(slot, connection.in_flight(), 0, &mut self.ledger);
        connection.close(&mut self.ledger);
        self.spread.book(booked, booked_before, &self.ledger);
        self.slots[slot] = None;
        self.free.push(slot as u32);
    }

    /// Gives up the least useful of some connections: a closed one, else one without payload, else the idlest one.
    fn make_room(&mut self) {
        let occupied = (0..self.slots.len()).map(|step| (self.next_candidate + step) % self.slots.len());
        let candidates = occupied.filter_map(|slot| Some((slot, &self.slots[slot].as_ref()?.connection)));
        let rank = |connection: &Connection| (!connection.is_closed(), connection.has_payload, connection.last_ns);
        let chosen = candidates.take(CANDIDATES).min_by_key(|(_, connection)| rank(connection));
        let Some((slot, connection)) = chosen else { return };
        let evicted = !connection.is_closed();
        self.next_candidate = (self.next_candidate + CANDIDATES) % self.slots.len();
        self.remove(slot, evicted);
    }

    /// While memory is short, gives up the connection that holds most bytes among those that have held bytes longest. So
    /// a sender that fills the memory with messages that never end loses it again, at no cost to the others.
    fn free_memory(&mut self) {
        if self.holders.len() > 2 * self.slots.len() {
            let slots = &mut self.slots;
            self.holders.retain(|(slot, stream)| {
                let Some(slot) = slots[*slot as usize].as_mut().filter(|slot| slot.connection.stream == *stream) else {
                    return false;
                };
                slot.holds = slot.connection.held_bytes() > 0;
                slot.holds
            });
        }
        while self.ledger.is_pressed() {
            let oldest = self.holders.iter().take(CANDIDATES).enumerate();
            let chosen = oldest.max_by_key(|(place, holder)| (self.held_by(**holder), Reverse(*place)));
            let Some((place, holder)) = chosen.map(|(place, holder)| (place, *holder)) else { return };
            self.holders.remove(place);
            if self.held_by(holder) > 0 {
                self.remove(holder.0 as usize, true);
            } else if let Some(slot) = &mut self.slots[holder.0 as usize]
                && slot.connection.stream == holder.1
            {
                slot.holds = false;
            }
        }
    }

    /// Bytes held back by the connection with this slot and stream; 0 when it is gone.
    fn held_by(&self, (slot, stream): (u32, u64)) -> usize {
        let slot = self.slots[slot as usize].as_ref().filter(|slot| slot.connection.stream == stream);
        slot.map_or(0, |slot| slot.connection.held_bytes())
    }

    /// Removes closed and idle connections among the next `steps`; a sweep over all starts at most once in `SWEEP_NS`.
    fn sweep(&mut self, now: u64, steps: usize) {
        if self.cursor >= self.slots.len() {
            if now.abs_diff(self.swept_ns) < SWEEP_NS {
                return;
            }
            self.swept_ns = now;
            self.cursor = 0;
            self.settle_stuck(now);
        }
        let end = self.slots.len().min(self.cursor.saturating_add(steps));
        for slot in self.cursor..end {
            let Some(Slot { connection, booked, .. }) = &mut self.slots[slot] else { continue };
            connection.last_ns = connection.last_ns.min(now);
            let idle = now - connection.last_ns;
            if idle >= IDLE_NS {
                let (before, booked_before) = (connection.in_flight(), self.ledger.counts.exchanges);
                connection.on_idle(&mut self.ledger);
                self.spread.book(booked, booked_before, &self.ledger);
                self.waiting.moved(slot, before, connection.in_flight(), &mut self.ledger);
            }
            if connection.is_closed() && idle >= LINGER_NS {
                self.remove(slot, false);
            } else if idle >= self.settings.idle_s.saturating_mul(1_000_000_000) {
                self.remove(slot, true);
            }
        }
        self.cursor = end;
    }

    /// Decides by the time that has passed about segments that are held back.
    fn settle_stuck(&mut self, now: u64) {
        let mut stuck = std::mem::take(&mut self.stuck);
        stuck.retain(|slot| {
            let Some(Slot { connection, listed, booked, .. }) = &mut self.slots[*slot as usize] else { return false };
            if !*listed {
                return false;
            }
            let (before, booked_before) = (connection.in_flight(), self.ledger.counts.exchanges);
            connection.proceed(now, true, &mut self.ledger);
            self.spread.book(booked, booked_before, &self.ledger);
            self.waiting.moved(*slot as usize, before, connection.in_flight(), &mut self.ledger);
            *listed = connection.is_stuck();
            *listed
        });
        self.stuck = stuck;
    }

    /// Counts a connection that is not watched, because Wireshark numbers it too.
    fn number(&mut self, segment: &Segment<'_>) {
        let (low, high) = (segment.source.min(segment.destination), segment.source.max(segment.destination));
        let opening = (segment.syn && segment.ack.is_none()).then_some(segment.seq);
        if self.others.len() >= self.settings.most_connections {
            self.others.clear();
        }
        let key = Key { server: low, client: high };
        if self.others.get(&key).is_none_or(|last| opening.is_some() && *last != opening) {
            self.streams += 1;
            self.others.insert(key, opening);
        }
    }
}
