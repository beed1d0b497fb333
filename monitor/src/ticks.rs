//! Clock ticks of all CPUs by kind, from /proc/stat.
//!
//! Form: the kernel's Documentation/filesystems/proc.rst.

/// The kinds that are counted, in the order of the file. Guest time stands within user time.
const KINDS: usize = 8;
const IDLE: usize = 3;
const IOWAIT: usize = 4;

/// Ticks since boot.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Ticks {
    /// user, nice, system, idle, iowait, irq, softirq, steal.
    pub by_kind: [u64; KINDS],
    /// CPUs that are online.
    pub cores: u32,
}

impl Ticks {
    /// In user and kernel mode and in interrupts.
    pub fn running(&self) -> u64 {
        let [user, nice, system, _idle, _iowait, irq, softirq, _steal] = self.by_kind;
        user + nice + system + irq + softirq
    }
}

/// Shares of a period's ticks.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Kinds {
    /// In user mode, nice included.
    pub user: f64,
    /// In the kernel, interrupts left out.
    pub system: f64,
    /// In hard and soft interrupts.
    pub irq: f64,
    /// Idle while a disk was waited for.
    pub iowait: f64,
    /// Given to others by the hypervisor.
    pub steal: f64,
    /// Neither idle nor waiting for a disk. Stolen time counts as used, since the VM could not have used it: so full is
    /// 1.0 also beside a thief.
    pub used: f64,
}

/// Reads /proc/stat.
pub fn parse_stat(text: &str) -> Option<Ticks> {
    let mut fields = text.lines().next()?.strip_prefix("cpu ")?.split_ascii_whitespace().map(str::parse::<u64>);
    let mut ticks = Ticks::default();
    for kind in &mut ticks.by_kind {
        *kind = fields.next()?.ok()?;
    }
    let cores = text.lines().skip(1).take_while(|line| line.starts_with("cpu")).count();
    ticks.cores = u32::try_from(cores).ok().filter(|cores| *cores > 0)?;
    Some(ticks)
}

/// The shares of the ticks between two readings.
///
/// # Errors
/// Why they are not known.
pub fn kinds(last: &Ticks, now: &Ticks) -> Result<Kinds, &'static str> {
    let mut grown = [0_u64; KINDS];
    for (kind, grown) in grown.iter_mut().enumerate() {
        let (last, now) = (last.by_kind[kind], now.by_kind[kind]);
        *grown = match now.checked_sub(last) {
            Some(grown) => grown,
            // These two can go back by a little, as the kernel's documentation warns.
            None if matches!(kind, IDLE | IOWAIT) => 0,
            None => return Err("the ticks of /proc/stat went back"),
        };
    }
    let total: f64 = grown.iter().map(|ticks| *ticks as f64).sum();
    if total == 0.0 {
        return Err("no tick of /proc/stat passed since the last reading");
    }
    let [user, nice, system, idle, iowait, hard, soft, steal] = grown.map(|ticks| ticks as f64 / total);
    Ok(Kinds {
        user: user + nice,
        system,
        irq: hard + soft,
        iowait,
        steal,
        used: (1.0 - idle - iowait).clamp(0.0, 1.0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAT: &str = "cpu  100 5 50 1000 20 3 2 10 7 0\ncpu0 50 0 0\ncpu1 1 0 0\nintr 5\n";

    #[test]
    fn ticks_are_read_with_steal_and_without_counting_guests_twice() {
        let ticks = parse_stat(STAT).expect("read");
        assert_eq!(ticks, Ticks { by_kind: [100, 5, 50, 1000, 20, 3, 2, 10], cores: 2 });
        for bad in ["", "cpu  1 2 3\ncpu0 1\n", "cpu  a b c d e f g h\ncpu0 1\n", "intr 5\n", "cpu  1 1 1 1 1 1 1 1\n"]
        {
            assert_eq!(parse_stat(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn the_kinds_are_shares_that_add_up_to_one() {
        let last = parse_stat(STAT).expect("read");
        let mut now = last;
        for (kind, more) in [(0, 30), (1, 10), (2, 20), (3, 5), (4, 15), (5, 4), (6, 6), (7, 10)] {
            now.by_kind[kind] += more;
        }
        let expected = Kinds { user: 0.4, system: 0.2, irq: 0.1, iowait: 0.15, steal: 0.1, used: 0.8 };
        let found = kinds(&last, &now).expect("there");
        for (found, expected) in [
            (found.user, expected.user),
            (found.system, expected.system),
            (found.irq, expected.irq),
            (found.iowait, expected.iowait),
            (found.steal, expected.steal),
            (found.used, expected.used),
        ] {
            assert!((found - expected).abs() < 1e-9, "{found} {expected}");
        }
    }

    #[test]
    fn idle_ticks_may_go_back_and_others_may_not() {
        let last = parse_stat(STAT).expect("read");
        let mut now = last;
        now.by_kind[IDLE] -= 1;
        assert_eq!(kinds(&last, &now), Err("no tick of /proc/stat passed since the last reading"));
        now.by_kind[0] += 4;
        assert_eq!(kinds(&last, &now).map(|kinds| kinds.used), Ok(1.0));
        // As after a live migration.
        now.by_kind[7] -= 5;
        assert_eq!(kinds(&last, &now), Err("the ticks of /proc/stat went back"));
    }
}
