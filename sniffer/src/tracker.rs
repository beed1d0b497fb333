//! The table of connections: finds the one that a packet belongs to, and stays bounded whatever the packets are.

use std::cmp::Reverse;
use std::collections::VecDeque;

use hashbrown::HashMap;

use crate::closed::Closed;
use crate::figures::{Exchange, Period, Summary};
use crate::key::Key;
use crate::ledger::{Budget, Ledger};
use crate::link::Skip;
use crate::piece::Side;
use crate::protocol::Protocol;
use crate::routes::MOST_ROUTES;
use crate::sampling::Sampling;
use crate::segment::{Packet, Segment};
use crate::settings::TrackerSettings;
use crate::spread::{Spread, Tally};
use crate::stream::{Connection, Verdict};
use crate::waiting::Waiting;

mod sample;

/// A clock that goes back so far was set: packets of several queues are out of order by less.
const STEP_NS: u64 = 250_000_000;

/// A closed connection is kept for retransmissions that come late.
const LINGER_NS: u64 = 1_000_000_000;

/// After so long without a packet a turn of an unknown protocol is over.
const IDLE_NS: u64 = 1_000_000_000;

/// Between two looks at all connections.
const SWEEP_NS: u64 = 1_000_000_000;

/// Connections looked at for each packet while a sweep is under way.
const SWEEP_STEP: usize = 16;

/// Connections among which the one that makes room is chosen.
const CANDIDATES: usize = 16;

struct Slot {
    connection: Connection,
    /// It is in the list of connections that wait for time to pass.
    listed: bool,
    /// It is in the list of connections that hold bytes back.
    holds: bool,
    tally: Tally,
}

