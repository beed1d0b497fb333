//! Clock ticks of all CPUs by kind, from /proc/stat.
//!
//! Form: the kernel's Documentation/filesystems/proc.rst.

use std::collections::HashSet;

use crate::counter_delta::{CounterDelta, GrowthLimit};
use crate::reason::Reason;

/// The kinds that are counted, in the order of the file. Guest time stands within user time.
pub const KINDS: usize = 8;
const KIND_NAMES: [&str; KINDS] = ["user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal"];
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

/// The shares of a period's ticks by kind.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct TickShares {
    /// Ticks in user mode, nice included.
    pub user: f64,
    /// Ticks in the kernel, without interrupts.
    pub system: f64,
    /// Ticks in hard and soft interrupts.
    pub irq: f64,
    /// Idle while a disk was waited for.
    pub iowait: f64,
    /// Given to others by the hypervisor.
    pub steal: f64,
    /// Ticks that were neither idle nor waiting for a disk. Stolen time counts as used, since the VM could not have
    /// used it; so a full machine is at 1.0 also while time is stolen.
    pub used: f64,
}

/// Reads /proc/stat.
///
/// # Errors
/// The text's fault. A line that is there twice, as in some containers, is one.
pub fn parse_stat(text: &str) -> Result<Ticks, String> {
    let mut all = None;
    let mut seen = HashSet::new();
    for line in text.lines().take_while(|line| line.starts_with("cpu")) {
        let (name, numbers) = line.split_once(' ').unwrap_or((line, ""));
        let is_core = name[3..].parse::<u32>().is_ok();
        if !is_core && name != "cpu" {
            continue;
        }
        if is_core && numbers.split(' ').next().is_none_or(|ticks| ticks.parse::<u64>().is_err()) {
            return Err(format!("the `{name}` line has no ticks"));
        }
        if !seen.insert(name) {
            return Err(format!("two `{name}` lines"));
        }
        if !is_core {
            all = Some(numbers);
        }
    }
    let mut fields = all.ok_or("no `cpu` line")?.split_ascii_whitespace();
    let mut ticks = Ticks::default();
    for (kind, name) in ticks.by_kind.iter_mut().zip(KIND_NAMES) {
        let field = fields.next().ok_or_else(|| format!("the `cpu` line has no {name}"))?;
        *kind = field.parse().map_err(|_| format!("{name} of the `cpu` line is {field:?}, no number of ticks"))?;
    }
    ticks.cores = u32::try_from(seen.len() - 1).unwrap_or(u32::MAX);
    if ticks.cores == 0 { Err("no line of a single CPU".to_owned()) } else { Ok(ticks) }
}

/// Growth between two readings of /proc/stat.
pub struct TickDelta {
    deltas: CounterDelta<KINDS>,
    cores: u32,
}

/// The limit of the ticks on this number of CPUs.
fn tick_limit(cores: u32) -> GrowthLimit {
    GrowthLimit::time(rustix::param::clock_ticks_per_second() as f64).times(f64::from(cores))
}

impl Default for TickDelta {
    fn default() -> TickDelta {
        TickDelta { deltas: CounterDelta::new([tick_limit(0); KINDS]), cores: 0 }
    }
}

impl TickDelta {
    /// Takes a reading and returns by how much each kind grew.
    ///
    /// # Errors
    /// Which kind is not known, or cannot be true.
    pub fn advance(&mut self, now_ns: u64, now: &Ticks) -> Result<[u64; KINDS], Reason> {
        // CPUs may have come or gone since the last reading.
        let limit = tick_limit(now.cores.max(self.cores));
        self.cores = now.cores;
        // These two can go back by a little, as the kernel's documentation warns.
        let falls = |kind: usize| matches!(kind, IDLE | IOWAIT);
        let limit_of = |kind| if falls(kind) { limit.falling_a_little() } else { limit };
        self.deltas.set_limits(std::array::from_fn(limit_of));
        let delta = self.deltas.advance(now_ns, now.by_kind.map(Ok));
        let mut grown = [0; KINDS];
        for ((kind, by), name) in grown.iter_mut().zip(&delta.by).zip(KIND_NAMES) {
            *kind = by.clone().map_err(|reason| Reason::from(format!("{name} in /proc/stat: {reason}")))?;
        }
        limit.sum_of(&grown, delta.elapsed_s).map_err(|reason| format!("all ticks of /proc/stat: {reason}"))?;
        Ok(grown)
    }

    /// Forgets the last reading, because there was a gap.
    pub fn forget(&mut self) {
        self.deltas.forget();
    }
}

/// The shares of the ticks between two readings.
///
/// # Errors
/// Why they are not known.
pub fn kinds(grown: [u64; KINDS]) -> Result<TickShares, &'static str> {
    let total: f64 = grown.iter().map(|ticks| *ticks as f64).sum();
    if total == 0.0 {
        return Err("no tick of /proc/stat passed since the last reading");
    }
    let [user, nice, system, idle, iowait, hard, soft, steal] = grown.map(|ticks| ticks as f64 / total);
    Ok(TickShares {
        user: user + nice,
        system,
        irq: hard + soft,
        iowait,
        steal,
        used: (1.0 - idle - iowait).clamp(0.0, 1.0),
    })
}

