//! The command line of `slackwater-monitor`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Arg, ArgAction, ArgMatches, Args, FromArgMatches, Parser, Subcommand};
use slackwater_node::cli::{ConfigCommand, pretty_json, print};
use slackwater_node::log;
use slackwater_node::settings::{file_or_usual, load, nearest, parse};
use slackwater_node::system::System;

use crate::collectors::COLLECTORS;
use crate::config::{self, Settings};
use crate::error::Error;
use crate::kernel_file::line;
use crate::sampler::Sampler;
use crate::sandbox;
use crate::{check, counters, run, table};

/// Where the package puts the node's configuration.
const USUAL_FILE: &str = "/etc/slackwater/node.toml";

#[derive(Parser)]
#[command(
    version,
    about = "Publishes what a web server's VM can see of itself, several times a second",
    after_help = "Example:\n  slackwater-monitor once --json"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Publish a Sample each period until SIGTERM or SIGINT
    #[command(after_help = "Example:\n  slackwater-monitor run --config /etc/slackwater/node.toml")]
    Run {
        /// The node's configuration [default: /etc/slackwater/node.toml]
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
        #[command(flatten)]
        off: SwitchedOff,
    },
    /// Measure one period and print the Sample
    #[command(after_help = "Example:\n  slackwater-monitor once --config /etc/slackwater/node.toml --json")]
    Once {
        /// The node's configuration [default: /etc/slackwater/node.toml if it is there, else the settings' defaults]
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
        #[command(flatten)]
        off: SwitchedOff,
        /// Print the Sample as it would go to the bus
        #[arg(long)]
        json: bool,
    },
    /// List each hardware event: can it be encoded, opened, does it count, or why not
    #[command(after_help = "Example:\n  slackwater-monitor counters --config /etc/slackwater/node.toml")]
    Counters {
        /// The node's configuration [default: /etc/slackwater/node.toml if it is there, else the settings' defaults]
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
        /// Print as JSON
        #[arg(long)]
        json: bool,
    },
    /// Say line by line what works on this machine and what each missing thing would take
    #[command(after_help = "Example:\n  slackwater-monitor check\n\n\
                      Exit status 1 when something that is needed is missing.")]
    Check {
        /// The node's configuration [default: /etc/slackwater/node.toml if it is there, else the settings' defaults]
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
        #[command(flatten)]
        off: SwitchedOff,
        /// Print as JSON
        #[arg(long)]
        json: bool,
    },
    /// Check a configuration, or list all settings
    #[command(
        after_help = "Examples:\n  slackwater-monitor config /etc/slackwater/node.toml\n  slackwater-monitor config --list"
    )]
    Config(ConfigCommand),
}

/// Names of collectors that the command line switches off: a flag `--no-collector.NAME` for each collector.
struct SwitchedOff(Vec<String>);

fn flag(collector: &str) -> String {
    format!("no-collector.{collector}")
}

impl Args for SwitchedOff {
    fn augment_args(command: clap::Command) -> clap::Command {
        command.args(COLLECTORS.iter().map(|kind| {
            let help = format!("Switch the collector `{}` off", kind.name);
            let arg = Arg::new(flag(kind.name)).long(flag(kind.name)).action(ArgAction::SetTrue);
            arg.help(help).help_heading("Collectors")
        }))
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        SwitchedOff::augment_args(command)
    }
}

impl FromArgMatches for SwitchedOff {
    fn from_arg_matches(matches: &ArgMatches) -> Result<SwitchedOff, clap::Error> {
        let off = COLLECTORS.iter().map(|kind| kind.name).filter(|name| matches.get_flag(&flag(name)));
        Ok(SwitchedOff(off.map(str::to_owned).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = SwitchedOff::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Carries out the command line.
pub fn main() -> ExitCode {
    log::init(config::PROGRAM);
    let done = match Cli::parse().command {
        Command::Run { config, off } => run(config, off),
        Command::Once { config, off, json } => once(config, off, json),
        Command::Counters { config, json } => counters(config, json),
        Command::Check { config, off, json } => check_machine(config, off, json),
        Command::Config(config) => {
            let load = |file: &Path| settings(&System::machine(), Some(file.to_owned()));
            config.run(load, |settings| format!("node {}, pool {}", settings.node, settings.pool))
        }
    };
    match done {
        Ok(code) => code,
        Err(error) => {
            match error {
                Error::Config(faults) => eprintln!("{faults}"),
                error => tracing::error!("{error}"),
            }
            ExitCode::FAILURE
        }
    }
}

fn settings(system: &System, file: Option<PathBuf>) -> Result<Settings, Error> {
    let hostname = line(&system.proc.join("sys/kernel/hostname")).unwrap_or_default();
    let settings: Settings = match file {
        Some(file) => load(&file, &hostname),
        None => parse("", "defaults", &hostname),
    }?;
    let names: Vec<&str> = COLLECTORS.iter().map(|kind| kind.name).collect();
    match settings.collectors.off.iter().find(|name| !names.contains(&name.as_str())) {
        None => Ok(settings),
        Some(unknown) => {
            let hint = nearest(unknown, &names).map_or(String::new(), |near| format!("; did you mean {near:?}?"));
            Err(Error::UnknownCollector { name: unknown.clone(), hint })
        }
    }
}

/// The settings without the collectors that the command line switches off.
fn settings_without(off: SwitchedOff, system: &System, file: Option<PathBuf>) -> Result<Settings, Error> {
    let mut settings = settings(system, file)?;
    settings.collectors.off.extend(off.0);
    Ok(settings)
}

fn run(config: Option<PathBuf>, off: SwitchedOff) -> Result<ExitCode, Error> {
    let system = System::machine();
    let config = config.unwrap_or_else(|| PathBuf::from(USUAL_FILE));
    let settings = settings_without(off, &system, Some(config))?;
    run::run(&settings, &system)?;
    Ok(ExitCode::SUCCESS)
}

fn once(config: Option<PathBuf>, off: SwitchedOff, json: bool) -> Result<ExitCode, Error> {
    let system = System::machine();
    let settings = settings_without(off, &system, file_or_usual(config, USUAL_FILE))?;
    let mut sampler = Sampler::open(&settings, &system)?;
    sandbox::enter(&settings, &system)?;
    let sample = sampler.take_after(Duration::from_secs_f64(settings.period_s));
    if json {
        Ok(print(&(String::from_utf8_lossy(&slackwater_messages::encode(&sample)) + "\n"))?)
    } else {
        Ok(print(&table::table(&sample))?)
    }
}

fn counters(config: Option<PathBuf>, json: bool) -> Result<ExitCode, Error> {
    let system = System::machine();
    let settings = settings(&system, file_or_usual(config, USUAL_FILE))?;
    let rows = counters::list(&settings, &system)?;
    Ok(print(&if json { pretty_json(&rows) } else { counters::table(&rows) })?)
}

fn check_machine(config: Option<PathBuf>, off: SwitchedOff, json: bool) -> Result<ExitCode, Error> {
    let system = System::machine();
    let file = file_or_usual(config, USUAL_FILE);
    let source = match &file {
        Some(file) => file.display().to_string(),
        None => format!("defaults, since {USUAL_FILE} is not there"),
    };
    let settings = settings_without(off, &system, file)?;
    let items = check::check(&settings, &source, &system);
    print(&if json { pretty_json(&items) } else { check::table(&items) })?;
    Ok(if check::is_enough(&items) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
