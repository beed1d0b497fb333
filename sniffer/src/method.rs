//! The method or command of a request, held in place so that no request costs an allocation.

use std::fmt;

/// Bytes of a name that are kept.
const METHOD_LENGTH: usize = 23;

/// A request's method (HTTP) or command (memcached), up to 23 bytes of it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Method {
    length: u8,
    text: [u8; METHOD_LENGTH],
}

impl Method {
    /// The empty method, for protocols without methods.
    pub(crate) const NONE: Self = Self { length: 0, text: [0; METHOD_LENGTH] };

    pub(crate) fn new(token: &[u8]) -> Self {
        let mut text = [0; METHOD_LENGTH];
        let length = token.len().min(METHOD_LENGTH);
        text[..length].copy_from_slice(&token[..length]);
        Self { length: length as u8, text }
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
