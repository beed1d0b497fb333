//! Leases over a knob that is a number in memory, with a clock that the test moves.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use serde_json::Value as Json;
use slackwater_messages::encode;

use super::*;
use crate::identity::fixture::Controller;
use crate::knobs::{Plan, Reading};
use crate::state::Lease;
use crate::world::fixture::Fixture;

/// What the fake knobs turn, and how they fail.
#[derive(Default)]
struct Machine {
    value: Cell<i64>,
    commits: Cell<u32>,
    fails: Cell<&'static str>,
}

struct Fake(Rc<Machine>, f64);

impl Fake {
    fn fail(&self, at: &str) -> Result<(), String> {
        if self.0.fails.get() == at { Err(format!("{at} fails")) } else { Ok(()) }
    }
}

impl Knob for Fake {
    fn door(&self) -> &'static str {
        if self.1 > 0.0 { "door" } else { "cpu.cores" }
    }

    fn min_interval_s(&self) -> f64 {
        self.1
    }

    fn read(&self) -> Result<Reading, String> {
        Ok(Reading { value: Value::Integer(self.0.value.get()), how: "read".to_owned() })
    }

    fn baseline(&self) -> Result<Json, String> {
        Ok(Json::from(self.0.value.get()))
    }

    fn plan(&self, _baseline: &Json, wanted: &Value) -> Result<Plan, String> {
        let Value::Integer(number) = wanted else { return Err("no number".to_owned()) };
        Ok(Plan { effective: wanted.clone(), note: String::new(), ours: Json::from(*number) })
    }

    fn drift(&self, baseline: &Json, ours: &[Json]) -> Result<Option<String>, String> {
        let now = Json::from(self.0.value.get());
        Ok((now != *baseline && !ours.contains(&now)).then(|| format!("the operator set {now}")))
    }

    fn apply(&self, ours: &Json) -> Result<(), String> {
        self.0.value.set(ours.as_i64().expect("a number"));
        self.fail("apply")
    }

    fn restore(&self, baseline: &Json, ours: &[Json]) -> Result<Vec<String>, String> {
        self.fail("restore")?;
        if let Some(said) = self.drift(baseline, ours)? {
            return Ok(vec![said]);
        }
        self.0.value.set(baseline.as_i64().expect("a number"));
        Ok(Vec::new())
    }

    fn commit(&self, restoring: bool) -> Result<(), String> {
        self.0.commits.set(self.0.commits.get() + 1);
        if !restoring && self.0.fails.get() == "commit" {
            self.0.value.set(2); // as before
        }
        if restoring { self.fail("restart") } else { self.fail("commit") }
    }

    fn verify(&self, _ours: &Json) -> Result<Reading, String> {
        self.fail("verify")?;
        self.read()
    }
}

struct Scene {
    fixture: Fixture,
    machine: Rc<Machine>,
    controller: Controller,
    changes: Rc<RefCell<Vec<Change>>>,
    engine: Engine,
    orders: u32,
}

fn engine(fixture: &Fixture, machine: &Rc<Machine>, changes: &Rc<RefCell<Vec<Change>>>, interval_s: f64) -> Engine {
    let settings = "check_every_s = 5.0\n[cpu]\ncores = [1, 8]\nshare = [1, 8]\n";
    let settings = crate::config::parse(settings, "w.toml", "web1").expect("fine");
    let knob = |_: &str| -> Box<dyn Knob> { Box::new(Fake(machine.clone(), interval_s)) };
    let mut knobs = vec![("cpu.cores", knob("cpu.cores"))];
    if interval_s > 0.0 {
        knobs.push(("cpu.share", knob("cpu.share")));
    }
    let store = Store::open(&fixture.path("state")).expect("a folder");
    let changes = changes.clone();
    let publish = Box::new(move |change| changes.borrow_mut().push(change));
    Engine::open(settings, Controller::new(1).identity(), fixture.world(), knobs, store, publish).expect("open")
}

