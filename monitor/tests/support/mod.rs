//! What the tests with real processes share.

use std::net::TcpListener;
use std::sync::atomic::{AtomicU16, Ordering};

/// A free port below those that the kernel hands out by itself: nobody else takes it before a server has started on it.
pub fn free_port() -> u16 {
    static TRIED: AtomicU16 = AtomicU16::new(0);
    let first = 12_000 + (std::process::id() % 70) as u16 * 100;
    let mut ports = std::iter::repeat_with(|| first + TRIED.fetch_add(1, Ordering::Relaxed)).take(900);
    ports.find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok()).expect("a free port")
}
