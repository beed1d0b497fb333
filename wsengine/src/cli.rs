//! The command line of `slackwater-wsengine`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use rustix::process::Signal;
use serde_json::{Value as Json, json};
use slackwater_messages::{Change, ChangeCause, Value, encode};
use slackwater_node::cli::{ConfigCommand, print};
use slackwater_node::files::text;
use slackwater_node::log;
use slackwater_node::login::{Caller, NoBus};
use slackwater_node::settings::load;
use slackwater_node::system::System;

use crate::config::{PROGRAM, Settings};
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::identity::Identity;
use crate::knobs::{self, show};
use crate::processes::send_signal;
use crate::run;
use crate::state::{State, Store};
use crate::wait::wait_for;

/// Where the package puts the configuration.
const USUAL_FILE: &str = "/etc/slackwater/wsengine.toml";

/// How long `restore` waits for the running process.
const RESTORED_WITHIN_S: f64 = 60.0;

#[derive(Parser)]
#[command(
    version,
    about = "Retunes this web server for a while, by signed Orders, and puts everything back",
    after_help = "Example:\n  slackwater-wsengine check --config /etc/slackwater/wsengine.toml"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Args)]
struct Common {
    /// The configuration
    #[arg(long, value_name = "FILE", default_value = USUAL_FILE)]
    config: PathBuf,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Subcommand)]
enum Command {
    /// Carry out Orders until SIGTERM or SIGINT, then put everything back
    #[command(after_help = "Example:\n  slackwater-wsengine run --config /etc/slackwater/wsengine.toml")]
    Run {
        /// The configuration
        #[arg(long, value_name = "FILE", default_value = USUAL_FILE)]
        config: PathBuf,
    },
    /// Show what is set at this moment, by which Order and until when
    #[command(after_help = "Example:\n  slackwater-wsengine status --config /etc/slackwater/wsengine.toml --json")]
    Status(Common),
    /// Put everything back now, also after a crash
    #[command(after_help = "Example:\n  slackwater-wsengine restore --config /etc/slackwater/wsengine.toml")]
    Restore(Common),
    /// Try each knob that the configuration lists without changing anything: what it is, or why it cannot be had here
    #[command(after_help = "Example:\n  slackwater-wsengine check\n\n\
                      Exit status 1 when a knob, the key or the state cannot be used; a bus that is away may come back.")]
    Check(Common),
    /// Set a knob for some seconds, within its bounds, and put it back
    #[command(
        after_help = "Example:\n  slackwater-wsengine try --config /etc/slackwater/wsengine.toml cpu.frequency performance --seconds 60"
    )]
    Try {
        #[command(flatten)]
        common: Common,
        /// The knob
        knob: String,
        /// A whole number or a word
        value: String,
        /// For how long; a signal ends it earlier
        #[arg(long, default_value_t = 10.0)]
        seconds: f64,
    },
    /// Check a configuration, or list all settings
    #[command(
        after_help = "Examples:\n  slackwater-wsengine config /etc/slackwater/wsengine.toml\n  slackwater-wsengine config --list"
    )]
    Config(ConfigCommand),
}

/// Carries out the command line.
pub fn main() -> ExitCode {
    log::init(PROGRAM);
    let done = match Cli::parse().command {
        Command::Run { config } => settings(&config).and_then(|settings| {
            run::run(&settings).map_err(|error| error.during(PROGRAM))?;
            Ok(ExitCode::SUCCESS)
        }),
        Command::Status(common) => status(&common),
        Command::Restore(common) => restore(&common),
        Command::Check(common) => check(&common),
        Command::Try { common, knob, value, seconds } => try_by_hand(&common, &knob, &value, seconds),
        Command::Config(config) => config.run(settings, describe),
    };
    done.unwrap_or_else(|error| {
        eprintln!("{error}");
        ExitCode::FAILURE
    })
}

fn settings(file: &Path) -> Result<Settings> {
    let hostname = text(Path::new("/proc/sys/kernel/hostname")).unwrap_or_default();
    load(file, &hostname).map_err(|error| Error::Unavailable(error.to_string()))
}

fn describe(settings: &Settings) -> String {
    let knobs: Vec<&str> =
        knobs::KNOBS.iter().filter(|kind| !(kind.allowed)(settings).is_empty()).map(|kind| kind.name).collect();
    let knobs = if knobs.is_empty() { "no knob".to_owned() } else { knobs.join(", ") };
    format!("node {}, pool {}; {knobs}", settings.node, settings.pool)
}

fn status(common: &Common) -> Result<ExitCode> {
    let settings = settings(&common.config)?;
    let store = Store::open(Path::new(&settings.state_dir))?;
    let (running, state, waiting) = (store.running(), store.load()?, store.waiting().len());
    if common.json {
        let status = json!({
            "node": settings.node, "pool": settings.pool, "running": running,
            "leases": state.leases, "changes_waiting": waiting,
        });
        return Ok(print(&format!("{status}\n"))?);
    }
    let mut lines = vec![match running {
        Some(pid) => format!("{} in pool {}: running as process {pid}", settings.node, settings.pool),
        None => format!("{} in pool {}: not running", settings.node, settings.pool),
    }];
    if state.leases.is_empty() {
        lines.push("  no knob is set".to_owned());
    }
    let now_unix_s = System::machine().unix_s();
    for (name, lease) in &state.leases {
        lines.push(format!(
            "  {name} {} -> {}, {:.0} s left, by {} ({}): {}",
            show(&lease.before),
            show(&lease.effective),
            lease.until_unix_s - now_unix_s,
            lease.by,
            lease.order_id,
            lease.reason
        ));
    }
    if waiting > 0 {
        lines.push(format!("  {waiting} Changes wait for the bus"));
    }
    Ok(print(&(lines.join("\n") + "\n"))?)
}

