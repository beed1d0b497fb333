//! What applications say of their hot function, in lines: `begin NAME` and `end NAME`, with the thread's id behind where
//! it is not the process's. A thread is inside from the first `begin` to the `end` of all that it began.

use std::collections::{BTreeMap, BTreeSet};

use super::hurry_up::Event;

/// A longer line is no line of ours.
const LONGEST_LINE: usize = 128;
const LONGEST_NAME: usize = 64;
/// Functions that a thread is in at once.
const MOST_NAMES: usize = 8;
/// Threads that are inside at once; further ones are not seen.
const MOST_THREADS: usize = 1024;
/// A thread that is inside for longer has left without a word.
const LONGEST_INSIDE_S: f64 = 60.0;

/// One line of an application.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Line<'a> {
    /// Whether the line says `begin`; otherwise it says `end`.
    pub begins: bool,
    /// The name of the function.
    pub name: &'a str,
    /// The thread's id; `None`: that of the process.
    pub thread: Option<u32>,
}

/// A line without its newline; `None`: malformed.
pub fn parse(line: &[u8]) -> Option<Line<'_>> {
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
    words.next().is_none().then_some(Line { begins, name, thread })
}

/// What came, and how much of it counted for nothing.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
pub struct Counts {
    /// Lines that were taken.
    pub taken: u64,
    /// Lines that were ignored: malformed, of a thread of somebody else, an `end` without its `begin`, too many.
    pub ignored: u64,
}

/// The bytes of one connection, cut into lines.
#[derive(Debug, Default)]
pub struct Lines {
    rest: Vec<u8>,
    /// What comes until the next newline belongs to a line that is too long.
    skips: bool,
}

impl Lines {
    /// Takes bytes as they come; gives each whole line to `take`, and says of how many it is known that they are too long.
    pub fn feed(&mut self, bytes: &[u8], mut take: impl FnMut(&[u8])) -> u64 {
        let mut too_long = 0;
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            let (text, ends) = part.strip_suffix(b"\n").map_or((part, false), |text| (text, true));
            if !self.skips {
                self.rest.extend_from_slice(&text[..text.len().min(LONGEST_LINE + 1 - self.rest.len())]);
                if self.rest.len() > LONGEST_LINE {
                    (self.skips, too_long) = (true, too_long + 1);
                    self.rest.clear();
                }
            }
            if ends {
                if !self.skips {
                    take(&self.rest);
                }
                self.rest.clear();
                self.skips = false;
            }
        }
        too_long
    }
}

/// A line that counts for nothing: an `end` without its `begin`, or too many at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ignored;

/// The threads that are inside.
#[derive(Debug, Default)]
pub struct Inside {
    threads: BTreeMap<u32, (f64, BTreeSet<String>)>,
}

impl Inside {
    /// Takes a line of a thread. `Ok(None)`: it changes nothing.
    ///
    /// # Errors
    /// A line that counts for nothing.
    pub fn take(&mut self, thread: u32, line: &Line<'_>, time_s: f64) -> Result<Option<Event>, Ignored> {
        if line.begins {
            if !self.threads.contains_key(&thread) && self.threads.len() >= MOST_THREADS {
                return Err(Ignored);
            }
            let (_, names) = self.threads.entry(thread).or_insert_with(|| (time_s, BTreeSet::new()));
            if names.len() >= MOST_NAMES {
                return Err(Ignored);
            }
            names.insert(line.name.to_owned());
            return Ok((names.len() == 1).then_some(Event { thread, time_s, entered: true }));
        }
        let (_, names) = self.threads.get_mut(&thread).ok_or(Ignored)?;
        if !names.remove(line.name) {
            return Err(Ignored);
        }
        Ok(if names.is_empty() { self.leave(thread, time_s) } else { None })
    }

    /// A thread is gone, with all that it was in.
    pub fn leave(&mut self, thread: u32, time_s: f64) -> Option<Event> {
        self.threads.remove(&thread).map(|_| Event { thread, time_s, entered: false })
    }

    /// Those that are inside for longer than any request lasts.
    pub fn overdue(&self, now_s: f64) -> Vec<u32> {
        let late = self.threads.iter().filter(|(_, (since_s, _))| now_s - since_s > LONGEST_INSIDE_S);
        late.map(|(thread, _)| *thread).collect()
    }
}
