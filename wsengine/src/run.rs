//! The bus, the signals and the engine together. The engine has a thread of its own, because tests and reloads take
//! time.

use std::cell::Cell;
use std::fs::File;
use std::path::Path;
use std::rc::Rc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use async_nats::Client;
use async_nats::connection::State;
use slackwater_messages::{Change, ChangeCause, Knobs, Order, VERSION, Value, encode};
use slackwater_node::bus::connect;
use slackwater_node::notify::Notify;
use slackwater_node::system::System;
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::watch;
use tokio_stream::StreamExt;

use crate::config::{PROGRAM, Settings};
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::identity::{HEADER, Identity};
use crate::knobs;
use crate::state::Store;

/// Most messages that wait for the connection's task.
const MOST_QUEUED: usize = 64;
/// A restore at the end of the program that takes longer than this is left to the next start.
const END_WITHIN_S: f64 = 60.0;
/// Longest time between two ticks, each of which is reported to the watchdog of the service manager.
const TICK_AT_LEAST_EVERY_S: f64 = 5.0;
/// Most commands that are carried out between two ticks of the engine.
const MOST_COMMANDS: usize = 32;
/// Time between two attempts to send the Changes that wait.
const OFFER_EVERY: Duration = Duration::from_secs(1);
/// Most Changes that are sent in that time: half of what the controller accepts from a node.
const CHANGES_AT_ONCE: usize = 10;

/// The knobs are reported this often, and after each Change.
const REPORT_EVERY_S: f64 = 5.0;

/// A command for the engine's thread.
enum EngineCommand {
    Order {
        payload: Vec<u8>,
        signature: Option<String>,
    },
    /// Put everything back and go on.
    Restore,
    /// Put everything back and end.
    End,
}

/// Carries out Orders until SIGTERM or SIGINT; SIGUSR1 puts everything back.
///
/// # Errors
/// Why it cannot start, or cannot put everything back at its end.
pub fn run(settings: &Settings) -> Result<()> {
    let identity = Identity::load(Path::new(&settings.orders.public_key))?;
    let store = Store::open(Path::new(&settings.state_dir))?;
    let _lock = lock(settings, &store)?;
    // An unreadable state is an error before any Order is received.
    store.load()?;
    let (commands, received) = channel();
    let (publish, published) = unbounded_channel();
    let (report, reported) = watch::channel(None);
    let engine_settings = settings.clone();
    let engine = std::thread::spawn(move || work(engine_settings, identity, store, &received, publish, Some(&report)));
    event_loop()?.block_on(serve_bus(settings, &commands, published, reported))?;
    engine.join().map_err(|_| engine_failed())?
}

/// Changes a knob from the command line for `lease_s` seconds, or until a signal, and shows each Change. Returns
/// whether the knob was changed.
///
/// # Errors
/// Why it cannot start, or cannot put everything back.
pub fn try_by_hand(
    settings: &Settings,
    knob: &str,
    value: Value,
    lease_s: f64,
    mut show: impl FnMut(&Change),
) -> Result<bool> {
    let store = Store::open(Path::new(&settings.state_dir))?;
    let _lock = lock(settings, &store)?;
    let now_unix_s = System::machine().unix_s();
    let order = Order {
        v: VERSION,
        id: format!("by-hand-{}-{:.0}", std::process::id(), now_unix_s * 1e6),
        node: settings.node.clone(),
        pool: settings.pool.clone(),
        time_unix_s: now_unix_s,
        knob: knob.to_owned(),
        value,
        lease_s,
        reason: "tried by hand".to_owned(),
        by: "hand".to_owned(),
    };
    let payload = encode(&order);
    let (identity, signature) = Identity::of_this_process(&payload)?;
    let (commands, received) = channel();
    let (publish, mut published) = unbounded_channel::<Change>();
    let engine_settings = settings.clone();
    let engine = std::thread::spawn(move || work(engine_settings, identity, store, &received, publish, None));
    let _ = commands.send(EngineCommand::Order { payload, signature: Some(signature) });
    let mut done = false;
    event_loop()?.block_on(async {
        let mut signals = Signals::new()?;
        loop {
            tokio::select! {
                change = published.recv() => {
                    // The engine owns the sender: without one the engine has ended.
                    let Some(change) = change else { return Ok::<(), Error>(()) };
                    show(&change);
                    let is_ours = change.what == knob || change.what == "order";
                    let is_back = change.cause.is_some_and(ChangeCause::is_put_back);
                    done |= is_ours && change.applied && !is_back;
                    if is_ours && (is_back && done || !change.applied) {
                        let _ = commands.send(EngineCommand::End);
                    }
                }
                command = signals.next() => { let _ = commands.send(command); }
            }
        }
    })?;
    engine.join().map_err(|_| engine_failed())??;
    Ok(done)
}