impl Scene {
    /// The number stands at 2.
    fn new(interval_s: f64) -> Scene {
        let (fixture, machine, changes) = (Fixture::new(&[]), Rc::new(Machine::default()), Rc::default());
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
            time_unix_s: (self.fixture.world().unix_s)(),
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
        self.engine.turn();
    }

    fn order(&mut self, value: i64, lease_s: f64) {
        self.order_for("cpu.cores", value, lease_s);
        self.engine.turn();
    }

    fn pass_s(&mut self, seconds: f64) {
        self.fixture.advance_s(seconds);
        self.engine.turn();
    }

    /// The process is killed, another one starts.
    fn crash(&mut self) {
        self.engine = engine(&self.fixture, &self.machine, &self.changes, 0.0);
        self.engine.turn();
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
}

#[test]
fn a_lease_that_is_not_renewed_undoes_itself_and_both_are_recorded() {
    let mut scene = Scene::new(0.0);
    scene.order(6, 30.0);
    assert_eq!(scene.value(), 6);
    assert_eq!(scene.last(), (Some(2), Some(6), "noise; read; for 30 s, by controller".to_owned(), true));
    scene.pass_s(29.0);
    assert_eq!(scene.value(), 6);
    scene.pass_s(1.5);
    assert_eq!(scene.value(), 2);
    assert_eq!(
        scene.last(),
        (Some(6), Some(2), "put back: the lease of 30 s ended without a renewal".to_owned(), true)
    );
    assert!(scene.engine.is_idle());
    assert_eq!(Store::open(&scene.fixture.path("state")).expect("open").waiting().len(), 2);
}

#[test]
fn a_knob_that_is_given_back_is_as_before_at_once_and_the_order_is_named() {
    let mut scene = Scene::new(0.0);
    scene.order(6, 30.0);
    scene.give_back();
    assert_eq!(scene.value(), 2);
    assert_eq!(scene.last(), (Some(6), Some(2), "put back: given back by controller: calm".to_owned(), true));
    let follows: Vec<String> = scene.changes.borrow().iter().map(|change| change.follows.clone()).collect();
    assert_eq!(follows, ["o1", "o2"]);
    scene.give_back();
    assert_eq!(scene.last().2, "refused: it is not turned");
    scene.order(7, 30.0);
    assert_eq!(scene.value(), 7);
}

#[test]
fn the_report_tells_value_baseline_bounds_and_what_is_left_of_a_lease() {
    let mut scene = Scene::new(0.0);
    let knob = |scene: &mut Scene| scene.engine.report().knobs.remove(0);
    let idle = knob(&mut scene);
    assert_eq!(
        (idle.name.as_str(), idle.value, idle.baseline),
        ("cpu.cores", Some(Value::Integer(2)), Some(Value::Integer(2)))
    );
    assert_eq!((idle.lowest, idle.highest, idle.reloads, idle.order.as_str()), (Some(1), Some(8), false, ""));
    scene.order(6, 30.0);
    scene.pass_s(4.0);
    let turned = knob(&mut scene);
    assert_eq!(
        (turned.value, turned.baseline, turned.left_s),
        (Some(Value::Integer(6)), Some(Value::Integer(2)), Some(26.0))
    );
    assert_eq!((turned.order.as_str(), turned.by.as_str(), turned.why.as_str()), ("o1", "controller", ""));
    scene.machine.value.set(5);
    scene.pass_s(6.0);
    assert!(knob(&mut scene).why.contains("theirs holds"));
    let mut scene = Scene::new(1.0);
    assert!(knob(&mut scene).reloads);
}

#[test]
fn a_renewal_extends_the_lease_without_a_change_and_another_value_keeps_the_first_baseline() {
    let mut scene = Scene::new(0.0);
    scene.order(6, 30.0);
    scene.pass_s(20.0);
    scene.order(6, 30.0);
    assert_eq!(scene.count(), 1);
    scene.pass_s(20.0);
    assert_eq!(scene.value(), 6);
    scene.order(4, 30.0);
    assert_eq!((scene.value(), scene.last().0, scene.last().1), (4, Some(6), Some(4)));
    scene.pass_s(31.0);
    assert_eq!(scene.value(), 2);
}

#[test]
fn a_crash_restores_also_when_it_came_between_the_disk_and_the_setting() {
    let mut scene = Scene::new(0.0);
    scene.order(6, 30.0);
    scene.order(4, 30.0);
    scene.crash();
    assert_eq!((scene.value(), scene.last().2.as_str()), (2, "put back: the last run did not end well"));
    // The lease is on disk, the knob not yet turned: what stands there is the baseline, or the lease of before.
    let store = Store::open(&scene.fixture.path("state")).expect("open");
    for stands in [2, 6] {
        let mut state = store.load().expect("a state");
        scene.machine.value.set(stands);
        state.leases.insert(
            "cpu.cores".to_owned(),
            Lease { baseline: Json::from(2), ours: vec![Json::from(6), Json::from(4)], ..lease() },
        );
        store.save(&state).expect("saved");
        scene.crash();
        assert_eq!(scene.value(), 2);
    }
}

fn lease() -> Lease {
    let number = Value::Integer(4);
    Lease {
        order_id: "o".to_owned(),
        by: "controller".to_owned(),
        reason: "noise".to_owned(),
        order_unix_s: 0.0,
        wanted: number.clone(),
        effective: number,
        before: Value::Integer(2),
        baseline: Json::Null,
        ours: vec![],
        lease_s: 30.0,
        until_unix_s: 0.0,
    }
}

#[test]
fn an_order_that_was_here_before_is_refused_also_after_a_crash() {
    let mut scene = Scene::new(0.0);
    scene.order(6, 30.0);
    scene.orders = 0;
    scene.order(6, 30.0);
    assert_eq!(scene.last().2, "refused: Order o1 was here before");
    scene.crash();
    scene.orders = 0;
    scene.order(6, 30.0);
    assert_eq!((scene.value(), scene.last().2.as_str()), (2, "refused: Order o1 was here before"));
}

#[test]
fn an_older_order_does_not_undo_a_later_one() {
    let mut scene = Scene::new(0.0);
    let order = |scene: &mut Scene, id: &str, age_s: f64, value: i64| {
        let order = Order {
            v: 1,
            id: id.to_owned(),
            node: "web1".to_owned(),
            pool: "web".to_owned(),
            time_unix_s: (scene.fixture.world().unix_s)() - age_s,
            knob: "cpu.cores".to_owned(),
            value: Value::Integer(value),
            lease_s: 30.0,
            reason: String::new(),
            by: "controller".to_owned(),
        };
        let payload = encode(&order);
        scene.engine.order(&payload, Some(&scene.controller.sign(&payload)));
        scene.engine.turn();
    };
    order(&mut scene, "late", 0.0, 6);
    order(&mut scene, "early", 5.0, 4);
    assert_eq!((scene.value(), scene.last().2.as_str()), (6, "refused: a later Order for this knob is in force"));
}

#[test]
fn what_fails_is_undone_and_said() {
    for (fails, said, commits) in [
        ("apply", "refused: apply fails", 0),
        ("commit", "refused: commit fails", 1),
        ("verify", "refused: verify fails", 2),
    ] {
        let mut scene = Scene::new(0.0);
        scene.machine.fails.set(fails);
        scene.order(6, 30.0);
        scene.pass_s(0.1);
        assert_eq!(scene.value(), 2, "{fails}");
        assert!(scene.changes.borrow().iter().any(|change| change.why == said && !change.applied), "{fails}");
        assert_eq!(scene.machine.commits.get(), commits, "{fails}");
        assert!(scene.engine.is_idle(), "{fails}");
    }
}

#[test]
fn a_restore_that_fails_is_tried_again_and_said_once() {
    let mut scene = Scene::new(0.0);
    scene.order(6, 30.0);
    scene.machine.fails.set("restart");
    scene.pass_s(31.0);
    let said = "not put back yet: restart fails; trying again every 2 s";
    assert_eq!((scene.last().2.as_str(), scene.count()), (said, 2));
    scene.pass_s(2.1);
    scene.pass_s(2.1);
    assert_eq!(scene.count(), 2);
    assert!(!scene.engine.is_idle());
    scene.machine.fails.set("");
    scene.pass_s(2.1);
    assert!(scene.engine.is_idle());
    assert_eq!(scene.value(), 2);
}

#[test]
fn the_operators_own_change_wins_until_the_episode_is_over() {
    let mut scene = Scene::new(0.0);
    scene.order(6, 30.0);
    scene.machine.value.set(3);
    scene.pass_s(5.0);
    assert_eq!(scene.value(), 3);
    let said = "put back: the operator set 3: theirs holds; left alone: the operator set 3";
    assert_eq!(scene.last().2, said);
    scene.pass_s(20.0);
    scene.order(6, 30.0);
    assert!(scene.last().2.starts_with("refused: somebody else changed this setting in this episode"));
    scene.pass_s(20.0);
    scene.order(6, 30.0);
    assert_eq!(scene.value(), 3);
    scene.pass_s(31.0);
    scene.order(6, 30.0);
    assert_eq!((scene.value(), scene.last().0), (6, Some(3)));
}

#[test]
fn orders_that_come_together_share_a_reload_and_the_next_waits_for_its_time() {
    let mut scene = Scene::new(10.0);
    scene.order_for("cpu.cores", 6, 30.0);
    scene.order_for("cpu.share", 6, 30.0);
    scene.engine.turn();
    assert_eq!(scene.machine.commits.get(), 0);
    scene.pass_s(0.4);
    assert_eq!((scene.machine.commits.get(), scene.count()), (1, 2));
    scene.order(4, 30.0);
    scene.pass_s(5.0);
    assert_eq!((scene.machine.commits.get(), scene.value()), (1, 6));
    scene.pass_s(5.1);
    assert_eq!((scene.machine.commits.get(), scene.value()), (2, 4));
    // A restore waits too, but not for long.
    scene.engine.end_all("test");
    scene.engine.turn();
    assert_eq!(scene.value(), 4);
    scene.pass_s(5.1);
    assert_eq!((scene.machine.commits.get(), scene.value()), (3, 2));
}

#[test]
fn an_order_that_a_later_one_overtakes_is_recorded() {
    let mut scene = Scene::new(10.0);
    scene.order(6, 30.0);
    scene.order(5, 30.0);
    assert_eq!(scene.last().2, "refused: a later Order came before it was carried out");
    scene.pass_s(0.4);
    assert_eq!((scene.value(), scene.machine.commits.get()), (5, 1));
}

#[test]
fn a_lease_that_ends_before_its_reload_is_refused() {
    let mut scene = Scene::new(10.0);
    scene.order(6, 30.0);
    scene.pass_s(0.4);
    scene.order(4, 5.0);
    scene.pass_s(6.0);
    assert_eq!(scene.last().2, "refused: its lease ended before the next reload was allowed");
    assert_eq!(scene.value(), 6);
}

#[test]
fn nothing_is_changed_when_the_baseline_cannot_be_kept() {
    let mut scene = Scene::new(0.0);
    // The state's next text has no place: a folder stands there.
    std::fs::create_dir_all(scene.fixture.path("state/.state.json.slackwater-new/x")).expect("a folder");
    scene.order(6, 30.0);
    assert_eq!(scene.value(), 2);
    assert!(scene.last().2.starts_with("refused: nothing is changed, since "), "{}", scene.last().2);
    assert!(scene.engine.is_idle());
}

#[test]
fn a_flood_of_wrong_orders_is_not_a_flood_of_changes() {
    let mut scene = Scene::new(0.0);
    for _ in 0..100 {
        scene.engine.order(b"{}", None);
    }
    assert_eq!(scene.count(), 20);
    scene.fixture.advance_s(11.0);
    scene.engine.order(b"{}", None);
    assert_eq!((scene.count(), scene.last().2.as_str()), (21, "refused: it is not signed"));
}
