//! The name of what a request asks for, held in place so that no request costs an allocation.

use std::fmt;

/// The longest name that is kept whole.
pub(crate) const METHOD_LENGTH: usize = 23;

/// A request's method (HTTP) or command (memcached).
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Method {
    length: u8,
    text: [u8; METHOD_LENGTH],
}

impl Method {
    /// Of a protocol that has none.
    pub(crate) const NONE: Self = Self { length: 0, text: [0; METHOD_LENGTH] };

    /// `None` if the name is too long.
    pub(crate) fn new(token: &[u8]) -> Option<Self> {
        let mut text = [0; METHOD_LENGTH];
        text.get_mut(..token.len())?.copy_from_slice(token);
        Some(Self { length: token.len() as u8, text })
    }

    /// The method as it was sent, as in `GET`.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.text[..usize::from(self.length)]).unwrap_or("")
    }
}

impl fmt::Debug for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
