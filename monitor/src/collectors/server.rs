//! The numbers of busy workers of Apache and php-fpm, from their own status pages.
//!
//! A thread of its own fetches the pages once a second. A page that hangs is given up after a second, and never delays
//! the other collectors. A Sample carries the last answers.

use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use slackwater_messages::{Sample, WebServer};
use slackwater_node::status::{Page, apache, php_fpm};
use slackwater_node::system::System;

use super::metric::{count, metrics};
use super::{Collector, CollectorKind, put};
use crate::config::Settings;
use crate::reason::Reason;

const POLL_EVERY: Duration = Duration::from_secs(1);
/// Longest time for a page; a server that takes longer hangs, or has no free worker.
const PAGE_WITHIN: Duration = Duration::from_secs(1);
/// Age up to which an answer is used: each of both pages may take a second, and the pause before them another.
const FRESH_NS: u64 = 4_000_000_000;
/// Fetching goes a few calls deep.
const STACK_BYTES: usize = 256 * 1024;

/// The collector and its metrics.
#[rustfmt::skip]
pub const COLLECTOR: CollectorKind = CollectorKind {
    name: "server",
    open,
    metrics: metrics! {
        Gauge "apache_workers" ["state" = "busy"] "Apache's workers." => |s| count(s.server.as_ref()?.apache_busy_workers);
        Gauge "apache_workers" ["state" = "idle"] "" => |s| count(s.server.as_ref()?.apache_idle_workers);
        Gauge "php_processes" ["state" = "active"] "Processes of php-fpm." => |s| count(s.server.as_ref()?.php_active_processes);
        Gauge "php_processes" ["state" = "idle"] "" => |s| count(s.server.as_ref()?.php_idle_processes);
        Gauge "php_listen_queue_requests" "Requests that wait for a php-fpm process." => |s| count(s.server.as_ref()?.php_listen_queue);
    },
};

/// Opens the collector; the thread starts with the first drain or period, when privileges are given up.
fn open(settings: &Settings, system: &System) -> Box<dyn Collector> {
    let page = |name: &str, text: &str| match text {
        "" => Err(format!("`{name}` is not set").into()),
        text => Page::parse(text).map_err(|error| error.to_string().into()),
    };
    let pages = ConfiguredPages {
        apache: page("server.apache_status_url", &settings.server.apache_status_url),
        php: page("server.php_status", &settings.server.php_status),
    };
    let poller = if pages.apache.is_err() && pages.php.is_err() {
        Poller::Failed("no status page is configured".into())
    } else {
        Poller::Ready(pages)
    };
    Box::new(StatusPages { system: system.clone(), poller, last: None })
}

struct ConfiguredPages {
    apache: Result<Page, Reason>,
    php: Result<Page, Reason>,
}

/// The contents of both pages, or why there is none.
struct PageAnswers {
    apache: Result<apache::ApacheStatus, Reason>,
    php: Result<php_fpm::PhpFpmStatus, Reason>,
}

enum Poller {
    Ready(ConfiguredPages),
    Running(Receiver<PageAnswers>),
    Failed(Reason),
}

struct StatusPages {
    system: System,
    poller: Poller,
    last: Option<(u64, PageAnswers)>,
}

impl StatusPages {
    fn start(&mut self) {
        if !matches!(self.poller, Poller::Ready(_)) {
            return;
        }
        let ended = Poller::Failed("the thread that fetches the pages ended".into());
        if let Poller::Ready(pages) = std::mem::replace(&mut self.poller, ended) {
            let (sender, receiver) = sync_channel(1);
            let thread = thread::Builder::new().name("status".to_owned()).stack_size(STACK_BYTES);
            self.poller = match thread.spawn(move || poll(&pages, &sender)) {
                Ok(_) => Poller::Running(receiver),
                Err(error) => Poller::Failed(format!("no thread to fetch the pages: {error}").into()),
            };
        }
    }
}

