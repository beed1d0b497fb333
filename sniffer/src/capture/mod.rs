//! Where packets come from: an interface or a file.

mod classic;
mod file;
mod filter;
mod input;
mod live;
mod pcapng;

use std::path::PathBuf;

pub use file::{read_file, read_stream};
pub use live::{Live, LiveSettings};

/// A capture that can't be opened or read.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // The messages are the documentation.
pub enum CaptureError {
    #[error("no such interface: {0:?} (`ip link` lists them)")]
    NoInterface(String),
    #[error("no right to capture on {interface}: needs the capability CAP_NET_RAW, or root ({reason})")]
    NotPermitted { interface: String, reason: String },
    #[error("capture on {interface:?}: {reason}")]
    NotOpened { interface: String, reason: String },
    #[error("{}: {reason}", path.display())]
    File { path: PathBuf, reason: String },
    #[error("{0}")]
    Broken(String),
}

impl CaptureError {
    /// True when what is missing is the right to capture: CAP_NET_RAW, or root.
    pub fn lacks_capability(&self) -> bool {
        matches!(self, CaptureError::NotPermitted { .. })
    }
}

/// libpcap gives seconds and, with nanosecond precision, nanoseconds in the place of microseconds.
fn time_ns(header: &pcap::PacketHeader) -> u64 {
    let seconds = u64::try_from(header.ts.tv_sec).unwrap_or(0);
    let nanoseconds = u64::try_from(header.ts.tv_usec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(nanoseconds)
}
