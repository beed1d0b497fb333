//! The Unix socket of the hot function's events. An application connects and writes lines; nothing is answered. The
//! kernel says whose connection it is, and a process may only speak of its own threads. A connection that ends takes its
//! threads out of the hot function, however the process ended.

use std::collections::BTreeSet;
use std::fs;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::net::sockopt::socket_peercred;
use slackwater_node::files::FileError;

use super::events::{Counts, Inside, Lines, parse};
use super::hurry_up::Event;
use crate::error::Result;

/// Connections at once; a further one is closed.
const MOST_CONNECTIONS: usize = 512;
/// Bytes of one connection that are read in one period; more waits in the kernel.
const MOST_BYTES: usize = 4096;
/// Connections that are accepted in one period.
const MOST_ACCEPTED: usize = 256;

struct Connection {
    stream: UnixStream,
    process: u32,
    lines: Lines,
    /// Its threads that said something, or were refused.
    threads: BTreeSet<u32>,
}

/// The socket while a policy runs; dropped, it is gone.
pub struct EventSocket {
    path: PathBuf,
    proc: PathBuf,
    listener: UnixListener,
    connections: Vec<Connection>,
    inside: Inside,
    /// What came so far.
    pub counts: Counts,
}

impl EventSocket {
    /// Listens at `path`, for the owner and the group of its folder: a folder with the set-group-id bit gives the socket
    /// its group. One that is left of a run that died gives way.
    ///
    /// # Errors
    /// When the folder is not there, or the system refuses.
    pub fn open(path: &Path, proc: &Path) -> Result<EventSocket> {
        let failed = |error| FileError::new(path, "cannot be listened on", &error);
        if let Err(error) = fs::remove_file(path)
            && error.kind() != ErrorKind::NotFound
        {
            return Err(failed(error).into());
        }
        let listener = UnixListener::bind(path).map_err(failed)?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o660)).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        Ok(EventSocket {
            path: path.to_owned(),
            proc: proc.to_owned(),
            listener,
            connections: Vec::new(),
            inside: Inside::default(),
            counts: Counts::default(),
        })
    }

    /// What came since the last time, as of `now_s`.
    pub fn read(&mut self, now_s: f64) -> Vec<Event> {
        self.accept();
        let mut events = Vec::new();
        let mut connections = std::mem::take(&mut self.connections);
        connections.retain_mut(|connection| self.read_one(connection, now_s, &mut events));
        self.connections = connections;
        for thread in self.inside.overdue(now_s) {
            events.extend(self.inside.leave(thread, now_s));
        }
        events
    }

    fn accept(&mut self) {
        for _ in 0..MOST_ACCEPTED {
            let Ok((stream, _)) = self.listener.accept() else { return };
            let peer =
                socket_peercred(&stream).ok().and_then(|peer| u32::try_from(peer.pid.as_raw_nonzero().get()).ok());
            match peer {
                Some(process) if self.connections.len() < MOST_CONNECTIONS && stream.set_nonblocking(true).is_ok() => {
                    let (lines, threads) = (Lines::default(), BTreeSet::new());
                    self.connections.push(Connection { stream, process, lines, threads });
                }
                _ => self.counts.ignored += 1,
            }
        }
    }

    /// False when the connection has ended.
    fn read_one(&mut self, connection: &mut Connection, now_s: f64, events: &mut Vec<Event>) -> bool {
        let mut bytes = [0_u8; MOST_BYTES];
        let length = match connection.stream.read(&mut bytes) {
            Ok(length @ 1..) => length,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
            Ok(0) | Err(_) => {
                let gone = connection.threads.iter().filter_map(|thread| self.inside.leave(*thread, now_s));
                events.extend(gone);
                return false;
            }
        };
        let Connection { process, lines, threads, .. } = connection;
        let (proc, inside, counts) = (&self.proc, &mut self.inside, &mut self.counts);
        let too_long = lines.feed(&bytes[..length], |line| {
            let taken = parse(line).and_then(|line| {
                let thread = line.thread.unwrap_or(*process);
                let is_known = threads.contains(&thread) || is_of(proc, *process, thread);
                let event = is_known.then(|| inside.take(thread, &line, now_s))?.ok()?;
                threads.insert(thread);
                Some(event)
            });
            match taken {
                Some(event) => {
                    counts.taken += 1;
                    events.extend(event);
                }
                None => counts.ignored += 1,
            }
        });
        self.counts.ignored += too_long;
        true
    }
}

impl Drop for EventSocket {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

fn is_of(proc: &Path, process: u32, thread: u32) -> bool {
    process == thread || proc.join(format!("{process}/task/{thread}")).is_dir()
}
