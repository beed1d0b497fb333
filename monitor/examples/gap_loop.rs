//! The plan that the collector `gaps` does not follow, to compare both: `gap_loop [SECONDS] [SHARE]` reads the clock in a
//! loop for SHARE (0.02) of the time, in bursts every 50 ms. A gap is the time between two readings without a context
//! switch of its own thread.

use std::time::{Duration, Instant};

use rustix::thread::ClockId;
use slackwater_monitor::timer::clock_ns;

const EVERY: Duration = Duration::from_millis(50);
/// Interrupts of the machine's own take less.
const GAP: Duration = Duration::from_micros(300);

fn main() {
    let argument = |index| std::env::args().nth(index).and_then(|text| text.parse::<f64>().ok());
    let (seconds, share) = (argument(1).unwrap_or(20.0), argument(2).unwrap_or(0.02));
    let (start, cpu) = (Instant::now(), cpu_s());
    let (mut watched, mut lost, mut gaps, mut switched) = (Duration::ZERO, Duration::ZERO, 0_u32, 0_u32);
    while start.elapsed().as_secs_f64() < seconds {
        let begin = Instant::now();
        let mut last = begin;
        let mut switches_before = switches();
        while last - begin < EVERY.mul_f64(share) {
            let now = Instant::now();
            if now - last > GAP {
                let switches_now = switches();
                if switches_now == switches_before {
                    lost += now - last;
                    gaps += 1;
                } else {
                    switched += 1;
                }
                switches_before = switches_now;
            }
            last = now;
        }
        watched += last - begin;
        std::thread::sleep(EVERY.saturating_sub(begin.elapsed()));
    }
    println!(
        "{{\"watched_s\": {:.4}, \"lost_s\": {:.4}, \"gaps\": {gaps}, \"own_switches\": {switched}, \"cpu_s\": {:.4}}}",
        watched.as_secs_f64(),
        lost.as_secs_f64(),
        cpu_s() - cpu
    );
}

fn switches() -> (i64, i64) {
    // SAFETY: all zeros are a value of this struct, and the call writes to nothing else.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage);
        usage
    };
    (usage.ru_nvcsw, usage.ru_nivcsw)
}

fn cpu_s() -> f64 {
    clock_ns(ClockId::ThreadCPUTime) as f64 / 1e9
}
