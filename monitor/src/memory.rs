//! Gives back the memory that only the start needed: freed memory that the allocator keeps, and pages of code and
//! constants. Those pages are backed by a file, so they can be dropped at any time, and those that are needed again
//! come back by themselves. A dropped page stays in the kernel's cache of the file, and the kernel may use its memory
//! for something else.

use std::fs;

use rustix::mm::{Advice, madvise};

/// Drops both kinds of memory from this process. Where that is not possible nothing happens.
pub fn give_back() {
    // SAFETY: the allocator hands back only memory that nobody holds.
    #[cfg(target_env = "gnu")]
    let _ = unsafe { libc::malloc_trim(0) };
    give_back_code();
}

/// With a page that is used the kernel maps up to 15 neighbouring pages from its cache, never beyond the mapping's end.
/// Used code lies between unused code, so mappings are cut into pieces of this many bytes.
const PIECE: usize = 16 * 1024;

fn give_back_code() {
    for part in unchanged(&fs::read_to_string("/proc/self/smaps").unwrap_or_default()) {
        let start = |address| std::ptr::with_exposed_provenance_mut(address);
        // SAFETY: the pages hold a file's bytes, unchanged (no page of the mapping was copied) and unchangeable (the
        // mapping is not writable), so the next access reads the same bytes from the file.
        let _ = unsafe { madvise(start(part.start), part.len(), Advice::LinuxDontNeed) };
        // Each piece with advice of its own becomes a mapping of its own.
        for piece in part.clone().step_by(2 * PIECE) {
            let length = PIECE.min(part.end - piece);
            // SAFETY: it sets how the file is read ahead, and changes nothing that a program can see.
            let _ = unsafe { madvise(start(piece), length, Advice::Random) };
        }
    }
}

/// The addresses of mapped files that are not writable and of which no page was ever written to (relocations do that).
fn unchanged(smaps: &str) -> Vec<std::ops::Range<usize>> {
    let mut ranges = Vec::new();
    let mut mapping = None;
    for line in smaps.lines() {
        if let Some(anonymous) = line.strip_prefix("Anonymous:") {
            if let Some(range) = mapping.take().filter(|_| anonymous.trim() == "0 kB") {
                ranges.push(range);
            }
        } else if let Some(range) = read_only_file(line) {
            mapping = range;
        }
    }
    ranges
}

/// From a mapping's first line: its addresses if it maps a file read-only, else `Some(None)`. Other lines give `None`.
fn read_only_file(line: &str) -> Option<Option<std::ops::Range<usize>>> {
    let mut words = line.split_ascii_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let address = |text| usize::from_str_radix(text, 16).ok();
    let range = address(start)?..address(end)?;
    let is_read_only = words.next()?.as_bytes().get(1) == Some(&b'-');
    let is_file = words.nth(3).is_some_and(|path| path.starts_with('/'));
    Some((is_read_only && is_file).then_some(range))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_that_cannot_change_and_never_did_are_given_back() {
        let smaps = "\
1000-3000 r-xp 00000000 08:01 42   /usr/bin/x\nSize: 8 kB\nAnonymous:             0 kB\n\
3000-4000 r--p 00000000 08:01 42   /usr/bin/x\nAnonymous:             4 kB\n\
4000-5000 rw-p 00000000 08:01 42   /usr/bin/x\nAnonymous:             0 kB\n\
5000-6000 r--p 00000000 00:00 0    [vvar]\nAnonymous:             0 kB\n\
6000-7000 r--p 00000000 00:00 0 \nAnonymous:             0 kB\n\
8000-9000 r--p 00000000 08:01 43   /usr/lib/y.so\nAnonymous:             0 kB\n";
        assert_eq!(unchanged(smaps), [0x1000..0x3000, 0x8000..0x9000]);
    }

    #[test]
    fn the_program_goes_on_with_what_comes_back() {
        let mapped = fs::read_to_string("/proc/self/smaps").expect("mappings");
        assert!(unchanged(&mapped).iter().any(|part| part.len() > PIECE));
        give_back();
        let mapped = fs::read_to_string("/proc/self/smaps").expect("mappings");
        assert!(unchanged(&mapped).iter().all(|part| part.len() <= PIECE), "{mapped}");
        assert_eq!(format!("{:.2}", std::f64::consts::PI), "3.14");
    }
}
