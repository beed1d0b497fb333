//! `slackwater-sniffer`: response times from an interface or a capture file.

mod arguments;
mod merge_command;
mod output;
mod run;
mod screen;
mod servers_command;
mod table;

use std::io;
use std::process::ExitCode;

use clap::Parser;
use slackwater_sniffer::LiveSettings;

use arguments::{Action, Command};

type AnyError = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    let command = Command::parse();
    let result = match &command.action {
        Action::Read { file, options } => run::read(file, options),
        Action::Live { interface, options, seconds, snap_length, buffer_mib, user } => {
            let settings = LiveSettings {
                interface: interface.clone(),
                ports: options.ports.iter().map(|port| port.number).collect(),
                servers: Vec::new(),
                snap_length: *snap_length,
                buffer_mib: *buffer_mib,
            };
            run::live(&settings, options, *seconds, user.as_deref())
        }
        Action::Servers(options) => servers_command::servers(options),
        Action::Merge { files, json } => merge_command::merge_files(files, *json),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.downcast_ref().is_some_and(|e: &io::Error| e.kind() == io::ErrorKind::BrokenPipe) => {
            ExitCode::SUCCESS
        }
        Err(error) => {
            if command.action.prints_json() {
                // Who reads it is gone if this fails, and the exit status shows the error all the same.
                let _ = output::error(error.as_ref());
            }
            eprintln!("slackwater-sniffer: {error}");
            ExitCode::FAILURE
        }
    }
}
