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
pub struct CaptureError(String);

impl fmt::Display for CaptureError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for CaptureError {}

/// libpcap gives seconds and, with nanosecond precision, nanoseconds in the place of microseconds.
fn time_ns(header: &pcap::PacketHeader) -> u64 {
    let seconds = u64::try_from(header.ts.tv_sec).unwrap_or(0);
    let nanoseconds = u64::try_from(header.ts.tv_usec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(nanoseconds)
}
