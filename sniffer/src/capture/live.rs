//! Captures from an interface.
//!
//! The ring is TPACKET_V3 (immediate mode would choose the slower V2), whose read timeout does not fire while nothing
//! comes in: so reading never blocks, and the caller polls the descriptor and keeps its own clock.

use std::net::SocketAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::time::{SystemTime, UNIX_EPOCH};

use pcap::{Active, Capture, Precision};

use super::filter::{attach, filters, of_ports, of_servers};
use super::{CaptureError, time_ns};
use crate::link::{COOKED, LINK_TYPES, Unread};
use crate::segment::Packet;
use crate::share::{ConnectionHash, Share};
use crate::tracker::Tracker;

/// The interface and the packets that are captured.
#[derive(Debug, Clone)]
pub struct LiveSettings {
    /// Name of the interface; `any` stands for all.
    pub interface: String,
    /// TCP ports of the servers.
    pub ports: Vec<u16>,
    /// Only the connections to these servers, on whatever `ports`, and of their segments only those with bytes and those
    /// that open or end a connection; empty: all on the ports.
    pub servers: Vec<SocketAddr>,
    /// Bytes kept of each packet. The default keeps all bytes, also of the segments of up to 64 KiB that network cards
    /// and the kernel join; a packet takes no more of the ring than it needs. A smaller value costs exactness: when the
    /// sizes of a chunked body or the heads of a pipeline are cut off, the connection is followed again from the next
    /// response on.
    pub snap_length: u32,
    /// Size of the kernel's ring in MiB, which counts as this process's memory. The ring holds the packets that arrive
    /// while the caller does something else: 8 MiB are enough for 60 ms of a gigabit link, and never last longer than
    /// 0.6 s, so read at least twice a second. For 0.5 million packets a second take 64.
    pub buffer_mib: u32,
}

impl Default for LiveSettings {
    fn default() -> Self {
        Self { interface: String::new(), ports: vec![80], servers: Vec::new(), snap_length: 262_144, buffer_mib: 8 }
    }
}

/// How long the kernel may keep a block of packets that is not full. It is not shorter because a ring has only 4 blocks
/// a MiB, and each is closed after this time, however few packets it holds.
const BLOCK_MS: i32 = 20;

/// Most packets taken in one call, so that a flood can't keep the caller from its other work.
const MOST_PACKETS: usize = 1 << 18;

/// An open capture. Its descriptor becomes readable when there are packets.
pub struct Live {
    capture: Capture<Active>,
    /// The wanted segments, in the language of libpcap's filters.
    wanted: String,
    link_type: i32,
    frame: u64,
    drops: Drops,
}

/// The kernel's counter of drops, which has 32 bits, as a counter that does not wrap.
#[derive(Default)]
struct Drops {
    last: u32,
    total: u64,
}

impl Drops {
    fn now(&mut self, counter: u32) -> u64 {
        self.total += u64::from(counter.wrapping_sub(self.last));
        self.last = counter;
        self.total
    }
}

impl Live {
    /// Opens the capture. The error names what is missing: the interface, or the capability CAP_NET_RAW.
    pub fn open(settings: &LiveSettings) -> Result<Live, CaptureError> {
        let name = settings.interface.as_str();
        let error = |error: pcap::Error| explain(name, &error.to_string());
        if settings.ports.is_empty() && settings.servers.is_empty() {
            return Err(CaptureError::Broken(format!("{name}: no port to watch")));
        }
        let megabytes = settings.buffer_mib.clamp(1, 1024) as i32;
        let snap_length = settings.snap_length.clamp(128, 262_144) as i32;
        let mut capture = Capture::from_device(name)
            .map_err(error)?
            .precision(Precision::Nano)
            .snaplen(snap_length)
            .buffer_size(megabytes << 20)
            .timeout(BLOCK_MS)
            .open()
            .map_err(error)?
            .setnonblock()
            .map_err(error)?;
        let link_type = capture.get_datalink().0;
        if !LINK_TYPES.contains(&link_type) {
            let reason = format!("{} is not read", Unread::LinkType(link_type));
            return Err(CaptureError::NotOpened { interface: name.to_owned(), reason });
        }
        let is_of_ports = settings.servers.is_empty();
        let wanted = if is_of_ports { of_ports(&settings.ports) } else { of_servers(&settings.servers) };
        let [with_vlans, plain] = filters(&wanted);
        capture.filter(&with_vlans, true).or_else(|_| capture.filter(&plain, true)).map_err(error)?;
        Ok(Live { capture, wanted, link_type, frame: 0, drops: Drops::default() })
    }