fn engine_failed() -> Error {
    Error::Process("the engine failed".to_owned())
}

fn lock(settings: &Settings, store: &Store) -> Result<File> {
    store.lock().map_err(|pid| match pid {
        Some(pid) => Error::State(format!("{}: process {pid} runs on this state already", settings.state_dir)),
        None => Error::State(format!("{}: the state cannot be locked", settings.state_dir)),
    })
}

fn event_loop() -> Result<Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Error::Process(format!("no event loop: {error}")))
}

/// The signals, each with its command for the engine.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    put_back: Signal,
}

impl Signals {
    fn new() -> Result<Signals> {
        let listen = |kind| signal(kind).map_err(|error| Error::Process(format!("cannot listen for signals: {error}")));
        Ok(Signals {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
            put_back: listen(SignalKind::user_defined1())?,
        })
    }

    async fn next(&mut self) -> EngineCommand {
        tokio::select! {
            _ = self.terminate.recv() => EngineCommand::End,
            _ = self.interrupt.recv() => EngineCommand::End,
            _ = self.put_back.recv() => EngineCommand::Restore,
        }
    }
}

/// The engine's thread: carries out commands, and ticks.
fn work(
    settings: Settings,
    identity: Identity,
    store: Store,
    commands: &Receiver<EngineCommand>,
    publish: UnboundedSender<Change>,
    report: Option<&watch::Sender<Option<Knobs>>>,
) -> Result<()> {
    let system = System::machine();
    let knobs = knobs::make_all(&settings, &system);
    let news = Rc::new(Cell::new(true));
    let is_news = news.clone();
    let send = Box::new(move |change| {
        is_news.set(true);
        // Nobody receives only when the program ends; the Change is on disk too.
        let _ = publish.send(change);
    });
    let clock = system.clone();
    let mut engine = Engine::open(settings, identity, system, knobs, store, send)?;
    let mut notify = Notify::ready();
    let (mut end_s, mut reported_s) = (None, f64::NEG_INFINITY);
    loop {
        let due_in_s = engine.tick().min(TICK_AT_LEAST_EVERY_S);
        notify.alive(Instant::now());
        let wait_s = if news.get() { 0.0 } else { due_in_s };
        // Orders that arrive together are carried out together, however long the disk takes for each.
        let first = commands.recv_timeout(Duration::from_secs_f64(wait_s));
        for command in std::iter::once(first).chain(commands.try_iter().map(Ok)).take(MOST_COMMANDS) {
            match command {
                Ok(EngineCommand::Order { payload, signature }) if end_s.is_none() => {
                    engine.order(&payload, signature.as_deref());
                    news.set(true);
                }
                Ok(EngineCommand::Order { .. }) | Err(RecvTimeoutError::Timeout) => {}
                Ok(EngineCommand::Restore) => engine.end_all(ChangeCause::ByHand, "put back by hand"),
                Ok(EngineCommand::End) | Err(RecvTimeoutError::Disconnected) => {
                    notify.stopping();
                    engine.end_all(ChangeCause::EngineEnded, "wsengine ends");
                    end_s.get_or_insert(clock.monotonic_s() + END_WITHIN_S);
                }
            }
        }
        // After the Orders: the controller takes an Order that no report mentions for lost.
        let is_due = news.take() || clock.monotonic_s() - reported_s >= REPORT_EVERY_S;
        if let Some(report) = report.filter(|_| is_due) {
            report.send_replace(Some(engine.report()));
            reported_s = clock.monotonic_s();
        }
        if let Some(end_s) = end_s {
            if engine.is_idle() {
                return Ok(());
            }
            if clock.monotonic_s() >= end_s {
                let message = "not everything could be put back; the next start tries again";
                return Err(Error::Process(message.to_owned()));
            }
        }
    }
}

