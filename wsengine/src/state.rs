//! The state that outlives the process: baselines, leases and ids of earlier Orders (`state.json`), and Changes that
//! nobody has received yet (`changes/`). A lock keeps a second engine away.

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
/// Most Changes that wait for the bus; the oldest are dropped.
const MOST_WAITING: usize = 1000;

/// A changed knob, with everything that is needed to put it back.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Lease {
    /// The Order that it follows.
    pub order_id: String,
    /// The sender of the Order.
    pub by: String,
    /// The Order's reason.
    pub reason: String,
    /// When the Order was given.
    pub order_unix_s: f64,
    /// The value of the Order.
    pub wanted: Value,
    /// The value in effect, or about to be.
    pub effective: Value,
    /// The value before the first Order.
    pub before: Value,
    /// The setting before the first Order, in the knob's own form.
    pub baseline: Json,
    /// The settings that we may have made: the last one, and the next one while it is being applied.
    pub written: Vec<Json>,
    /// Length of the lease.
    pub lease_s: f64,
    /// Wall time of its end, for people; the engine counts on the monotonic clock.
    pub until_unix_s: f64,
}

/// `state.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct State {
    v: u32,
    /// The knobs that are changed.
    pub leases: BTreeMap<String, Lease>,
    /// Ids of Orders that arrived, with the wall time at which they have long expired and may be forgotten.
    pub order_ids: BTreeMap<String, f64>,
}

impl State {
    /// A state of the present version.
    pub fn new(leases: BTreeMap<String, Lease>, order_ids: BTreeMap<String, f64>) -> State {
        State { v: VERSION, leases, order_ids }
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
    /// Opens the folder, and makes it when it is not there.
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

    /// Keeps other engines away while the result lives.
    ///
    /// # Errors
    /// The process id of an engine that is there; `None` when it is not known, or when the file cannot be locked.
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
        // On a full disk the process id is missing, and the lock still holds.
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
    /// A file that is no valid state: nothing is guessed.
    pub fn load(&self) -> Result<State> {
        let path = self.path();
        let Some(text) = files::contents(&path)? else { return Ok(State::default()) };
        let unusable = |fault: String| Error::State(format!("{}: {fault}", path.display()));
        let state: State = decode(&text).map_err(|error| {
            unusable(format!("not a state file ({error}); put the node back by hand, then remove the file"))
        })?;
        if state.v != VERSION {
            return Err(unusable(format!("of version {}, expected {VERSION}", state.v)));
        }
        Ok(state)
    }

    /// Writes the state durably.
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
        for (path, _) in waiting.iter().take((waiting.len() + 1).saturating_sub(MOST_WAITING)) {
            let _ = fs::remove_file(path);
        }
        let name = format!("{:017.6}-{}.json", change.time_unix_s, change.id);
        Ok(files::replace(&self.folder.join("changes").join(name), &encode(change), 0o600)?)
    }

    /// Changes that wait, the oldest first.
    pub fn waiting(&self) -> Vec<(PathBuf, Change)> {
        let mut changes: Vec<(PathBuf, Change)> = fs::read_dir(self.folder.join("changes"))
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path())
            .filter(|path| path.extension().is_some_and(|ending| ending == "json"))
            .filter_map(|path| Some((path.clone(), decode(&fs::read(&path).ok()?).ok()?)))
            .collect();
        changes.sort_by(|a, b| a.0.cmp(&b.0));
        changes
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
        let store = Store::open(folder.path()).expect("a store");
        assert_eq!(store.load(), Ok(State::default()));
        let mut state = State::default();
        state.order_ids.insert("o1".to_owned(), 5.0);
        store.save(&state).expect("the state is saved");
        assert_eq!(store.load(), Ok(state));
        let whole = fs::read(store.path()).expect("the file");
        for length in 0..whole.len() {
            fs::write(store.path(), &whole[..length]).expect("the file is cut");
            assert!(store.load().unwrap_err().to_string().contains("not a state file"), "{length}");
        }
    }

    #[test]
    fn a_second_engine_is_kept_away_and_learns_whose_state_it_is() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = Store::open(folder.path()).expect("a store");
        assert_eq!(store.running(), None);
        let lock = store.lock().expect("the first lock");
        assert_eq!(store.lock().expect_err("a second lock fails"), Some(std::process::id()));
        assert_eq!(store.running(), Some(std::process::id()));
        drop(lock);
        assert!(store.lock().is_ok());
    }

    #[test]
    fn changes_wait_in_order_until_they_are_received() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = Store::open(folder.path()).expect("a store");
        for number in [2, 1, 3] {
            store.keep(&change(number)).expect("the change is kept");
        }
        let ids = || store.waiting().into_iter().map(|(_, change)| change.id).collect::<Vec<_>>();
        assert_eq!(ids(), ["c1", "c2", "c3"]);
        store.received(&store.waiting()[1].0);
        assert_eq!(ids(), ["c1", "c3"]);
    }
}