    /// From now on the kernel hands over, and the tracker takes, only this share of the connections.
    ///
    /// The tracker changes to the new share before the filter does when the share falls, and after the filter when it
    /// rises. So no packet of a connection that stays in the sample is missed. Only on `any` some may be missed: there
    /// libpcap has to rewrite the filter, and drops the packets that arrive while it sets the filter.
    pub fn sample(&mut self, tracker: &mut Tracker, share: Share) -> Result<(), CaptureError> {
        let sampling = tracker.sampling();
        let is_smaller = sampling.planned().exceeds(share);
        let mut from_ns = now_ns();
        self.set_filter(sampling.hash(), share)?;
        if !is_smaller {
            from_ns = now_ns();
        }
        tracker.sample(share, from_ns);
        Ok(())
    }

    fn set_filter(&mut self, hash: &ConnectionHash, share: Share) -> Result<(), CaptureError> {
        let broken = |error: pcap::Error| CaptureError::Broken(format!("filter for {share} of connections: {error}"));
        let sample = hash.filter(share).map_or(String::new(), |sample| format!(" and {sample}"));
        let [with_vlans, plain] = filters(&format!("{}{sample}", self.wanted));
        if COOKED.contains(&self.link_type) {
            return self
                .capture
                .filter(&with_vlans, true)
                .or_else(|_| self.capture.filter(&plain, true))
                .map_err(broken);
        }
        let compiled = self.capture.compile(&with_vlans, true).or_else(|_| self.capture.compile(&plain, true));
        attach(self.capture.as_raw_fd(), &compiled.map_err(broken)?)
    }

    /// Gives the tracker all packets that are in the ring now, and returns their number; never waits.
    pub fn drain(&mut self, tracker: &mut Tracker) -> Result<usize, CaptureError> {
        self.drain_each(|packet| tracker.packet(packet))
    }

    /// As `drain`, with each packet handed to `take`.
    pub fn drain_each(&mut self, mut take: impl FnMut(&Packet<'_>)) -> Result<usize, CaptureError> {
        let (link_type, frame) = (self.link_type, &mut self.frame);
        let mut taken = 0;
        while taken < MOST_PACKETS {
            let batch = self.capture.dispatch(Some(MOST_PACKETS - taken), |packet| {
                *frame += 1;
                take(&Packet {
                    time_ns: time_ns(packet.header),
                    link_type,
                    frame: *frame,
                    original_length: packet.header.len,
                    bytes: packet.data,
                });
            });
            match batch {
                Ok(0) => break,
                Ok(count) => taken += count,
                Err(error) => return Err(CaptureError::Broken(format!("capture ended: {error}"))),
            }
        }
        Ok(taken)
    }

    /// Packets that the kernel dropped since the capture was opened: the ring was full.
    pub fn drops(&mut self) -> Result<u64, CaptureError> {
        let stats = self.capture.stats().map_err(|error| CaptureError::Broken(format!("packet counters: {error}")))?;
        Ok(self.drops.now(stats.dropped))
    }
}

impl AsRawFd for Live {
    fn as_raw_fd(&self) -> RawFd {
        self.capture.as_raw_fd()
    }
}

fn now_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_nanos() as u64)
}

fn explain(interface: &str, reason: &str) -> CaptureError {
    let (name, detail) = (interface.to_owned(), reason.to_owned());
    if reason.contains("No such device") {
        CaptureError::NoInterface(name)
    } else if reason.contains("ermission") || reason.contains("not permitted") {
        CaptureError::NotPermitted { interface: name, reason: detail }
    } else {
        CaptureError::NotOpened { interface: name, reason: detail }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_go_on_counting_when_the_counter_wraps() {
        let mut drops = Drops::default();
        assert_eq!(drops.now(u32::MAX), u64::from(u32::MAX));
        assert_eq!(drops.now(4), u64::from(u32::MAX) + 5);
    }

    #[test]
    fn a_missing_interface_is_named() {
        let settings = LiveSettings { interface: "slackwater-none".into(), ..LiveSettings::default() };
        let error = Live::open(&settings).err().expect("there is no such interface").to_string();
        assert!(error.contains("slackwater-none"), "{error}");
    }
}
