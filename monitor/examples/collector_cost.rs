//! CPU time that each collector takes for one period, on this machine: `collector_cost [THREADS]`.
//!
//! The process itself plays the web server: so many threads (100) each have a turn in every period.

use std::time::Duration;

use rustix::thread::ClockId;
use slackwater_messages::Sample;
use slackwater_monitor::collectors::COLLECTORS;
use slackwater_monitor::config::Settings;
use slackwater_monitor::timer::clock_ns;
use slackwater_node::system::System;

const PERIOD: Duration = Duration::from_millis(200);
const PERIODS: usize = 50;

fn main() {
    let threads = std::env::args().nth(1).and_then(|count| count.parse().ok()).unwrap_or(100);
    for _ in 0..threads {
        std::thread::spawn(|| {
            loop {
                std::thread::sleep(PERIOD / 2);
            }
        });
    }
    let mut settings = Settings::default();
    settings.processes.names = vec!["collector_cost".to_owned()];
    let system = System::machine();
    let mut collectors: Vec<_> = COLLECTORS
        .iter()
        .filter(|kind| kind.name != "canary")
        .map(|kind| (kind.name, kind.open(&settings, &system), Vec::new()))
        .collect();
    let mut sample = Sample::default();
    for _ in 0..PERIODS {
        std::thread::sleep(PERIOD);
        sample = Sample::default();
        for (_, collector, taken) in &mut collectors {
            let start = cpu_us();
            collector.collect(&mut sample);
            taken.push(cpu_us() - start);
        }
    }
    println!("{threads} threads; microseconds of CPU time a period: mean, median, highest");
    let mut sum = 0.0;
    for (name, _, taken) in &mut collectors {
        taken.sort_by(f64::total_cmp);
        let mean = taken.iter().sum::<f64>() / PERIODS as f64;
        sum += mean;
        println!("{name:<10} {mean:8.1} {:8.1} {:8.1}", taken[PERIODS / 2], taken[PERIODS - 1]);
    }
    println!(
        "{:<10} {sum:8.1}   {:.3}% of one core at {} s",
        "all",
        sum / 1e4 / PERIOD.as_secs_f64(),
        PERIOD.as_secs_f64()
    );
    println!("sched: {:?}", sample.sched);
}

fn cpu_us() -> f64 {
    clock_ns(ClockId::ThreadCPUTime) as f64 / 1e3
}
