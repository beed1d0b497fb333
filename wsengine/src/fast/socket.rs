//! The Unix socket on which applications report their hot functions. An application connects and writes lines; there
//! are no answers. The kernel tells the process at the other end, which may report its own threads only. When a
//! connection ends, for whatever reason, its threads are taken out of the hot function.

use std::collections::BTreeSet;
use std::fs;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::net::sockopt::socket_peercred;
use slackwater_node::files::FileError;

use super::events::{Inside, LineCounts, Lines, parse};
use super::hurry_up::HotEvent;
use crate::error::Result;

/// Most connections at a time; further ones are closed.
const MOST_CONNECTIONS: usize = 512;
/// Most bytes of one connection that are read in one period; more waits in the kernel.
const MOST_BYTES: usize = 4096;
/// Most connections that are accepted in one period.
const MOST_ACCEPTED: usize = 256;

struct Application {
    stream: UnixStream,
    process: u32,
    lines: Lines,
    /// The threads that it reported.
    threads: BTreeSet<u32>,
}

/// The socket while a policy runs; it is removed when this value is dropped.
pub struct EventSocket {
    path: PathBuf,
    proc: PathBuf,
    listener: UnixListener,
    connections: Vec<Application>,
    inside: Inside,
    /// The lines so far.
    pub counts: LineCounts,
}

impl EventSocket {
    /// Listens at `path`, for the owner and the group of its folder: a folder with the set-group-id bit gives the socket
    /// its group. A socket that an earlier run left there is replaced.
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
            counts: LineCounts::default(),
        })
    }

    /// The events since the last call, with the time `now_s`.
    pub fn read(&mut self, now_s: f64) -> Vec<HotEvent> {
        self.accept();
        let mut events = Vec::new();
        let mut connections = std::mem::take(&mut self.connections);
        connections.retain_mut(|connection| self.read_connection(connection, now_s, &mut events));
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
                    self.connections.push(Application { stream, process, lines, threads });
                }
                _ => self.counts.ignored += 1,
            }
        }
    }

    /// False when the connection has ended.
    fn read_connection(&mut self, connection: &mut Application, now_s: f64, events: &mut Vec<HotEvent>) -> bool {
        let mut bytes = [0_u8; MOST_BYTES];
        let length = match connection.stream.read(&mut bytes) {
            Ok(length @ 1..) => length,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
            Ok(0) | Err(_) => {
                events.extend(connection.threads.iter().filter_map(|thread| self.inside.leave(*thread, now_s)));
                return false;
            }
        };
        let Application { process, lines, threads, .. } = connection;
        let (proc, inside, counts) = (&self.proc, &mut self.inside, &mut self.counts);
        let too_long = lines.feed(&bytes[..length], |line| {
            let accepted = parse(line).and_then(|line| {
                let thread = line.thread.unwrap_or(*process);
                let is_known = threads.contains(&thread) || belongs_to(proc, *process, thread);
                let event = is_known.then(|| inside.take(thread, &line, now_s))?.ok()?;
                threads.insert(thread);
                Some(event)
            });
            match accepted {
                Some(event) => {
                    counts.accepted += 1;
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

fn belongs_to(proc: &Path, process: u32, thread: u32) -> bool {
    process == thread || proc.join(format!("{process}/task/{thread}")).is_dir()
}
