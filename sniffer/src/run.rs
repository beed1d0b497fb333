//! `slackwater-sniffer read` and `live`: from packets to figures.

use std::io::{self, BufWriter};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use slackwater_sniffer::{Live, LiveSettings, Packet, Summary, Tracker, drop_privileges, read_file, read_stream};

use crate::AnyError;
use crate::arguments::TrafficOptions;
use crate::output::Printer;

/// The file name that means standard input.
const STDIN: &str = "-";

/// A capture of which no packet was understood.
#[derive(Debug, thiserror::Error)]
#[error("none of the {packets} packets of {source_name} was understood: {kinds}")]
struct NothingUnderstood {
    packets: u64,
    source_name: String,
    kinds: String,
}

/// Reads a file or standard input. Periods are measured in the packets' own time.
pub fn read(file: &Path, options: &TrafficOptions) -> Result<(), AnyError> {
    let is_pipe = file.as_os_str() == STDIN;
    let name = if is_pipe { Path::new("standard input") } else { file };
    let mut printer = Printer::new(BufWriter::new(io::stdout().lock()), options, &name.display().to_string(), false);
    let mut tracker = Tracker::new(options.settings(true)?);
    let every_ns = options.every.map(|every| every.as_nanos() as u64);
    let mut next_period = None;
    let mut written = Ok(());
    let take = |packet: &Packet<'_>| {
        if let Some(every_ns) = every_ns {
            let next = next_period.get_or_insert_with(|| packet.time_ns.saturating_add(every_ns));
            // After a silence of many periods, one line stands for all of them.
            if packet.time_ns >= *next && written.is_ok() {
                let silent = (packet.time_ns - *next) / every_ns;
                let period = tracker.take_period(*next);
                let length = Duration::from_nanos(every_ns.saturating_mul(silent + 1));
                written = printer.period(&period, None, length);
                *next = next.saturating_add(every_ns.saturating_mul(silent + 1));
                if is_pipe && written.is_ok() {
                    written = printer.flush();
                }
            }
        }
        tracker.packet(packet);
        if options.exchanges && written.is_ok() {
            written = printer.exchanges(&mut tracker).and_then(|count| match count {
                1.. if is_pipe => printer.flush(),
                _ => Ok(()),
            });
        }
    };
    let read = if is_pipe {
        end_with_the_writer()?;
        read_stream(io::stdin().lock(), name, take)
    } else {
        read_file(file, take)
    };
    written?;
    let summary = tracker.finish();
    let counts = &summary.counts;
    if counts.packets > counts.not_understood || (counts.packets == 0 && read.is_ok()) {
        printer.exchanges(&mut tracker)?;
        printer.summary(&summary, None)?;
    }
    read?;
    understood(&summary, name)?;
    if counts.packets > 0 && summary.connections == 0 {
        // All figures are zero, which looks like servers without requests.
        let ports: Vec<String> = options.ports.iter().map(|port| port.number.to_string()).collect();
        eprintln!(
            "slackwater-sniffer: {}: no connection of port {}: name the servers' ports with --port",
            name.display(),
            ports.join(", ")
        );
    }
    Ok(())
}

/// An error if there were packets and none was understood.
fn understood(summary: &Summary, source: &Path) -> Result<(), AnyError> {
    let packets = summary.counts.packets;
    if packets == 0 || packets > summary.counts.not_understood {
        return Ok(());
    }
    let kinds: Vec<String> =
        summary.not_understood_kinds.iter().map(|(kind, count)| format!("{count} with {kind}")).collect();
    let source_name = source.display().to_string();
    Err(NothingUnderstood { packets, source_name, kinds: kinds.join(", ") }.into())
}

/// Lets the first Ctrl-C end only the program that writes into the pipe, and with it the input; a second one ends this
/// program.
fn end_with_the_writer() -> io::Result<()> {
    let once = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register_conditional_default(signal_hook::consts::SIGINT, Arc::clone(&once))?;
    signal_hook::flag::register(signal_hook::consts::SIGINT, once)?;
    Ok(())
}

/// Captures until a signal, or for `seconds`.
pub fn live(
    settings: &LiveSettings,
    options: &TrafficOptions,
    seconds: Option<Duration>,
    user: Option<&str>,
) -> Result<(), AnyError> {
    let mut tracker = Tracker::new(options.settings(false)?);
    let mut live = Live::open(settings)?;
    drop_privileges(user)?;
    let mut printer = Printer::new(BufWriter::new(io::stdout().lock()), options, &settings.interface, true);
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    printer.begin()?;
    let start = Instant::now();
    let end = seconds.map(|seconds| start + seconds);
    let mut began = start;
    let mut next_period = options.every.map(|every| start + every);
    let mut drops_before = 0;
    while !stop.load(Ordering::Relaxed) && end.is_none_or(|end| Instant::now() < end) {
        let wake = [end, next_period].into_iter().flatten().min();
        wait(&live, wake.map(|wake| wake.saturating_duration_since(Instant::now())))?;
        live.drain(&mut tracker)?;
        if options.exchanges {
            printer.exchanges(&mut tracker)?;
            printer.flush()?;
        }
        let now = Instant::now();
        if let (Some(next), Some(every)) = (next_period, options.every)
            && now >= next
        {
            let period = tracker.take_period(now_ns());
            let drops = live.drops()?;
            printer.period(&period, Some(drops - drops_before), now - began)?;
            printer.flush()?;
            (drops_before, began) = (drops, now);
            // Missed periods are not made up for.
            next_period = Some((next + every).max(now));
        }
    }
    live.drain(&mut tracker)?;
    let drops = live.drops()?;
    let summary = tracker.finish();
    printer.exchanges(&mut tracker)?;
    let understood = understood(&summary, Path::new(&settings.interface));
    if understood.is_ok() {
        printer.summary(&summary, Some(drops))?;
    }
    understood
}

/// Waits for packets, for at most a quarter of a second, so that a signal to stop is noticed.
fn wait(live: &Live, most: Option<Duration>) -> Result<(), AnyError> {
    let most = most.unwrap_or(Duration::MAX).min(Duration::from_millis(250));
    let timeout = Timespec::try_from(most)?;
    // SAFETY: the descriptor is open as long as `live`, which outlives the borrow.
    let fd = unsafe { BorrowedFd::borrow_raw(live.as_raw_fd()) };
    match poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&timeout)) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// The wall clock, which is that of the packets: nanoseconds since 1970.
pub fn now_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_nanos() as u64)
}
