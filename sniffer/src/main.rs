//! `slackwater-sniffer`: response times from an interface or a capture file.

mod output;

use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::{Args, Parser, Subcommand};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use slackwater_sniffer::{Live, LiveSettings, Tracker, TrackerSettings, read_file};
use std::os::fd::AsRawFd;

/// Response times of web servers (HTTP/1.x over TCP) from the packets on the wire.
///
/// A response time is the time from the last byte of a request to the last byte of its response. Frames and streams are
/// numbered as in Wireshark.
#[derive(Parser)]
#[command(version, after_help = "Example: slackwater-sniffer read requests.pcap --port 80 --json")]
struct Command {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Read a capture file (pcap or pcapng).
    #[command(after_help = "Example: slackwater-sniffer read requests.pcap --port 80 --port 8080 --exchanges")]
    Read {
        /// The file.
        file: PathBuf,
        #[command(flatten)]
        what: What,
    },
    /// Capture from an interface until interrupted; needs the capability CAP_NET_RAW.
    #[command(after_help = "Example: slackwater-sniffer live -i eth0 --port 80 --every 1")]
    Live {
        /// The interface; `any` stands for all.
        #[arg(short, long)]
        interface: String,
        #[command(flatten)]
        what: What,
        /// Print the figures of each period of so many seconds.
        #[arg(long, value_name = "SECONDS", value_parser = seconds)]
        every: Option<Duration>,
        /// Stop after so many seconds.
        #[arg(long, value_name = "SECONDS", value_parser = seconds)]
        seconds: Option<Duration>,
        /// Bytes kept of each packet; by default all.
        #[arg(long, value_name = "BYTES", default_value_t = LiveSettings::default().snap_length)]
        snap_length: u32,
        /// Size of the kernel's ring in MiB.
        #[arg(long, value_name = "MIB", default_value_t = LiveSettings::default().buffer_mib)]
        buffer_mib: u32,
    },
}

#[derive(Args)]
struct What {
    /// TCP port of the servers; may be given several times.
    #[arg(short, long = "port", value_name = "PORT", default_value = "80", value_parser = clap::value_parser!(u16).range(1..))]
    ports: Vec<u16>,
    /// Print the summary, and periods, as JSON: one object a line.
    #[arg(long)]
    json: bool,
    /// Print a line of JSON for each matched request and response; a summary that is not JSON goes to standard error.
    #[arg(long)]
    exchanges: bool,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("{text:?} is not a number of seconds"))?;
    Duration::try_from_secs_f64(seconds)
        .ok()
        .filter(|duration| *duration >= Duration::from_millis(1))
        .ok_or_else(|| format!("{text}: at least 0.001 seconds"))
}

fn main() -> ExitCode {
    let command = Command::parse();
    let result = match &command.action {
        Action::Read { file, what } => read(file, what),
        Action::Live { interface, what, every, seconds, snap_length, buffer_mib } => {
            let settings = LiveSettings {
                interface: interface.clone(),
                ports: what.ports.clone(),
                snap_length: *snap_length,
                buffer_mib: *buffer_mib,
            };
            live(&settings, what, *every, *seconds)
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.downcast_ref().is_some_and(|e: &io::Error| e.kind() == io::ErrorKind::BrokenPipe) => {
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("slackwater-sniffer: {error}");
            ExitCode::FAILURE
        }
    }
}

type AnyError = Box<dyn std::error::Error>;

fn tracker(what: &What, number_all: bool) -> Tracker {
    Tracker::new(TrackerSettings {
        ports: what.ports.clone(),
        keep_exchanges: what.exchanges,
        number_all,
        ..TrackerSettings::default()
    })
}

fn read(file: &Path, what: &What) -> Result<(), AnyError> {
    let mut out = BufWriter::new(io::stdout().lock());
    let mut tracker = tracker(what, true);
    let mut written = Ok(());
    let read = read_file(file, |packet| {
        tracker.packet(packet);
        if what.exchanges && written.is_ok() {
            written = output::exchanges(&mut out, &mut tracker);
        }
    });
    written?;
    let summary = tracker.finish();
    output::exchanges(&mut out, &mut tracker)?;
    output::summary(&mut out, &summary, None, what.json, what.exchanges)?;
    out.flush()?;
    read?;
    Ok(())
}

fn live(
    settings: &LiveSettings,
    what: &What,
    every: Option<Duration>,
    seconds: Option<Duration>,
) -> Result<(), AnyError> {
    let mut out = BufWriter::new(io::stdout().lock());
    let mut live = Live::open(settings)?;
    let mut tracker = tracker(what, false);
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    let start = Instant::now();
    let end = seconds.map(|seconds| start + seconds);
    let mut next_period = every.map(|every| start + every);
    let mut drops_before = 0;
    while !stop.load(Ordering::Relaxed) && end.is_none_or(|end| Instant::now() < end) {
        let wake = [end, next_period].into_iter().flatten().min();
        wait(&live, wake.map(|wake| wake.saturating_duration_since(Instant::now())))?;
        live.drain(&mut tracker)?;
        if what.exchanges {
            output::exchanges(&mut out, &mut tracker)?;
            out.flush()?;
        }
        if let (Some(next), Some(every)) = (next_period, every)
            && Instant::now() >= next
        {
            let period = tracker.take_period(now_ns());
            let drops = live.drops()?;
            output::period(&mut out, &period, drops - drops_before, every, what.json, what.exchanges)?;
            out.flush()?;
            drops_before = drops;
            // A period that was missed is not made up for.
            next_period = Some((next + every).max(Instant::now()));
        }
    }
    live.drain(&mut tracker)?;
    let drops = live.drops()?;
    let summary = tracker.finish();
    output::exchanges(&mut out, &mut tracker)?;
    output::summary(&mut out, &summary, Some(drops), what.json, what.exchanges)?;
    out.flush()?;
    Ok(())
}

/// Waits for packets, but not so long that a request to stop goes unnoticed.
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

fn now_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_nanos() as u64)
}
