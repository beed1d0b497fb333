//! Where packets come from: an interface or a file.

mod classic;
mod file;
mod gzip;
mod live;

use std::fmt;

pub use file::read_file;
pub use live::{Live, LiveSettings};

/// A capture that can't be opened or read; the text says what is missing.
#[derive(Debug)]
pub struct CaptureError {
    text: String,
    lacks_capability: bool,
}

impl CaptureError {
    /// True when what is missing is the right to capture: CAP_NET_RAW, or root.
    pub fn lacks_capability(&self) -> bool {
        self.lacks_capability
    }
}

impl From<String> for CaptureError {
    fn from(text: String) -> CaptureError {
        CaptureError { text, lacks_capability: false }
    }
}

impl fmt::Display for CaptureError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for CaptureError {}

/// libpcap gives seconds and, with nanosecond precision, nanoseconds in the place of microseconds.
fn time_ns(header: &pcap::PacketHeader) -> u64 {
    let seconds = u64::try_from(header.ts.tv_sec).unwrap_or(0);
    let nanoseconds = u64::try_from(header.ts.tv_usec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(nanoseconds)
}
