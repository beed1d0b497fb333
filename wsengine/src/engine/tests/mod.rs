//! Leases over a knob that is a number in memory, with a clock that the test moves; the tests are in files by theme.

mod failures;
mod leases;
mod orders;

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use serde_json::Value as Json;
use slackwater_messages::{KnobCause, encode};

use super::*;
use crate::identity::fixture::Controller;
use crate::knobs::{PlannedValue, Reading};
use crate::state::Lease;
use slackwater_node::fixture::Fixture;

/// The state that the fake knobs set, and their failures.
#[derive(Default)]
struct FakeMachine {
    value: Cell<i64>,
    commits: Cell<u32>,
    fails: Cell<&'static str>,
}

struct Fake(Rc<FakeMachine>, f64);

impl Fake {
    fn fail(&self, at: &str) -> Result<()> {
        if self.0.fails.get() == at { Err(Error::NotInEffect(format!("{at} fails"))) } else { Ok(()) }
    }
}

impl Knob for Fake {
    fn reload_group(&self) -> &'static str {
        if self.1 > 0.0 { "group" } else { "cpu.cores" }
    }

    fn min_interval_s(&self) -> f64 {
        self.1
    }

    fn read(&self) -> Result<Reading> {
        Ok(Reading { value: Value::Integer(self.0.value.get()), how: "read".to_owned() })
    }

    fn baseline(&self) -> Result<Json> {
        Ok(Json::from(self.0.value.get()))
    }

    fn plan(&self, _baseline: &Json, wanted: &Value) -> Result<PlannedValue> {
        let Value::Integer(number) = wanted else { return Err(Error::InvalidValue("no number".to_owned())) };
        Ok(PlannedValue { effective: wanted.clone(), note: String::new(), written: Json::from(*number) })
    }

    fn drift(&self, baseline: &Json, written: &[Json]) -> Result<Option<String>> {
        let now = Json::from(self.0.value.get());
        Ok((now != *baseline && !written.contains(&now)).then(|| format!("the operator set {now}")))
    }

    fn apply(&self, written: &Json) -> Result<()> {
        self.0.value.set(written.as_i64().expect("a number"));
        self.fail("apply")
    }

    fn restore(&self, baseline: &Json, written: &[Json]) -> Result<Vec<String>> {
        self.fail("restore")?;
        if let Some(change) = self.drift(baseline, written)? {
            return Ok(vec![change]);
        }
        self.0.value.set(baseline.as_i64().expect("a number"));
        Ok(Vec::new())
    }

    fn commit(&self, restoring: bool) -> Result<()> {
        self.0.commits.set(self.0.commits.get() + 1);
        if !restoring && self.0.fails.get() == "commit" {
            self.0.value.set(2); // as before
        }
        if restoring { self.fail("restart") } else { self.fail("commit") }
    }

    fn verify(&self, _ours: &Json) -> Result<Reading> {
        self.fail("verify")?;
        self.read()
    }
}

struct Scene {
    fixture: Fixture,
    machine: Rc<FakeMachine>,
    controller: Controller,
    changes: Rc<RefCell<Vec<Change>>>,
    engine: Engine,
    orders: u32,
}

fn engine(fixture: &Fixture, machine: &Rc<FakeMachine>, changes: &Rc<RefCell<Vec<Change>>>, interval_s: f64) -> Engine {
    let settings = "check_every_s = 5.0\n[cpu]\ncores = [1, 8]\nshare = [1, 8]\ncore_frequency = [1, 9]\npolicy = [\"hurry-up\"]\n";
    let settings = slackwater_node::settings::parse(settings, "w.toml", "web1").expect("valid settings");
    let knob = |_: &str| -> Box<dyn Knob> { Box::new(Fake(machine.clone(), interval_s)) };
    let mut knobs = vec![("cpu.cores", knob("cpu.cores"))];
    if interval_s > 0.0 {
        knobs.push(("cpu.share", knob("cpu.share")));
    }
    let store = Store::open(&fixture.path("state")).expect("a folder");
    let changes = changes.clone();
    let publish = Box::new(move |change| changes.borrow_mut().push(change));
    Engine::open(settings, Controller::new(1).identity(), fixture.system(), knobs, store, publish).expect("an engine")
}

impl Scene {
    /// The number stands at 2.
    fn new(interval_s: f64) -> Scene {
        let (fixture, machine, changes) = (Fixture::new(&[]), Rc::new(FakeMachine::default()), Rc::default());
        machine.value.set(2);
        let engine = engine(&fixture, &machine, &changes, interval_s);
        Scene { fixture, machine, controller: Controller::new(1), changes, engine, orders: 0 }
    }

    fn order_for(&mut self, knob: &str, value: i64, lease_s: f64) {
        self.order_of(knob, Value::Integer(value), lease_s, "noise");
    }

    fn order_of(&mut self, knob: &str, value: Value, lease_s: f64, reason: &str) {
        self.orders += 1;
        let order = Order {
            v: 1,
            id: format!("o{}", self.orders),
            node: "web1".to_owned(),
            pool: "web".to_owned(),
            time_unix_s: self.fixture.system().unix_s(),
            knob: knob.to_owned(),
            value,
            lease_s,
            reason: reason.to_owned(),
            by: "controller".to_owned(),
        };
        let payload = encode(&order);
        self.engine.order(&payload, Some(&self.controller.sign(&payload)));
    }

    fn give_back(&mut self) {
        self.order_of("cpu.cores", Value::Word("baseline".to_owned()), 30.0, "calm");
        self.engine.tick();
    }

    fn order(&mut self, value: i64, lease_s: f64) {
        self.order_for("cpu.cores", value, lease_s);
        self.engine.tick();
    }

    fn pass_s(&mut self, seconds: f64) {
        self.fixture.advance_s(seconds);
        self.engine.tick();
    }

    /// The process is killed, another one starts.
    fn crash(&mut self) {
        self.engine = engine(&self.fixture, &self.machine, &self.changes, 0.0);
        self.engine.tick();
    }

    fn value(&self) -> i64 {
        self.machine.value.get()
    }

    fn last(&self) -> (Option<i64>, Option<i64>, String, bool) {
        let changes = self.changes.borrow();
        let change = changes.last().expect("a Change");
        let number = |value: &Option<Value>| match value {
            Some(Value::Integer(number)) => Some(*number),
            _ => None,
        };
        (number(&change.before), number(&change.after), change.why.clone(), change.applied)
    }

    fn count(&self) -> usize {
        self.changes.borrow().len()
    }

    fn causes(&self) -> Vec<ChangeCause> {
        self.changes.borrow().iter().filter_map(|change| change.cause).collect()
    }

    fn end_all(&mut self, cause: ChangeCause) {
        self.engine.end_all(cause, "test");
        self.engine.tick();
    }
}