/// Follows connections and books what ends on them.
pub struct Tracker {
    ports: Box<[u64; 1024]>,
    settings: TrackerSettings,
    index: HashMap<Key, u32>,
    slots: Vec<Option<Slot>>,
    free: Vec<u32>,
    /// Slots with something held back.
    stuck: Vec<u32>,
    /// Slots with bytes held back and the streams in them, in the order in which they began; some are no longer so.
    holders: VecDeque<(u32, u64)>,
    /// The next slot that a sweep looks at; none is under way at the end.
    cursor: usize,
    swept_ns: u64,
    /// Where the search for one that makes room goes on.
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
    /// Watches nothing but the settings' ports.
    pub fn new(settings: TrackerSettings) -> Tracker {
        let mut ports = Box::new([0u64; 1024]);
        for port in &settings.ports {
            ports[usize::from(port >> 6)] |= 1 << (port & 63);
        }
        let budget = Budget { most_bytes: settings.most_held_bytes, most_waiting: settings.most_waiting };
        let routes = settings.routes.iter().take(MOST_ROUTES).cloned().collect();
        let ledger = Ledger::new(
            budget,
            Sampling::new(settings.sample_seed),
            settings.keep_exchanges,
            routes,
            settings.with_histograms,
        );
        // Room that is not used costs no memory; to move all connections when it grows would cost time.
        let slots = Vec::with_capacity(settings.most_connections.min(1 << 16));
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

    /// Takes a packet, whatever it is.
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
            Err(Skip::NotUnderstood(what)) => return self.ledger.not_understood(what),
        };
        match self.key(&segment) {
            Some((key, side)) if self.ledger.sampling.includes(&key) => self.segment(key, side, &segment, packet),
            Some(_) => {}
            None if self.settings.number_all => self.number(&segment),
            None => {}
        }
        self.sweep(packet.time_ns, SWEEP_STEP);
    }

    /// What ended since the last call. `now_ns` is in the clock of the packets: nanoseconds since 1970.
    pub fn take_period(&mut self, now_ns: u64) -> Period {
        self.change_share(now_ns);
        self.settle_stuck(now_ns);
        self.sweep(now_ns, usize::MAX);
        let oldest_unanswered_ms = self.oldest_unanswered_ms(now_ns);
        let period = self.ledger.take_period(self.in_flight(), oldest_unanswered_ms);
        Period { exchanges_error: self.spread.take_error(), foreign_ports: self.ledger.ports.take(now_ns), ..period }
    }

    /// Everything since the start; closes the period. What is still open stays open.
    pub fn summary(&mut self) -> Summary {
        self.ledger.summary()
    }

    /// No more packets will come: decides all that is undecided and closes all connections.
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

    /// The connection's name in the table and who sends, taking the watched port for the server's.
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
        let mut found = self.index.get(&key).map(|slot| *slot as usize);
        let idle_ns = self.settings.idle_s.saturating_mul(1_000_000_000);
        if let Some(slot) = found
            && let Some(Slot { connection, .. }) = &self.slots[slot]
            && packet.time_ns.saturating_sub(connection.last_ns) >= idle_ns
        {
            self.remove(slot, !connection.is_closed());
            found = None;
        }
        if found.is_none() && self.closed.has_seen(&key, side, segment) {
            self.ledger.counts.retransmitted += u64::from(!segment.payload.is_empty() || segment.cut > 0);
            return;
        }
        // A second round only for a SYN that opens another connection between the same ports.
        for _ in 0..2 {
            let slot = found.unwrap_or_else(|| self.insert(key, side, segment));
            let Some(Slot { connection, listed, holds, tally }) = &mut self.slots[slot] else { return };
            let (held_before, booked_before) = (self.ledger.held_bytes(), self.ledger.counts.exchanges);
            let sender = if connection.swapped { side.other() } else { side };
            let before = connection.in_flight();
            let verdict = connection.take(sender, segment, packet.time_ns, packet.frame, &mut self.ledger);
            self.waiting.moved(slot, before, connection.in_flight(), &mut self.ledger);
            self.spread.book(tally, booked_before, &self.ledger);
            if connection.is_stuck() && !*listed {
                *listed = true;
                self.stuck.push(slot as u32);
            }
            if self.ledger.held_bytes() > held_before && !*holds {
                *holds = true;
                self.holders.push_back((slot as u32, connection.stream));
            }
            if verdict == Verdict::Taken {
                self.free_memory();
                return;
            }
            self.remove(slot, false);
            found = None;
        }
    }

    /// A new connection; the segment is the first that was seen of it.
    fn insert(&mut self, key: Key, side: Side, segment: &Segment<'_>) -> usize {
        while self.index.len() >= self.settings.most_connections.max(1) {
            self.make_room();
        }
        // With both ports watched only a SYN shows which is the server.
        let opener = if segment.ack.is_some() { Side::Server } else { Side::Client };
        let both = self.is_watched(key.client.1);
        let swapped = both && segment.syn && side != opener;
        let port = if swapped { key.client.1 } else { key.server.1 };
        let protocol = self.protocol(port);
        let connection = Connection::new(self.streams, key, swapped, protocol, self.settings.times_upgraded);
        self.streams += 1;
        self.ledger.connections += 1;
        self.closed.forget(&key);
        let slot = Slot { connection, listed: false, holds: false, tally: Tally::default() };
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
        let Some(Slot { connection, tally, .. }) = &mut self.slots[slot] else { return };
        let booked_before = self.ledger.counts.exchanges;
        self.index.remove(&connection.key);
        if connection.is_closed() {
            self.closed.remember(connection.key, connection.ends_at());
        }
        self.ledger.counts.evicted += u64::from(evicted);
        self.waiting.moved(slot, connection.in_flight(), 0, &mut self.ledger);
        connection.close(&mut self.ledger);
        self.spread.book(tally, booked_before, &self.ledger);
        self.slots[slot] = None;
        self.free.push(slot as u32);
    }

    /// Gives up the least useful of some connections: closed before silent before open, then the idlest.
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

    /// While memory is short, gives up the connection that holds most among those that have held longest: so a sender
    /// that fills the memory with what never ends loses it again, at no cost to the others.
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
            let chosen = oldest.max_by_key(|(at, holder)| (self.held_by(**holder), Reverse(*at)));
            let Some((at, holder)) = chosen.map(|(at, holder)| (at, *holder)) else { return };
            self.holders.remove(at);
            if self.held_by(holder) > 0 {
                self.remove(holder.0 as usize, true);
            } else if let Some(slot) = &mut self.slots[holder.0 as usize]
                && slot.connection.stream == holder.1
            {
                slot.holds = false;
            }
        }
    }

    /// Bytes held back by the connection with this place and stream; none if it is there no more.
    fn held_by(&self, (slot, stream): (u32, u64)) -> usize {
        let slot = self.slots[slot as usize].as_ref().filter(|slot| slot.connection.stream == stream);
        slot.map_or(0, |slot| slot.connection.held_bytes())
    }

    /// Looks at up to so many connections, whether they are done or idle; a round at most once a second.
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
            let Some(Slot { connection, tally, .. }) = &mut self.slots[slot] else { continue };
            connection.last_ns = connection.last_ns.min(now);
            let idle = now - connection.last_ns;
            if idle >= IDLE_NS {
                let (before, booked_before) = (connection.in_flight(), self.ledger.counts.exchanges);
                connection.on_idle(&mut self.ledger);
                self.spread.book(tally, booked_before, &self.ledger);
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

    /// Lets time decide on what is held back.
    fn settle_stuck(&mut self, now: u64) {
        let mut stuck = std::mem::take(&mut self.stuck);
        stuck.retain(|slot| {
            let Some(Slot { connection, listed, tally, .. }) = &mut self.slots[*slot as usize] else { return false };
            if !*listed {
                return false;
            }
            let (before, booked_before) = (connection.in_flight(), self.ledger.counts.exchanges);
            connection.proceed(now, true, &mut self.ledger);
            self.spread.book(tally, booked_before, &self.ledger);
            self.waiting.moved(*slot as usize, before, connection.in_flight(), &mut self.ledger);
            *listed = connection.is_stuck();
            *listed
        });
        self.stuck = stuck;
    }

    /// Gives a connection that is not watched its number, as Wireshark would.
    fn number(&mut self, segment: &Segment<'_>) {
        let (low, high) = (segment.source.min(segment.destination), segment.source.max(segment.destination));
        let opening = (segment.syn && segment.ack.is_none()).then_some(segment.seq);
        if self.others.len() >= self.settings.most_connections {
            self.others.clear();
        }
        let known = self.others.get(&Key { server: low, client: high });
        if known.is_none_or(|known| opening.is_some() && *known != opening) {
            self.streams += 1;
            self.others.insert(Key { server: low, client: high }, opening);
        }
    }
}
