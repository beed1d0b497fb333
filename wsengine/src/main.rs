//! `slackwater-wsengine`: see the library of the same name.

fn main() -> std::process::ExitCode {
    slackwater_wsengine::cli::main()
}
