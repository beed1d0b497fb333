//! Helpers of the tests with real processes.

#![allow(dead_code)]

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};

/// A process that ends with the test.
pub struct Running(pub Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Where nats-server is; where it is missing, it prints that the test is skipped.
pub fn nats_program() -> Option<PathBuf> {
    let program = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../.build/bin/nats-server");
    if !program.exists() {
        println!("skipped: {} is not there (make setup)", program.display());
        return None;
    }
    Some(program)
}

/// Starts a nats-server on a port of loopback.
pub fn start_nats(program: &std::path::Path, port: u16) -> Running {
    let mut command = Command::new(program);
    command.args(["--addr", "127.0.0.1", "--port", &port.to_string()]);
    Running(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("nats-server"))
}

/// A free port below those that the kernel hands out by itself: nobody else takes it before a server has started on it.
pub fn free_port() -> u16 {
    static TRIED: AtomicU16 = AtomicU16::new(0);
    let first = 12_000 + (std::process::id() % 70) as u16 * 100;
    let mut ports = std::iter::repeat_with(|| first + TRIED.fetch_add(1, Ordering::Relaxed)).take(900);
    ports.find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok()).expect("a free port")
}
