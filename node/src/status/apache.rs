//! Apache's status page, `server-status?auto`: its workers, its restarts, and the number of requests that it can work
//! on at once.
//!
//! Form: https://httpd.apache.org/docs/2.4/mod/mod_status.html.

/// The values of the page.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ApacheStatus {
    /// Workers at work.
    pub busy_workers: u64,
    /// Workers that wait.
    pub idle_workers: u64,
    /// Counts the restarts.
    pub generation: Option<u64>,
    stopping: u64,
    processes: u64,
    board: Option<Board>,
}

/// The scoreboard: a place for each request that can be worked on at once, and further places that workers from before
/// the last restart still hold.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Board {
    places: i64,
    /// Places with a worker in them.
    taken: i64,
}

/// Why the running Apache should not be changed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[allow(missing_docs)] // The messages are the documentation.
pub enum StatusError {
    #[error("{stopping} of Apache's {processes} processes still finish requests from before the last restart")]
    Restarting { stopping: u64, processes: u64 },
    #[error(
        "the running Apache has {places} places for requests (server-status), its configuration comes to {workers}: \
        it was changed without a reload, or ServerLimit or ThreadLimit without a full restart"
    )]
    OtherWorkers { places: i64, workers: i64 },
}

impl ApacheStatus {
    /// Parses a page; `None` when it is not the one for programs (`?auto`).
    pub fn parse(page: &str) -> Option<ApacheStatus> {
        let field = |name: &str| page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        let number = |name: &str| field(name)?.trim().parse().ok();
        let count = |marks: &str, counts: fn(&char) -> bool| i64::try_from(marks.chars().filter(counts).count()).ok();
        let board = field("Scoreboard").map(str::trim).and_then(|marks| {
            Some(Board { places: count(marks, |_| true)?, taken: count(marks, |mark| *mark != '.')? })
        });
        Some(ApacheStatus {
            busy_workers: number("BusyWorkers")?,
            idle_workers: number("IdleWorkers")?,
            generation: number("ParentServerMPMGeneration"),
            stopping: number("Stopping").unwrap_or(0),
            processes: number("Processes").unwrap_or(0),
            board,
        })
    }

    /// Whether a graceful restart finds places in the scoreboard beside the processes that still finish requests.
    ///
    /// # Errors
    /// The number of those processes.
    pub fn has_room(&self) -> Result<(), StatusError> {
        if self.stopping > self.processes / 2 && self.stopping > 1 {
            return Err(StatusError::Restarting { stopping: self.stopping, processes: self.processes });
        }
        Ok(())
    }

    /// Whether an Apache that works on at most `workers` requests at once may show this page.
    ///
    /// # Errors
    /// The number of places does not fit that number.
    pub fn fits(&self, workers: i64) -> Result<(), StatusError> {
        match self.board {
            Some(board) if !(board.places - board.taken..=board.places).contains(&workers) => {
                Err(StatusError::OtherWorkers { places: board.places, workers })
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(processes: u64, stopping: u64, scoreboard: &str) -> ApacheStatus {
        let text = format!(
            "ServerMPM: event\nParentServerMPMGeneration: 3\nBusyWorkers: 2\nIdleWorkers: 9\nProcesses: {processes}\nStopping: {stopping}\n\
            Scoreboard: {scoreboard}\n"
        );
        ApacheStatus::parse(&text).expect("a page")
    }

    #[test]
    fn a_page_is_read_also_where_it_shows_less() {
        let status = page(4, 1, "_W..");
        assert_eq!((status.generation, status.stopping, status.processes), (Some(3), 1, 4));
        assert_eq!(status.board, Some(Board { places: 4, taken: 2 }));
        let prefork = ApacheStatus::parse("BusyWorkers: 3\nIdleWorkers: 61\n").expect("a page");
        assert_eq!(
            prefork,
            ApacheStatus {
                busy_workers: 3,
                idle_workers: 61,
                generation: None,
                stopping: 0,
                processes: 0,
                board: None
            }
        );
        assert_eq!(prefork.fits(9), Ok(()));
        assert_eq!(ApacheStatus::parse("<html>BusyWorkers: 3</html>"), None);
    }

    #[test]
    fn there_is_no_room_while_most_processes_still_finish_requests() {
        for (processes, stopping) in [(4, 0), (1, 1), (4, 2), (2, 1)] {
            assert_eq!(page(processes, stopping, "_").has_room(), Ok(()), "{stopping} of {processes}");
        }
        for (processes, stopping) in [(4, 3), (3, 2), (2, 2), (5, u64::MAX)] {
            let expected = Err(StatusError::Restarting { stopping, processes });
            assert_eq!(page(processes, stopping, "_").has_room(), expected);
        }
    }

    #[test]
    fn workers_that_the_scoreboard_has_no_places_for_and_places_that_nobody_takes_are_errors() {
        let status = page(2, 0, "_____WWWWW..........");
        for workers in [10, 15, 20] {
            assert_eq!(status.fits(workers), Ok(()), "places beyond may be those of workers from before");
        }
        for workers in [9, 21, 100] {
            assert_eq!(status.fits(workers), Err(StatusError::OtherWorkers { places: 20, workers }));
        }
    }
}
