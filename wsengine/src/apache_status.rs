//! What server-status?auto shows of a running Apache: restarts, and how many requests it works on at once.

/// A page of it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Status {
    /// Counts the restarts.
    pub generation: u64,
    stopping: u64,
    processes: u64,
    board: Option<Board>,
}

/// The scoreboard: a place for each request that can be worked on at once, and the places beyond them in which a worker
/// of before still is.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Board {
    places: i64,
    /// Places with a worker in them.
    taken: i64,
}

impl Status {
    /// Reads a page; `None` when it is none.
    pub fn parse(page: &str) -> Option<Status> {
        let field = |name: &str| page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        let number = |name: &str| field(name)?.trim().parse().ok();
        let count = |marks: &str, wanted: fn(&char) -> bool| i64::try_from(marks.chars().filter(wanted).count()).ok();
        let board = field("Scoreboard").map(str::trim).and_then(|marks| {
            Some(Board { places: count(marks, |_| true)?, taken: count(marks, |mark| *mark != '.')? })
        });
        Some(Status {
            generation: number("ParentServerMPMGeneration")?,
            stopping: number("Stopping").unwrap_or(0),
            processes: number("Processes").unwrap_or(0),
            board,
        })
    }

    /// A graceful restart needs places in the scoreboard beside the processes that still finish requests.
    ///
    /// # Errors
    /// How many of them there are.
    pub fn has_room(&self) -> Result<(), String> {
        if self.stopping * 2 > self.processes && self.stopping > 1 {
            return Err(format!(
                "{} of Apache's {} processes still finish requests from before the last restart",
                self.stopping, self.processes
            ));
        }
        Ok(())
    }

    /// Whether an Apache that works on at most so many requests at once may show this page.
    ///
    /// # Errors
    /// Both numbers.
    pub fn fits(&self, workers: i64) -> Result<(), String> {
        match self.board {
            Some(board) if !(board.places - board.taken..=board.places).contains(&workers) => Err(format!(
                "the running Apache has {} places for requests (server-status), its configuration comes to {workers}: \
                it was changed without a reload, or ServerLimit or ThreadLimit without a full restart",
                board.places
            )),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(processes: u64, stopping: u64, scoreboard: &str) -> Status {
        let text = format!(
            "ServerMPM: event\nParentServerMPMGeneration: 3\nProcesses: {processes}\nStopping: {stopping}\n\
            Scoreboard: {scoreboard}\n"
        );
        Status::parse(&text).expect("a page")
    }

    #[test]
    fn a_page_is_read_also_where_it_tells_less() {
        let status = page(4, 1, "_W..");
        assert_eq!((status.generation, status.stopping, status.processes), (3, 1, 4));
        assert_eq!(status.board, Some(Board { places: 4, taken: 2 }));
        let prefork = Status::parse("ParentServerMPMGeneration: 7\n").expect("a page");
        assert_eq!(prefork, Status { generation: 7, stopping: 0, processes: 0, board: None });
        assert_eq!(prefork.fits(9), Ok(()));
        assert_eq!(Status::parse("<html>"), None);
    }

    #[test]
    fn there_is_no_room_while_most_processes_still_finish_requests() {
        for (processes, stopping) in [(4, 0), (1, 1), (4, 2), (2, 1)] {
            assert_eq!(page(processes, stopping, "_").has_room(), Ok(()), "{stopping} of {processes}");
        }
        for (processes, stopping) in [(4, 3), (3, 2), (2, 2)] {
            let said = page(processes, stopping, "_").has_room().unwrap_err();
            assert!(said.starts_with(&format!("{stopping} of Apache's {processes} processes still finish")), "{said}");
        }
    }

    #[test]
    fn workers_that_the_scoreboard_has_no_places_for_and_places_that_nobody_takes_are_told() {
        let status = page(2, 0, "_____WWWWW..........");
        for workers in [10, 15, 20] {
            assert_eq!(status.fits(workers), Ok(()), "places beyond may be those of workers of before");
        }
        for workers in [9, 21, 100] {
            let said = status.fits(workers).unwrap_err();
            assert!(said.starts_with("the running Apache has 20 places for requests"), "{said}");
            assert!(said.contains(&format!("comes to {workers}: ")), "{said}");
        }
    }
}
