//! Response times of web servers from the packets on the wire.
//!
//! # Layout, in the order that a packet takes
//! - `capture`: from an interface (`Live`) or a file (`read_file`), through libpcap;
//! - `segment`: link layer, IP and TCP heads of one packet;
//! - `tracker`: the table of connections, bounded in entries and bytes;
//! - `stream`: order, retransmissions and holes of one connection;
//! - `protocol`: the table of protocols, and what each gets to see;
//! - `http1`: where messages start and end, and which response answers which request;
//! - `delay`: counts and histograms; `figures`: what comes out of them.
//!
//! Nothing here reads a clock or trusts a byte: packets bring their time, and damaged ones are counted.

mod capture;
mod delay;
mod figures;
mod http1;
mod protocol;
mod segment;
mod stream;
mod tracker;

pub use capture::{CaptureError, Live, LiveSettings, read_file};
pub use figures::{Counts, Exchange, Period, StatusClasses, Summary, Times};
pub use http1::Method;
pub use segment::Packet;
pub use tracker::{Tracker, TrackerSettings};
