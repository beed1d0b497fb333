//! The lines in which applications report their hot functions: `begin NAME` and `end NAME`, followed by the thread's id
//! where that is not the process's. A thread is inside from its first `begin` until each of its functions has its
//! `end`.

use std::collections::{BTreeMap, BTreeSet};

use super::hurry_up::HotEvent;

/// Longest valid line, in bytes.
const LONGEST_LINE: usize = 128;
const LONGEST_NAME: usize = 64;
/// Most functions that a thread may be in at once.
const MOST_NAMES: usize = 8;
/// Most threads that may be inside at once; further ones are ignored.
const MOST_THREADS: usize = 1024;
/// A thread that is inside for longer is taken out: its `end` was lost.
const LONGEST_INSIDE_S: f64 = 60.0;

/// One line of an application.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EventLine<'a> {
    /// Whether the line says `begin`; otherwise it says `end`.
    pub begins: bool,
    /// The name of the function.
    pub name: &'a str,
    /// The thread's id; `None`: that of the process.
    pub thread: Option<u32>,
}

/// A line without its newline; `None`: malformed.
pub fn parse(line: &[u8]) -> Option<EventLine<'_>> {
    let line = std::str::from_utf8(line).ok()?;
    let mut words = line.split(' ');
    let begins = match words.next()? {
        "begin" => true,
        "end" => false,
        _ => return None,
    };
    let name = words.next()?;
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.:\\".contains(&byte);
    if name.is_empty() || name.len() > LONGEST_NAME || !name.bytes().all(is_plain) {
        return None;
    }
    let thread = match words.next() {
        None => None,
        Some(text) => Some(text.parse().ok().filter(|thread| *thread > 0 && !text.starts_with('+'))?),
    };
    words.next().is_none().then_some(EventLine { begins, name, thread })
}

/// Numbers of lines, accepted and ignored.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
pub struct LineCounts {
    /// Accepted lines.
    pub accepted: u64,
    /// Ignored lines: malformed, about a thread of another process, an `end` without its `begin`, or too many.
    pub ignored: u64,
}

/// The bytes of one connection, cut into lines.
#[derive(Debug, Default)]
pub struct Lines {
    rest: Vec<u8>,
    /// The bytes up to the next newline belong to a line that is too long.
    is_skipping: bool,
}

impl Lines {
    /// Takes the next bytes and gives each complete line to `take`; returns the number of lines that turned out too
    /// long.
    pub fn feed(&mut self, bytes: &[u8], mut take: impl FnMut(&[u8])) -> u64 {
        let mut too_long = 0;
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            let (text, ends) = part.strip_suffix(b"\n").map_or((part, false), |text| (text, true));
            if !self.is_skipping {
                self.rest.extend_from_slice(&text[..text.len().min(LONGEST_LINE + 1 - self.rest.len())]);
                if self.rest.len() > LONGEST_LINE {
                    (self.is_skipping, too_long) = (true, too_long + 1);
                    self.rest.clear();
                }
            }
            if ends {
                if !self.is_skipping {
                    take(&self.rest);
                }
                self.rest.clear();
                self.is_skipping = false;
            }
        }
        too_long
    }
}

/// A line is ignored: an `end` without its `begin`, or too many functions or threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ignored;

/// The threads that are inside.
#[derive(Debug, Default)]
pub struct Inside {
    threads: BTreeMap<u32, (f64, BTreeSet<String>)>,
}

impl Inside {
    /// Takes a line of a thread. `Ok(None)`: the thread stays inside.
    ///
    /// # Errors
    /// When the line is ignored.
    pub fn take(&mut self, thread: u32, line: &EventLine<'_>, time_s: f64) -> Result<Option<HotEvent>, Ignored> {
        if line.begins {
            if !self.threads.contains_key(&thread) && self.threads.len() >= MOST_THREADS {
                return Err(Ignored);
            }
            let (_, names) = self.threads.entry(thread).or_insert_with(|| (time_s, BTreeSet::new()));
            if names.len() >= MOST_NAMES {
                return Err(Ignored);
            }
            names.insert(line.name.to_owned());
            return Ok((names.len() == 1).then_some(HotEvent { thread, time_s, entered: true }));
        }
        let (_, names) = self.threads.get_mut(&thread).ok_or(Ignored)?;
        if !names.remove(line.name) {
            return Err(Ignored);
        }
        Ok(if names.is_empty() { self.leave(thread, time_s) } else { None })
    }

    /// Takes a thread out of all its functions.
    pub fn leave(&mut self, thread: u32, time_s: f64) -> Option<HotEvent> {
        self.threads.remove(&thread).map(|_| HotEvent { thread, time_s, entered: false })
    }

    /// The threads that are inside for longer than any request lasts.
    pub fn overdue(&self, now_s: f64) -> Vec<u32> {
        let late = self.threads.iter().filter(|(_, (since_s, _))| now_s - since_s > LONGEST_INSIDE_S);
        late.map(|(thread, _)| *thread).collect()
    }
}
