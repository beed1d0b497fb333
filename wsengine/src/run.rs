//! The bus, the signals and the engine together. The engine has a thread of its own, since tests and reloads take time.

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
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::watch;
use tokio_stream::StreamExt;

use crate::config::{PROGRAM, Settings};
use crate::engine::Engine;
use crate::identity::{HEADER, Identity};
use crate::knobs;
use crate::state::Store;
use crate::world::World;

/// Commands that wait for the connection's task.
const WAITING: usize = 64;
/// A restore at the end that takes longer than this is left to the next start.
const END_WITHIN_S: f64 = 60.0;
/// The watchdog of the service manager hears of each turn.
const TURN_AT_LEAST_EVERY_S: f64 = 5.0;
/// So many things are heard at most before the engine does what is due.
const TOGETHER: usize = 32;
/// Changes that wait are offered to the bus again after this time.
const OFFER_EVERY: Duration = Duration::from_secs(1);

/// What the knobs are is told this often, and after each Change.
const REPORT_EVERY_S: f64 = 5.0;

/// What the engine is told.
enum Told {
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
/// What keeps it from starting, or from putting everything back at its end.
pub fn run(settings: &Settings) -> Result<(), String> {
    let identity = Identity::load(Path::new(&settings.orders.public_key))?;
    let store = Store::open(Path::new(&settings.state_dir))?;
    let _lock = lock(settings, &store)?;
    // Unreadable state ends the start before anything is heard.
    store.load()?;
    let (tell, told) = channel();
    let (publish, published) = unbounded_channel();
    let (report, reported) = watch::channel(None);
    let for_engine = settings.clone();
    let engine = std::thread::spawn(move || turn(for_engine, identity, store, &told, publish, Some(&report)));
    event_loop()?.block_on(hear(settings, &tell, published, reported))?;
    engine.join().map_err(|_| "the engine failed".to_owned())?
}

/// Turns a knob by hand for `lease_s` seconds, or until a signal, and shows each Change. Returns whether it was done.
///
/// # Errors
/// What keeps it from starting, or from putting everything back.
pub fn try_by_hand(
    settings: &Settings,
    knob: &str,
    value: Value,
    lease_s: f64,
    mut show: impl FnMut(&Change),
) -> Result<bool, String> {
    let store = Store::open(Path::new(&settings.state_dir))?;
    let _lock = lock(settings, &store)?;
    let now_unix_s = (World::machine().unix_s)();
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
    let (tell, told) = channel();
    let (publish, mut published) = unbounded_channel::<Change>();
    let for_engine = settings.clone();
    let engine = std::thread::spawn(move || turn(for_engine, identity, store, &told, publish, None));
    let _ = tell.send(Told::Order { payload, signature: Some(signature) });
    let mut done = false;
    event_loop()?.block_on(async {
        let mut signals = Signals::new()?;
        loop {
            tokio::select! {
                change = published.recv() => {
                    // The sender lives in the engine: when it is gone, the engine has ended.
                    let Some(change) = change else { return Ok::<(), String>(()) };
                    show(&change);
                    let of_this = change.what == knob || change.what == "order";
                    let is_back = change.cause.is_some_and(ChangeCause::is_put_back);
                    done |= of_this && change.applied && !is_back;
                    if of_this && (is_back && done || !change.applied) {
                        let _ = tell.send(Told::End);
                    }
                }
                what = signals.next() => { let _ = tell.send(what); }
            }
        }
    })?;
    engine.join().map_err(|_| "the engine failed".to_owned())??;
    Ok(done)
}

fn lock(settings: &Settings, store: &Store) -> Result<File, String> {
    store.lock().map_err(|pid| match pid {
        Some(pid) => format!("{}: process {pid} runs on this state already", settings.state_dir),
        None => format!("{}: the state cannot be locked", settings.state_dir),
    })
}

fn event_loop() -> Result<Runtime, String> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| format!("no event loop: {error}"))
}

/// What signals mean.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    put_back: Signal,
}

impl Signals {
    fn new() -> Result<Signals, String> {
        let listen = |kind| signal(kind).map_err(|error| format!("cannot listen for signals: {error}"));
        Ok(Signals {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
            put_back: listen(SignalKind::user_defined1())?,
        })
    }

    async fn next(&mut self) -> Told {
        tokio::select! {
            _ = self.terminate.recv() => Told::End,
            _ = self.interrupt.recv() => Told::End,
            _ = self.put_back.recv() => Told::Restore,
        }
    }
}

