//! What must outlive us: baselines, leases and seen Orders (`state.json`), and Changes that nobody has received yet
//! (`changes/`). A lock keeps a second engine away.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use slackwater_messages::{Change, Value, decode, encode};
use slackwater_node::files::FileError;

use crate::error::{Error, Result};
use crate::files;

const VERSION: u32 = 1;
/// Changes that wait for the bus; the oldest give way.
const WAITING: usize = 1000;

/// A knob that is changed, and what puts it back.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Lease {
    /// The Order that it follows.
    pub order_id: String,
    /// Who gave it.
    pub by: String,
    /// Why.
    pub reason: String,
    /// When the Order was given.
    pub order_unix_s: f64,
    /// What the Order set.
    pub wanted: Value,
    /// What it became, or will become.
    pub effective: Value,
    /// What was set before the first Order.
    pub before: Value,
    /// What puts the knob back: the knob's own form.
    pub baseline: Json,
    /// What we may have set: the last value that was applied, and the next while it is being applied.
    pub written: Vec<Json>,
    /// Length of the lease.
    pub lease_s: f64,
    /// Wall time of its end, for people; what counts is a clock that only goes forward.
    pub until_unix_s: f64,
}

/// `state.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct State {
    v: u32,
    /// The knobs that are changed.
    pub leases: BTreeMap<String, Lease>,
    /// Ids of Orders that came, with the wall time at which they may be forgotten: they have long expired then.
    pub seen: BTreeMap<String, f64>,
}

impl State {
    /// Of the version that is written now.
    pub fn new(leases: BTreeMap<String, Lease>, seen: BTreeMap<String, f64>) -> State {
        State { v: VERSION, leases, seen }
    }
}

impl Default for State {
    fn default() -> State {
        State::new(BTreeMap::new(), BTreeMap::new())
    }
}

/// The folder of the state.
pub struct Store {
    folder: PathBuf,
}

impl Store {
    /// The folder, made when it is not there.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn open(folder: &Path) -> Result<Store> {
        let changes = folder.join("changes");
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&changes)
            .map_err(|error| FileError::new(&changes, "cannot be made", &error))?;
        Ok(Store { folder: folder.to_owned() })
    }

    /// Keeps other engines away while the result lives. `Err(Some(pid))` when one is there.
    ///
    /// # Errors
    /// When one is there; `None` when its process is not known.
    pub fn lock(&self) -> Result<File, Option<u32>> {
        let path = self.folder.join("lock");
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(|_| None)?;
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Err(fs::read_to_string(&path).ok().and_then(|text| text.trim().parse().ok()));
        }
        // On a full disk the number is missing, the lock holds all the same.
        let _ = file.set_len(0).and_then(|()| file.write_all(format!("{}\n", std::process::id()).as_bytes()));
        Ok(file)
    }

    /// The process id of the engine that runs on this state.
    pub fn running(&self) -> Option<u32> {
        let file = File::open(self.folder.join("lock")).ok()?;
        flock(&file, FlockOperation::NonBlockingLockShared).is_err().then_some(())?;
        fs::read_to_string(self.folder.join("lock")).ok()?.trim().parse().ok()
    }

    /// The state; an empty one when there is none.
    ///
    /// # Errors
    /// A file that cannot be read as what it should be: nothing is guessed.
    pub fn load(&self) -> Result<State> {
        let path = self.path();
        let Some(text) = files::contents(&path)? else { return Ok(State::default()) };
        let unusable = |what: String| Error::State(format!("{}: {what}", path.display()));
        let state: State = decode(&text).map_err(|error| {
            unusable(format!("not a state file ({error}); put the node back by hand, then remove the file"))
        })?;
        if state.v != VERSION {
            return Err(unusable(format!("of version {}, expected {VERSION}", state.v)));
        }
        Ok(state)
    }

    /// Writes the state for good.
    ///
    /// # Errors
    /// When it cannot be written; the state on disk is as it was.
    pub fn save(&self, state: &State) -> Result<()> {
        Ok(files::replace(&self.path(), &encode(state), 0o600)?)
    }

    fn path(&self) -> PathBuf {
        self.folder.join("state.json")
    }

    /// Keeps a Change until [`Store::received`].
    ///
    /// # Errors
    /// When the system refuses.
    pub fn keep(&self, change: &Change) -> Result<()> {
        let waiting = self.waiting();
        for (path, _) in waiting.iter().take((waiting.len() + 1).saturating_sub(WAITING)) {
            let _ = fs::remove_file(path);
        }
        let name = format!("{:017.6}-{}.json", change.time_unix_s, change.id);
        Ok(files::replace(&self.folder.join("changes").join(name), &encode(change), 0o600)?)
    }

    /// Changes that wait, the oldest first.
    pub fn waiting(&self) -> Vec<(PathBuf, Change)> {
        let mut found: Vec<(PathBuf, Change)> = fs::read_dir(self.folder.join("changes"))
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path())
            .filter(|path| path.extension().is_some_and(|ending| ending == "json"))
            .filter_map(|path| Some((path.clone(), decode(&fs::read(&path).ok()?).ok()?)))
            .collect();
        found.sort_by(|a, b| a.0.cmp(&b.0));
        found
    }

    /// Forgets a Change of [`Store::waiting`] that the bus has taken.
    pub fn received(&self, waiting: &Path) {
        let _ = fs::remove_file(waiting);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(number: u32) -> Change {
        Change {
            v: 1,
            id: format!("c{number}"),
            pool: "web".to_owned(),
            time_unix_s: 1_795_000_000.0 + f64::from(number),
            what: "cpu.cores".to_owned(),
            target: "web1".to_owned(),
            before: None,
            after: Some(Value::Integer(2)),
            why: "test".to_owned(),
            by: "wsengine".to_owned(),
            applied: true,
            rt_p95_ms: None,
            rt_p95_predicted_ms: None,
            follows: String::new(),
            since_unix_s: None,
            cause: None,
        }
    }

    #[test]
    fn what_is_saved_is_loaded_and_every_cut_of_it_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = Store::open(folder.path()).expect("open");
        assert_eq!(store.load(), Ok(State::default()));
        let mut state = State::default();
        state.seen.insert("o1".to_owned(), 5.0);
        store.save(&state).expect("saved");
        assert_eq!(store.load(), Ok(state));
        let whole = fs::read(store.path()).expect("the file");
        for length in 0..whole.len() {
            fs::write(store.path(), &whole[..length]).expect("cut");
            assert!(store.load().unwrap_err().to_string().contains("not a state file"), "{length}");
        }
    }

    #[test]
    fn a_second_engine_is_kept_away_and_learns_whose_state_it_is() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = Store::open(folder.path()).expect("open");
        assert_eq!(store.running(), None);
        let lock = store.lock().expect("the first");
        assert_eq!(store.lock().expect_err("the second"), Some(std::process::id()));
        assert_eq!(store.running(), Some(std::process::id()));
        drop(lock);
        assert!(store.lock().is_ok());
    }

    #[test]
    fn changes_wait_in_order_until_they_are_received() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = Store::open(folder.path()).expect("open");
        for number in [2, 1, 3] {
            store.keep(&change(number)).expect("kept");
        }
        let ids = || store.waiting().into_iter().map(|(_, change)| change.id).collect::<Vec<_>>();
        assert_eq!(ids(), ["c1", "c2", "c3"]);
        store.received(&store.waiting()[1].0);
        assert_eq!(ids(), ["c1", "c3"]);
    }
}