/// Fetches the pages until the receiver is dropped.
fn poll(pages: &ConfiguredPages, answers: &SyncSender<PageAnswers>) {
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return };
    let fetch = |page: &Result<Page, Reason>| {
        page.as_ref()
            .map_err(Reason::clone)?
            .fetch(&runtime, PAGE_WITHIN)
            .map_err(|error| Reason::from(error.to_string()))
    };
    loop {
        let start = Instant::now();
        let answer = PageAnswers {
            apache: fetch(&pages.apache).and_then(|page| {
                apache::ApacheStatus::parse(&page)
                    .ok_or_else(|| "the page has no BusyWorkers: it must end in ?auto".into())
            }),
            php: fetch(&pages.php).and_then(|page| {
                php_fpm::PhpFpmStatus::parse(&page)
                    .ok_or_else(|| "the page is not php-fpm's status as JSON: it must end in ?json".into())
            }),
        };
        if let Err(TrySendError::Disconnected(_)) = answers.try_send(answer) {
            return;
        }
        thread::sleep(POLL_EVERY.saturating_sub(start.elapsed()));
    }
}

impl Collector for StatusPages {
    fn collect(&mut self, sample: &mut Sample) -> Result<(), Reason> {
        self.drain();
        let now_ns = (self.system.monotonic_ns)();
        let receiver = match &self.poller {
            Poller::Running(receiver) => receiver,
            Poller::Failed(reason) => return Err(reason.clone()),
            Poller::Ready(_) => return Ok(()),
        };
        if let Some(answer) = receiver.try_iter().last() {
            self.last = Some((now_ns, answer));
        }
        let (fetched_ns, answer) = self.last.as_ref().ok_or("the status pages have not answered yet")?;
        if now_ns.saturating_sub(*fetched_ns) > FRESH_NS {
            return Err("the last answer is more than 4 s old".into());
        }
        sample.server = Some(section(sample, answer)?);
        Ok(())
    }

    fn drain(&mut self) {
        self.start();
    }
}

/// The section, unless there is no page at all.
fn section(sample: &mut Sample, answer: &PageAnswers) -> Result<WebServer, Reason> {
    let PageAnswers { apache, php } = answer;
    if let (Err(apache), Err(php)) = (apache, php) {
        return Err(format!("{apache}; {php}").into());
    }
    let mut server = WebServer::default();
    let workers = |read: fn(&apache::ApacheStatus) -> u64| apache.as_ref().map(read).map_err(Reason::clone);
    put!(sample, server.apache_busy_workers, workers(|status| status.busy_workers));
    put!(sample, server.apache_idle_workers, workers(|status| status.idle_workers));
    let processes = |read: fn(&php_fpm::PhpFpmStatus) -> u64| php.as_ref().map(read).map_err(Reason::clone);
    put!(sample, server.php_active_processes, processes(|fpm| fpm.active));
    put!(sample, server.php_idle_processes, processes(|fpm| fpm.idle));
    let queue =
        php.as_ref().map_err(Reason::clone).and_then(|fpm| fpm.queue().map_err(|error| error.to_string().into()));
    put!(sample, server.php_listen_queue, queue);
    let reached = processes(|fpm| fpm.max_children_reached);
    put!(sample, server.php_max_children_reached, reached);
    Ok(server)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_pages_no_thread_is_started() {
        let mut sample = Sample::default();
        COLLECTOR.open(&Settings::default(), &System::machine()).collect(&mut sample);
        assert_eq!((sample.server, sample.absent["server"].as_str()), (None, "no status page is configured"));
    }

    #[test]
    fn the_page_that_is_there_is_given_and_the_other_has_its_reason() {
        let mut sample = Sample::default();
        let apache = apache::ApacheStatus::parse("BusyWorkers: 3\nIdleWorkers: 61\n").ok_or_else(|| "".into());
        let answer = PageAnswers { apache, php: Err("`server.php_status` is not set".into()) };
        let server = section(&mut sample, &answer).expect("a value");
        assert_eq!((server.apache_busy_workers, server.apache_idle_workers), (Some(3), Some(61)));
        assert_eq!(server.php_listen_queue, None);
        assert_eq!(sample.absent["server.php_listen_queue"], "`server.php_status` is not set");
        assert_eq!(sample.absent.len(), 4);
    }

    #[test]
    fn a_page_that_hangs_holds_up_no_period() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let mut settings = Settings::default();
        let address = listener.local_addr().expect("an address");
        settings.server.apache_status_url = format!("http://{address}/server-status?auto");
        let mut collector = COLLECTOR.open(&settings, &System::machine());
        let mut sample = Sample::default();
        collector.collect(&mut sample);
        // The page was asked for, and nobody answers.
        let _connection = listener.accept().expect("a connection");
        for _ in 0..3 {
            collector.collect(&mut sample);
        }
        assert_eq!(sample.absent["server"], "the status pages have not answered yet");
    }
}
