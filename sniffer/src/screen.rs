//! A terminal on which each picture replaces the one before.
//!
//! The picture is on the terminal's second screen, as with `top`, so the earlier content comes back at the end, and a
//! change of the window's size leaves nothing behind. Each line is written over the old one and its rest erased, so
//! nothing flickers.

use std::io::{self, IsTerminal, Write};

use rustix::termios::tcgetwinsize;

const ENTER: &str = "\x1b[?1049h";
const LEAVE: &str = "\x1b[?1049l";
const HOME: &str = "\x1b[H";
const ERASE_LINE: &str = "\x1b[K";
const ERASE_BELOW: &str = "\x1b[J";

/// Columns and rows of a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    pub columns: usize,
    pub rows: usize,
}

/// The size of a terminal that does not report it.
const USUAL: Size = Size { columns: 80, rows: 24 };

/// The terminal's second screen, once something was drawn.
#[derive(Default)]
pub struct Screen {
    entered: bool,
}

impl Screen {
    /// The screen behind standard output; `None` where that is no terminal, or one that can't move its cursor.
    pub fn of_stdout() -> Option<Self> {
        let moves = std::env::var_os("TERM").is_some_and(|name| name != "dumb" && !name.is_empty());
        (moves && io::stdout().is_terminal()).then(Self::default)
    }

    /// The window's size now.
    pub fn size() -> Size {
        let reported = tcgetwinsize(io::stdout()).ok().filter(|size| size.ws_col > 0 && size.ws_row > 0);
        reported.map_or(USUAL, |size| Size { columns: size.ws_col.into(), rows: size.ws_row.into() })
    }

    /// Draws lines over the picture before.
    pub fn draw(&mut self, out: &mut impl Write, lines: &[String], size: Size) -> io::Result<()> {
        out.write_all(picture(lines, size, self.entered).as_bytes())?;
        self.entered = true;
        out.flush()
    }

    /// Shows the terminal's earlier content again.
    pub fn leave(&mut self, out: &mut impl Write) -> io::Result<()> {
        if std::mem::take(&mut self.entered) { out.write_all(LEAVE.as_bytes()) } else { Ok(()) }
    }
}

fn picture(lines: &[String], size: Size, entered: bool) -> String {
    let mut text = String::from(if entered { "" } else { ENTER });
    text += HOME;
    let shown = if lines.len() <= size.rows { lines.len() } else { size.rows.saturating_sub(1) };
    for (row, line) in lines[..shown].iter().enumerate() {
        text += if row > 0 { "\r\n" } else { "" };
        text.extend(line.chars().take(size.columns));
        text += ERASE_LINE;
    }
    if shown < lines.len() {
        let more = format!("... {} more lines", lines.len() - shown);
        text += if shown > 0 { "\r\n" } else { "" };
        text.extend(more.chars().take(size.columns));
        text += ERASE_LINE;
    }
    text + ERASE_BELOW
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_never_has_more_than_the_window_takes() {
        let lines: Vec<String> = (0..5).map(|number| format!("line {number} of the picture")).collect();
        let text = picture(&lines, Size { columns: 6, rows: 3 }, true);
        assert_eq!(text, "\x1b[Hline 0\x1b[K\r\nline 1\x1b[K\r\n... 3 \x1b[K\x1b[J");
        let text = picture(&lines[..1], Size { columns: 80, rows: 1 }, false);
        assert_eq!(text, "\x1b[?1049h\x1b[Hline 0 of the picture\x1b[K\x1b[J");
    }
}
