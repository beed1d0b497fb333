//! The time stamp counter, or nanoseconds of the monotonic clock where there is none.

use rustix::thread::ClockId;

use crate::timer::clock_ns;

/// Cycles per nanosecond, measured since the start and so more exact with time.
pub(super) struct Rate {
    start_cycles: u64,
    start_ns: u64,
}

impl Rate {
    pub(super) fn start() -> Rate {
        Rate { start_cycles: now(), start_ns: clock_ns(ClockId::Monotonic) }
    }

    pub(super) fn cycles_per_ns(&self) -> f64 {
        let ns = clock_ns(ClockId::Monotonic).saturating_sub(self.start_ns).max(1);
        now().saturating_sub(self.start_cycles) as f64 / ns as f64
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) use tsc::{CAN_TIME_ONE_LOAD, flush, now, timed};

#[cfg(target_arch = "x86_64")]
mod tsc {
    use std::arch::x86_64::{_mm_clflush, _mm_lfence, _mm_mfence, _rdtsc};

    pub(in super::super) const CAN_TIME_ONE_LOAD: bool = true;

    pub(in super::super) fn now() -> u64 {
        // SAFETY: each x86-64 CPU has the instruction; where the kernel forbids it the process is not even started.
        unsafe { _rdtsc() }
    }

    /// How long `work` takes; the fences keep code before and after it out of the measured time.
    #[inline(always)]
    pub(in super::super) fn timed(work: impl FnOnce()) -> u64 {
        // SAFETY: lfence belongs to SSE2, which each x86-64 CPU has.
        let fence = || unsafe { _mm_lfence() };
        fence();
        let start = now();
        fence();
        work();
        fence();
        now().saturating_sub(start)
    }

    /// Throws the cache line out of all caches.
    pub(in super::super) fn flush<T>(line: &T) {
        // SAFETY: clflush and mfence belong to SSE2; flushing changes no memory.
        unsafe {
            _mm_clflush(std::ptr::from_ref(line).cast());
            _mm_mfence();
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
pub(super) use no_tsc::{CAN_TIME_ONE_LOAD, flush, now, timed};

#[cfg(not(target_arch = "x86_64"))]
mod no_tsc {
    //! Nanoseconds are too coarse for one load, and good enough for some hundred.

    pub(in super::super) const CAN_TIME_ONE_LOAD: bool = false;

    pub(in super::super) fn now() -> u64 {
        super::clock_ns(super::ClockId::Monotonic)
    }

    pub(in super::super) fn timed(work: impl FnOnce()) -> u64 {
        let start = now();
        work();
        now().saturating_sub(start)
    }

    pub(in super::super) fn flush<T>(_line: &T) {}
}