/// The engine's thread: what it is told, and what is due.
fn turn(
    settings: Settings,
    identity: Identity,
    store: Store,
    told: &Receiver<Told>,
    publish: UnboundedSender<Change>,
    report: Option<&watch::Sender<Option<Knobs>>>,
) -> Result<(), String> {
    let world = World::machine();
    let knobs = knobs::make_all(&settings, &world);
    let news = Rc::new(Cell::new(true));
    let is_news = news.clone();
    let send = Box::new(move |change| {
        is_news.set(true);
        // Whoever listens has ended only when all ends; the Change is on disk too.
        let _ = publish.send(change);
    });
    let now_s = world.monotonic_s.clone();
    let mut engine = Engine::open(settings, identity, world, knobs, store, send)?;
    let mut notify = Notify::ready();
    let (mut end_s, mut reported_s) = (None, f64::NEG_INFINITY);
    loop {
        let wait_s = engine.turn().min(TURN_AT_LEAST_EVERY_S);
        notify.alive(Instant::now());
        if let Some(report) = report
            && (news.take() || now_s() - reported_s >= REPORT_EVERY_S)
        {
            report.send_replace(Some(engine.report()));
            reported_s = now_s();
        }
        if let Some(end_s) = end_s {
            if engine.is_idle() {
                return Ok(());
            }
            if now_s() >= end_s {
                return Err("not everything could be put back; the next start tries again".to_owned());
            }
        }
        // Orders that came together are carried out together, however long the disk takes for each.
        let first = told.recv_timeout(Duration::from_secs_f64(wait_s));
        for what in std::iter::once(first).chain(told.try_iter().map(Ok)).take(TOGETHER) {
            match what {
                Ok(Told::Order { payload, signature }) if end_s.is_none() => {
                    engine.order(&payload, signature.as_deref());
                }
                Ok(Told::Order { .. }) | Err(RecvTimeoutError::Timeout) => {}
                Ok(Told::Restore) => engine.end_all(ChangeCause::ByHand, "put back by hand"),
                Ok(Told::End) | Err(RecvTimeoutError::Disconnected) => {
                    notify.stopping();
                    engine.end_all(ChangeCause::EngineEnded, "wsengine ends");
                    end_s.get_or_insert(now_s() + END_WITHIN_S);
                }
            }
        }
    }
}

/// Signals and the bus, until the engine has ended.
async fn hear(
    settings: &Settings,
    tell: &Sender<Told>,
    mut published: UnboundedReceiver<Change>,
    mut reported: watch::Receiver<Option<Knobs>>,
) -> Result<(), String> {
    let mut signals = Signals::new()?;
    let access = settings.bus.access().read()?;
    let client = connect(&settings.bus.url, access, PROGRAM, &settings.node, WAITING).await?;
    let subject = format!("slackwater.order.{}.{}", settings.pool, settings.node);
    let mut orders = client.subscribe(subject.clone()).await.map_err(|error| format!("{subject}: {error}"))?;
    let outbox = Store::open(Path::new(&settings.state_dir))?;
    let mut offer = tokio::time::interval(OFFER_EVERY);
    let knobs = format!("slackwater.knobs.{}.{}", settings.pool, settings.node);
    tracing::info!("listening on {subject}");
    loop {
        tokio::select! {
            Some(message) = orders.next() => {
                let signature = message.headers.as_ref().and_then(|headers| headers.get(HEADER)).map(ToString::to_string);
                let _ = tell.send(Told::Order { payload: message.payload.to_vec(), signature });
            }
            // The sender lives in the engine: when it is gone, the engine has ended.
            change = published.recv() => match change {
                Some(change) => deliver(&client, settings, &outbox, Some(&change)).await,
                None => break,
            },
            Ok(()) = reported.changed() => {
                let report = reported.borrow_and_update().as_ref().map(encode);
                if let Some(report) = report.filter(|_| client.connection_state() == State::Connected) {
                    // News of this moment: what does not arrive is said again soon.
                    let _ = client.publish(knobs.clone(), report.into()).await;
                }
            }
            _ = offer.tick() => deliver(&client, settings, &outbox, None).await,
            what = signals.next() => { let _ = tell.send(what); }
        }
    }
    deliver(&client, settings, &outbox, None).await;
    tracing::info!("ended by a signal");
    Ok(())
}

/// Sends the Changes that wait, and a fresh one that could not be kept; what the server has taken waits no longer.
async fn deliver(client: &Client, settings: &Settings, outbox: &Store, fresh: Option<&Change>) {
    if client.connection_state() != State::Connected {
        return;
    }
    let waiting = outbox.waiting();
    let subject = format!("slackwater.change.{}", settings.pool);
    // On a full disk it is told now or never. One that was just taken from the disk comes twice: its id tells.
    let unkept = fresh.filter(|fresh| waiting.iter().all(|(_, kept)| kept.id != fresh.id));
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
