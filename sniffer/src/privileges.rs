//! Gives up privileges once the capture is open, so that code that reads hostile bytes can do no more than its user.
//!
//! The order matters, because each step removes a right that an earlier step needs: bounding set, groups, user, no new
//! privileges, capability sets. See capabilities(7).

use rustix::io::Errno;
use rustix::process;
use rustix::thread::{self, CapabilitySet, CapabilitySets};

/// A privilege that could not be given up.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // The messages are the documentation.
pub enum PrivilegeError {
    #[error("{step}: {error}")]
    Refused { step: &'static str, error: Errno },
    #[error("no such user: {0:?} (expected a name of /etc/passwd, or a number)")]
    NoUser(String),
}

/// Drops all capabilities for good, and changes to `user` (a name of /etc/passwd, or a number) if there is one. Acts on
/// the calling thread, as the kernel does: call it while there is no other.
pub fn drop_privileges(user: Option<&str>) -> Result<(), PrivilegeError> {
    keep_privileges(user, CapabilitySet::empty())
}

/// As `drop_privileges`, but keeps those capabilities in `keep` that the thread has.
pub fn keep_privileges(user: Option<&str>, keep: CapabilitySet) -> Result<(), PrivilegeError> {
    let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let identity = user.map(|user| identity(user, &users)).transpose()?;
    let failed = |step, error| PrivilegeError::Refused { step, error };
    empty_bounding_set().map_err(|error| failed("capability bounding set", error))?;
    if let Some((uid, gid)) = identity {
        // A change of user would remove the capabilities, and the signal that ends us with our parent.
        thread::set_keep_capabilities(true).map_err(|error| failed("capabilities across users", error))?;
        let last_signal = process::parent_process_death_signal().unwrap_or_default();
        let (uid, gid) = (thread::Uid::from_raw(uid), thread::Gid::from_raw(gid));
        thread::set_thread_groups(&[]).map_err(|error| failed("no other groups", error))?;
        thread::set_thread_res_gid(gid, gid, gid).map_err(|error| failed("change of group", error))?;
        thread::set_thread_res_uid(uid, uid, uid).map_err(|error| failed("change of user", error))?;
        process::set_parent_process_death_signal(last_signal)
            .map_err(|error| failed("parent's death signal", error))?;
    }
    thread::set_no_new_privs(true).map_err(|error| failed("no new privileges", error))?;
    let permitted = thread::capabilities(None).map_err(|error| failed("capabilities", error))?.permitted;
    let (kept, none) = (keep & permitted, CapabilitySet::empty());
    thread::set_capabilities(None, CapabilitySets { effective: kept, permitted: kept, inheritable: none })
        .map_err(|error| failed("fewer capabilities", error))
}

/// Checks that `drop_privileges` could change to this user.
///
/// # Errors
/// When there is no such user.
pub fn user_exists(user: &str) -> Result<(), PrivilegeError> {
    identity(user, &std::fs::read_to_string("/etc/passwd").unwrap_or_default()).map(|_| ())
}

fn empty_bounding_set() -> Result<(), Errno> {
    for number in 0..64 {
        match thread::remove_capability_from_bounding_set(CapabilitySet::from_bits_retain(1 << number)) {
            Ok(()) => {}
            // The kernel has no more capabilities; or we have no right to do this, and then the other steps suffice.
            Err(Errno::INVAL | Errno::PERM) => break,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// User id and group id of a name in the lines of a passwd file. A number stands for both ids.
fn identity(user: &str, users: &str) -> Result<(u32, u32), PrivilegeError> {
    let entry = |line: &str| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        let mut numbers = fields.skip(1).map_while(|field| field.parse().ok());
        Some((name.to_owned(), numbers.next()?, numbers.next()?))
    };
    let named = users.lines().filter_map(entry).find(|(name, ..)| name == user);
    let number = || user.parse::<u32>().ok().filter(|number| *number != u32::MAX).map(|number| (number, number));
    named.map(|(_, uid, gid)| (uid, gid)).or_else(number).ok_or_else(|| PrivilegeError::NoUser(user.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_found_by_name_and_number() {
        let users = "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65533::/:/bin/false\nbroken\n";
        assert_eq!(identity("nobody", users).expect("an entry"), (65_534, 65_533));
        assert_eq!(identity("1234", users).expect("a number"), (1_234, 1_234));
        for user in ["", "broken", "nobod", "-1", "4294967295"] {
            assert!(identity(user, users).is_err(), "{user:?}");
        }
    }

    #[test]
    fn only_what_was_asked_for_is_kept_as_far_as_it_was_there() {
        std::thread::spawn(|| {
            let before = thread::capabilities(None).expect("a thread may always read its own privileges");
            let keep = CapabilitySet::NET_RAW;
            keep_privileges(None, keep).expect("dropping is always allowed");
            let left = thread::capabilities(None).expect("a thread may always read its own privileges");
            assert_eq!((left.effective, left.permitted), (keep & before.permitted, keep & before.permitted));
        })
        .join()
        .expect("the others are gone");
    }

    #[test]
    fn nothing_is_left_in_the_thread_that_drops() {
        std::thread::spawn(|| {
            drop_privileges(None).expect("dropping is always allowed");
            let left = thread::capabilities(None).expect("a thread may always read its own privileges");
            assert!(left.effective.is_empty() && left.permitted.is_empty() && left.inheritable.is_empty());
            assert!(thread::no_new_privs().expect("a thread may always read its own privileges"));
        })
        .join()
        .expect("no privilege is left");
    }
}
