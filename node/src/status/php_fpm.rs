//! php-fpm's status page as JSON: https://www.php.net/manual/en/fpm.status.php.

/// The values of the page.
#[derive(Debug, Clone, Copy, PartialEq, serde::Deserialize)]
pub struct PhpFpmStatus {
    /// Processes at work.
    #[serde(rename = "active processes")]
    pub active: u64,
    /// Processes that wait.
    #[serde(rename = "idle processes")]
    pub idle: u64,
    /// All processes of the pool.
    #[serde(rename = "total processes")]
    pub total: u64,
    /// Requests that wait for a process; it means something only where the queue has a length.
    #[serde(rename = "listen queue")]
    queue: u64,
    /// The most that the queue holds; 0 on Unix sockets, where php-fpm cannot see it.
    #[serde(rename = "listen queue len")]
    queue_length: u64,
    /// How often the pool ran out of processes since it started.
    #[serde(rename = "max children reached")]
    pub max_children_reached: u64,
}

/// php-fpm sees the queue of a TCP port only.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[error("php-fpm knows the queue of a TCP port only, not of a Unix socket")]
pub struct NoQueue;

impl PhpFpmStatus {
    /// Parses a page; `None` when it is not php-fpm's status as JSON.
    pub fn parse(page: &str) -> Option<PhpFpmStatus> {
        serde_json::from_str(page).ok()
    }

    /// Requests that wait for a process.
    ///
    /// # Errors
    /// The pool listens on a Unix socket.
    pub fn queue(&self) -> Result<u64, NoQueue> {
        if self.queue_length == 0 { Err(NoQueue) } else { Ok(self.queue) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_read_and_a_unix_socket_has_no_queue() {
        let page = r#"{"pool":"www","process manager":"static","start time":1,"listen queue":2,"max listen queue":4,
            "listen queue len":511,"idle processes":5,"active processes":6,"total processes":11,"max children reached":7,"slow requests":0}"#;
        let expected =
            PhpFpmStatus { active: 6, idle: 5, total: 11, queue: 2, queue_length: 511, max_children_reached: 7 };
        assert_eq!((PhpFpmStatus::parse(page), expected.queue()), (Some(expected), Ok(2)));
        assert_eq!(PhpFpmStatus { queue_length: 0, ..expected }.queue(), Err(NoQueue));
        assert_eq!(PhpFpmStatus::parse("File not found.\n"), None);
    }
}
