//! Files of the kernel that are read each period.
//!
//! Reading a kept file with pread takes a sixth of the time of open, read and close on /proc.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::reason::Reason;

/// The first line of a file, without its line end.
///
/// # Errors
/// Why the file cannot be used.
pub fn line(path: &Path) -> Result<String, Reason> {
    let text = std::fs::read_to_string(path).map_err(|error| Reason::of_file(path, &error))?;
    Ok(text.lines().next().unwrap_or_default().trim().to_owned())
}

/// Reads small files of the kernel into one buffer.
#[derive(Default)]
pub struct Reader {
    buffer: Vec<u8>,
}

impl Reader {
    /// The whole text of a file that is one record of the kernel. Each byte that is not UTF-8 (names may hold such
    /// bytes) is read as `?`.
    ///
    /// # Errors
    /// An error of `pread`.
    pub fn read(&mut self, file: &File) -> io::Result<&str> {
        self.read_until(file, |more, room| more < room)
    }

    /// The whole text of a file that is a list of records, which the kernel gives a page at a time.
    ///
    /// # Errors
    /// An error of `pread`.
    pub fn read_list(&mut self, file: &File) -> io::Result<&str> {
        self.read_until(file, |more, _| more == 0)
    }

    fn read_until(&mut self, file: &File, ends: impl Fn(usize, usize) -> bool) -> io::Result<&str> {
        let mut length = 0;
        loop {
            if self.buffer.len() < length + 1024 {
                self.buffer.resize(length + 4096, 0);
            }
            let room = self.buffer.len() - length;
            let more = file.read_at(&mut self.buffer[length..], length as u64)?;
            length += more;
            // A file of one record comes whole or fills the room.
            if ends(more, room) {
                break;
            }
        }
        let mut start = 0;
        while let Err(error) = std::str::from_utf8(&self.buffer[start..length]) {
            start += error.valid_up_to();
            self.buffer[start] = b'?';
        }
        Ok(std::str::from_utf8(&self.buffer[..length]).unwrap_or_default())
    }
}

/// The fault of a text when its parser names no more exact one.
pub const UNEXPECTED: &str = "not in the expected form";

/// A file that stays open between reads; it is opened again when reading fails (its cgroup was made anew).
pub struct KeptFile {
    path: PathBuf,
    file: Option<File>,
    is_list: bool,
}

impl KeptFile {
    /// Nothing is opened before the first read.
    pub fn new(path: impl Into<PathBuf>) -> KeptFile {
        KeptFile { path: path.into(), file: None, is_list: false }
    }

    /// A kept file in which the kernel lists records (`Reader::read_list`).
    pub fn list(path: impl Into<PathBuf>) -> KeptFile {
        KeptFile { is_list: true, ..KeptFile::new(path) }
    }

    /// Where the file is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Parses the whole file; `None` from `parse` is reported as an unexpected form.
    ///
    /// # Errors
    /// Why the file cannot be used.
    pub fn parse<T>(&mut self, reader: &mut Reader, parse: impl FnOnce(&str) -> Option<T>) -> Result<T, Reason> {
        self.read(reader, |text| parse(text).ok_or_else(|| UNEXPECTED.to_owned()))
    }

    /// Parses the whole file; the error of `parse` names the text's fault.
    ///
    /// # Errors
    /// Why the file cannot be used.
    pub fn read<T>(&mut self, reader: &mut Reader, parse: impl FnOnce(&str) -> Result<T, String>) -> Result<T, Reason> {
        let read = if self.is_list { Reader::read_list } else { Reader::read };
        if let Some(file) = &self.file {
            match read(reader, file) {
                Ok(text) => return parse(text).map_err(|fault| self.fault(&fault)),
                Err(_) => self.file = None,
            }
        }
        let file = File::open(&self.path).map_err(|error| Reason::of_file(&self.path, &error))?;
        let parsed = match read(reader, &file) {
            Ok(text) => parse(text),
            Err(error) => return Err(Reason::of_file(&self.path, &error)),
        };
        self.file = Some(file);
        parsed.map_err(|fault| self.fault(&fault))
    }

    fn fault(&self, fault: &str) -> Reason {
        Reason::from(format!("{}: {fault}", self.path.display()))
    }
}

#[cfg(test)]
mod tests {
    use slackwater_node::fixture::Fixture;

    use super::*;

    #[test]
    fn a_kept_file_shows_what_stands_in_it_now() {
        let fixture = Fixture::new(&[("a", "1\n")]);
        let mut file = KeptFile::new(fixture.path("a"));
        let mut reader = Reader::default();
        let number = |text: &str| text.trim().parse::<u64>().ok();
        assert_eq!(file.parse(&mut reader, number), Ok(1));
        fixture.write("a", "22\n");
        assert_eq!(file.parse(&mut reader, number), Ok(22));
        fixture.write("a", "x");
        assert!(file.parse(&mut reader, number).unwrap_err().ends_with("a: not in the expected form"));
    }

    #[test]
    fn a_byte_that_is_not_utf8_hides_nothing_behind_it() {
        let fixture = Fixture::new(&[("a", "")]);
        std::fs::write(fixture.path("a"), b"\xfcx \xe2\x82 \xc3\xbc 1\n\xff").expect("the file is written");
        let mut file = KeptFile::new(fixture.path("a"));
        let text = file.parse(&mut Reader::default(), |text| Some(text.to_owned()));
        assert_eq!(text.as_deref(), Ok("?x ?? \u{fc} 1\n?"));
    }

    #[test]
    fn a_file_that_is_not_there_is_named() {
        let fixture = Fixture::new(&[]);
        let error = KeptFile::new(fixture.path("b")).parse(&mut Reader::default(), |_| Some(())).unwrap_err();
        assert_eq!(error, Reason::from(format!("{}: is not there", fixture.path("b").display())));
    }

    #[test]
    fn files_longer_than_the_buffer_are_read_whole() {
        let long = "x".repeat(100_000);
        let fixture = Fixture::new(&[("long", &long)]);
        let file = File::open(fixture.path("long")).expect("the file");
        assert_eq!(Reader::default().read(&file).expect("text").len(), 100_000);
        assert_eq!(Reader::default().read_list(&file).expect("text").len(), 100_000);
    }

    #[test]
    fn a_list_of_the_kernel_that_is_longer_than_a_page_comes_whole() {
        let path = Path::new("/proc/self/maps");
        let whole = std::fs::read_to_string(path).expect("text");
        let file = File::open(path).expect("the file");
        let read = Reader::default().read_list(&file).expect("text").lines().count();
        // The stack and the heap of other tests come and go meanwhile.
        assert!(whole.len() > 4096 && read.abs_diff(whole.lines().count()) < 20, "{read} lines");
    }
}