/// Signals the running process to put everything back; without one, puts everything back itself.
fn restore(common: &Common) -> Result<ExitCode> {
    let settings = settings(&common.config)?;
    let store = Store::open(Path::new(&settings.state_dir))?;
    let before = store.load()?;
    if let Ok(_lock) = store.lock() {
        restore_here(&settings)?;
    } else {
        let pid = store.running();
        let unknown = || Error::State("another process holds the state, and its number is not known".to_owned());
        send_signal(pid.ok_or_else(unknown)?, Signal::USR1, PROGRAM)?;
        let done = || store.load().ok().filter(|state| state.leases.is_empty());
        wait_for(RESTORED_WITHIN_S, done).ok_or_else(|| unfinished(&store))?;
    }
    let knobs: Vec<&String> = before.leases.keys().collect();
    if common.json {
        return Ok(print(&format!("{}\n", json!({ "restored": knobs })))?);
    }
    let names: Vec<&str> = knobs.iter().map(|name| name.as_str()).collect();
    let nothing = || "no knob was set\n".to_owned();
    Ok(print(&if names.is_empty() { nothing() } else { format!("put back: {}\n", names.join(", ")) })?)
}

fn restore_here(settings: &Settings) -> Result<()> {
    // This engine receives no Orders, so it needs no key.
    let identity = Identity::nobody();
    let system = System::machine();
    let knobs = knobs::make_all(settings, &system);
    let store = Store::open(Path::new(&settings.state_dir))?;
    let mut engine = Engine::open(settings.clone(), identity, system, knobs, store, Box::new(|_| {}))?;
    engine.end_all(ChangeCause::ByHand, "put back by hand");
    let done = wait_for(RESTORED_WITHIN_S, || {
        engine.tick();
        engine.is_idle().then_some(())
    });
    done.ok_or_else(|| {
        Store::open(Path::new(&settings.state_dir)).map_or_else(|error| error, |store| unfinished(&store))
    })
}

fn unfinished(store: &Store) -> Error {
    let left = store.load().unwrap_or_else(|_| State::default());
    let knobs = left.leases.keys().cloned().collect::<Vec<_>>().join(", ");
    Error::Process(format!("not put back yet: {knobs}"))
}

/// Logs in as the program does.
fn bus(settings: &Settings) -> Result<String> {
    let listens_to = run::orders(settings);
    let caller = Caller { bus: &settings.bus, pool: &settings.pool, node: &settings.node, listens_to: &listens_to };
    caller.log_in().map_err(|NoBus { why, remedy }| Error::Unavailable(format!("{why}; {remedy}")))
}

fn check(common: &Common) -> Result<ExitCode> {
    let settings = settings(&common.config)?;
    let mut rows: Vec<(String, Result<String>, Json)> = Vec::new();
    let key = Identity::load(Path::new(&settings.orders.public_key)).map(|_| settings.orders.public_key.clone());
    rows.push(("orders.public_key".to_owned(), key, Json::Null));
    let state = Store::open(Path::new(&settings.state_dir)).and_then(|store| store.load());
    rows.push((
        "state_dir".to_owned(),
        state.as_ref().map(|_| settings.state_dir.clone()).map_err(Clone::clone),
        Json::Null,
    ));
    let state_now = state.unwrap_or_default();
    for (name, knob) in knobs::make_all(&settings, &System::machine()) {
        let baseline = if state_now.leases.contains_key(name) { Ok(()) } else { knob.baseline().map(|_| ()) };
        let reading = baseline.and_then(|()| knob.read());
        let value = reading.as_ref().map_or(Json::Null, |reading| json!(reading.value));
        rows.push((
            name.to_owned(),
            reading.map(|reading| format!("{} ({})", show(&reading.value), reading.how)),
            value,
        ));
    }
    // The bus is not needed to put settings back, so its absence is no failure.
    let bus = bus(&settings);
    let good = rows.iter().all(|(_, result, _)| result.is_ok());
    let code = if good { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    if common.json {
        let rows: Vec<Json> = rows
            .into_iter()
            .map(|(name, result, value)| match result {
                Ok(how) => json!({"name": name, "usable": true, "value": value, "how": how}),
                Err(why) => json!({"name": name, "usable": false, "why": why.to_string()}),
            })
            .collect();
        let bus = match bus {
            Ok(how) => json!({"works": true, "how": how}),
            Err(why) => json!({"works": false, "why": why.to_string()}),
        };
        print(&format!("{}\n", json!({"usable": good, "bus": bus, "checks": rows})))?;
        return Ok(code);
    }
    print(&match bus {
        Ok(how) => format!("fine  bus: {how}\n"),
        Err(why) => format!("away  bus: {why}\n"),
    })?;
    for (name, result, _) in rows {
        print(&match result {
            Ok(how) => format!("fine  {name}: {how}\n"),
            Err(why) => format!("not here  {name}: {why}\n"),
        })?;
    }
    Ok(code)
}

fn try_by_hand(common: &Common, knob: &str, value: &str, seconds: f64) -> Result<ExitCode> {
    let settings = settings(&common.config)?;
    let value = value.parse().map_or_else(|_| Value::Word(value.to_owned()), Value::Integer);
    // Without --json the engine's own log lines are the output.
    let show = |change: &Change| {
        if common.json {
            let _ = print(&(String::from_utf8_lossy(&encode(change)) + "\n"));
        }
    };
    let done = run::try_by_hand(&settings, knob, value, seconds, show).map_err(|error| error.during(PROGRAM))?;
    Ok(if done { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