/// The subject of the Orders for this node.
pub fn orders(settings: &Settings) -> String {
    format!("slackwater.order.{}.{}", settings.pool, settings.node)
}

/// Signals and the bus, until the engine has ended.
async fn serve_bus(
    settings: &Settings,
    commands: &Sender<EngineCommand>,
    mut published: UnboundedReceiver<Change>,
    mut reported: watch::Receiver<Option<Knobs>>,
) -> Result<()> {
    let mut signals = Signals::new()?;
    let access = settings.bus.read()?;
    let client = connect(&settings.bus.url, access, PROGRAM, &settings.node, MOST_QUEUED).await?;
    let subject = orders(settings);
    let mut orders =
        client.subscribe(subject.clone()).await.map_err(|error| Error::Process(format!("{subject}: {error}")))?;
    let outbox = Store::open(Path::new(&settings.state_dir))?;
    let mut offer = tokio::time::interval(OFFER_EVERY);
    let mut left = CHANGES_AT_ONCE;
    let knobs = format!("slackwater.knobs.{}.{}", settings.pool, settings.node);
    tracing::info!("listening for Orders on {subject}");
    loop {
        tokio::select! {
            Some(message) = orders.next() => {
                let signature = message.headers.as_ref().and_then(|headers| headers.get(HEADER)).map(ToString::to_string);
                let _ = commands.send(EngineCommand::Order { payload: message.payload.to_vec(), signature });
            }
            // The engine owns the sender: without one the engine has ended.
            change = published.recv() => match change {
                Some(change) => deliver(&client, settings, &outbox, Some(&change), &mut left).await,
                None => break,
            },
            Ok(()) = reported.changed() => {
                let report = reported.borrow_and_update().as_ref().map(encode);
                if let Some(report) = report.filter(|_| client.connection_state() == State::Connected) {
                    // A report that is lost does no harm, because the next one is due soon.
                    let _ = client.publish(knobs.clone(), report.into()).await;
                }
            }
            _ = offer.tick() => {
                left = CHANGES_AT_ONCE;
                deliver(&client, settings, &outbox, None, &mut left).await;
            }
            command = signals.next() => { let _ = commands.send(command); }
        }
    }
    deliver(&client, settings, &outbox, None, &mut left).await;
    tracing::info!("ended by a signal");
    Ok(())
}

/// Sends the oldest waiting Changes, and a fresh one that could not be kept on disk. Changes that the server has
/// accepted wait no longer. `left` is the number of Changes that may still be sent now.
async fn deliver(client: &Client, settings: &Settings, outbox: &Store, fresh: Option<&Change>, left: &mut usize) {
    if client.connection_state() != State::Connected || *left == 0 {
        return;
    }
    let mut waiting = outbox.waiting();
    let subject = format!("slackwater.change.{}.{}", settings.pool, settings.node);
    // On a full disk a Change is sent now or never. One that another process just removed from the disk is sent twice,
    // with the same id.
    let unkept = fresh.filter(|fresh| waiting.iter().all(|(_, kept)| kept.id != fresh.id));
    waiting.truncate(*left - usize::from(unkept.is_some()));
    *left -= waiting.len() + usize::from(unkept.is_some());
    for change in waiting.iter().map(|(_, kept)| kept).chain(unkept) {
        if client.publish(subject.clone(), encode(change).into()).await.is_err() {
            return;
        }
    }
    let flushed = tokio::time::timeout(Duration::from_secs(2), client.flush()).await;
    if !waiting.is_empty() && matches!(flushed, Ok(Ok(()))) && client.connection_state() == State::Connected {
        for (path, _) in &waiting {
            outbox.received(path);
        }
    }
}
