//! `slackwater-monitor`: see the library of the same name.

fn main() -> std::process::ExitCode {
    slackwater_monitor::cli::main()
}