/// The ticks that CPUs spent in user mode, in kernel mode and in interrupts.
pub fn running([user, nice, system, _idle, _iowait, irq, softirq, _steal]: [u64; KINDS]) -> u64 {
    user + nice + system + irq + softirq
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAT: &str = "cpu  100 5 50 1000 20 3 2 10 7 0\ncpu0 50 0 0\ncpu1 1 0 0\nintr 5\n";
    const S: u64 = 1_000_000_000;

    #[test]
    fn ticks_are_read_with_steal_and_without_counting_guests_twice() {
        let ticks = parse_stat(STAT).expect("a reading");
        assert_eq!(ticks, Ticks { by_kind: [100, 5, 50, 1000, 20, 3, 2, 10], cores: 2 });
        for (bad, fault) in [
            ("", "no `cpu` line"),
            ("intr 5\n", "no `cpu` line"),
            ("cpu  1 2 3\ncpu0 1\n", "the `cpu` line has no idle"),
            ("cpu  1 2 x 4 5 6 7 8\ncpu0 1\n", "system of the `cpu` line is \"x\", no number of ticks"),
            ("cpu  1 2 -3 4 5 6 7 8\ncpu0 1\n", "system of the `cpu` line is \"-3\", no number of ticks"),
            ("cpu  1 1 1 1 1 1 1 1\n", "no line of a single CPU"),
            ("cpu  1 1 1 1 1 1 1 1\ncpufreq 1\n", "no line of a single CPU"),
            ("cpu  0 0 0 0 0 0 0 0\ncpu  1 1 1 1 1 1 1 1\ncpu0 1\n", "two `cpu` lines"),
            ("cpu  1 1 1 1 1 1 1 1\ncpu0 1\ncpu0 1\n", "two `cpu0` lines"),
            ("cpu  1 1 1 1 1 1 1 1\ncpu0 1\ncpu1\n", "the `cpu1` line has no ticks"),
            ("cpu  1 1 1 1 1 1 1 1\ncpu0 -\n", "the `cpu0` line has no ticks"),
        ] {
            assert_eq!(parse_stat(bad), Err(fault.to_owned()), "{bad:?}");
        }
    }

    #[test]
    fn the_kinds_are_shares_that_add_up_to_one() {
        let expected = TickShares { user: 0.4, system: 0.2, irq: 0.1, iowait: 0.15, steal: 0.1, used: 0.8 };
        let shares = kinds([30, 10, 20, 5, 15, 4, 6, 10]).expect("shares");
        for (share, expected) in [
            (shares.user, expected.user),
            (shares.system, expected.system),
            (shares.irq, expected.irq),
            (shares.iowait, expected.iowait),
            (shares.steal, expected.steal),
            (shares.used, expected.used),
        ] {
            assert!((share - expected).abs() < 1e-9, "{share} {expected}");
        }
        assert_eq!(kinds([0; KINDS]), Err("no tick of /proc/stat passed since the last reading"));
        assert_eq!(running([1, 2, 4, 8, 16, 32, 64, 128]), 1 + 2 + 4 + 32 + 64);
    }

    /// How much the ticks of 2 CPUs are found to have grown after two seconds in which each kind grew by `more`.
    fn after_2_s(more: [i64; KINDS]) -> Result<[u64; KINDS], String> {
        let first = parse_stat(STAT).expect("a reading");
        let mut deltas = TickDelta::default();
        let _ = deltas.advance(S, &first);
        let mut now = first;
        for (ticks, more) in now.by_kind.iter_mut().zip(more) {
            *ticks = ticks.saturating_add_signed(more);
        }
        deltas.advance(3 * S, &now).map_err(|reason| reason.text)
    }

    #[test]
    fn ticks_are_compared_with_the_time_that_passed() {
        assert_eq!(after_2_s([100, 0, 0, 300, 0, 0, 0, 0]), Ok([100, 0, 0, 300, 0, 0, 0, 0]));
        for (more, message) in [
            ([100, 0, 0, 300, 0, 0, 0, 1_000_000_000], "steal in /proc/stat: the counter leapt: it grew by more than"),
            ([100, 0, 0, 4000, 0, 0, 0, 0], "idle in /proc/stat: the counter leapt"),
            ([400, 0, 300, 300, 0, 0, 0, 0], "all ticks of /proc/stat: the counter leapt"),
            // As after a live migration.
            ([100, 0, 0, 300, 0, 0, 0, -5], "steal in /proc/stat: the counter went back"),
            ([100, 0, 0, -900, 0, 0, 0, 0], "idle in /proc/stat: the counter went back"),
        ] {
            let fault = after_2_s(more).expect_err("a fault");
            assert!(fault.starts_with(message), "{fault}");
        }
        assert_eq!(after_2_s([100, 0, 0, -1, -1, 0, 0, 0]), Ok([100, 0, 0, 0, 0, 0, 0, 0]), "by a little");
    }
}
