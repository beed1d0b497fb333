//! Drop-in files: configuration that only we write, for servers that reload it.

use std::path::Path;

use crate::error::{Error, Result};
use crate::files;

/// A server with a drop-in file.
pub trait DropInServer {
    /// Its configuration, once it was read.
    type Config;
    /// Its name in messages.
    const NAME: &'static str;
    /// First line of the file, which shows that we wrote it.
    const HEAD: &'static str;

    /// The drop-in file.
    fn drop_in(&self) -> &Path;

    /// The configuration, if the server accepts it.
    ///
    /// # Errors
    /// Why the server does not accept it.
    fn config(&self) -> Result<Self::Config>;

    /// Whether the server would accept the file `next` as its drop-in file.
    ///
    /// # Errors
    /// Why the server would not accept it.
    fn test_next(&self, next: &Path) -> Result<()>;

    /// The main process, as the configuration names it.
    ///
    /// # Errors
    /// When the server does not run.
    fn pid(&self, config: &Self::Config) -> Result<u32>;

    /// Makes the running server read its configuration, and waits for the end of the reload.
    ///
    /// # Errors
    /// When the reload takes too long.
    fn reload(&self, pid: u32) -> Result<()>;

    /// The text of our drop-in file; `None` when there is none.
    ///
    /// # Errors
    /// [`Error::SomeoneElse`] for a file that somebody else wrote.
    fn written(&self) -> Result<Option<String>> {
        let Some(bytes) = files::contents(self.drop_in())? else { return Ok(None) };
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if text.starts_with(Self::HEAD) {
            return Ok(Some(text));
        }
        let place = self.drop_in().display();
        Err(Error::SomeoneElse(format!("{place} was written by somebody else; it is left alone")))
    }

    /// Writes the drop-in file (`None`: removes it), tests and reloads. `counts` checks that its settings are in force.
    /// On failure everything is as it was before.
    ///
    /// # Errors
    /// The step that failed.
    fn change(&self, text: Option<&str>, counts: impl Fn(&Self::Config) -> Result<()>) -> Result<()> {
        let before = files::contents(self.drop_in())?;
        let pid = self.pid(&self.config()?)?;
        match text {
            Some(text) => {
                let next = files::prepare(self.drop_in(), text.as_bytes(), 0o644)?;
                self.test_next(&next).inspect_err(|_| files::discard(self.drop_in()))?;
                files::accept(self.drop_in())?;
            }
            None => files::remove(self.drop_in())?,
        }
        let accepted = self.config().and_then(|config| counts(&config));
        let was_reloaded = accepted.is_ok();
        accepted.and_then(|()| self.reload(pid)).map_err(|error| {
            let undone = files::put_back(self.drop_in(), before.as_deref()).map_err(Error::from);
            error.undone(undone.and_then(|()| if was_reloaded { self.reload(pid) } else { Ok(()) }))
        })
    }

    /// Writes the drop-in file (`None`: removes it), also when the site's configuration is broken, but reloads only a
    /// valid configuration: a server may end when it reloads a configuration that it cannot read. A file of somebody
    /// else stays.
    ///
    /// # Errors
    /// The step that failed; on disk everything is put back unless the error says otherwise.
    fn put_back(&self, text: Result<Option<String>>) -> Result<()> {
        match text {
            Ok(text) => files::put_back(self.drop_in(), text.as_deref().map(str::as_bytes))?,
            Err(Error::SomeoneElse(_)) => {}
            Err(error) => return Err(error),
        }
        let context = || format!("put back on disk, but {} is not reloaded", Self::NAME);
        let config = self.config().map_err(|error| error.during(context()))?;
        // A server that does not run reads its configuration when it starts.
        self.pid(&config).map_or(Ok(()), |pid| self.reload(pid))
    }
}
