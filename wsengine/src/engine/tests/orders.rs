//! Which Orders count, in which order, and how many reloads they cost.

use super::*;

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
fn an_order_for_a_knob_that_writes_the_files_of_one_that_is_set_is_refused() {
    let mut scene = Scene::new(0.0);
    scene.order(6, 30.0);
    let policy = "hurry-up lever=cpu.core_frequency clocks=1,9 cores=1 period_ms=50 after_ms=450";
    scene.order_of("cpu.policy", Value::Word(policy.to_owned()), 30.0, "noise");
    assert_eq!(scene.last().2, "refused: `cpu.cores` is set, which writes the same files");
    scene.give_back();
    assert_eq!(scene.value(), 2);
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
            time_unix_s: scene.fixture.system().unix_s() - age_s,
            knob: "cpu.cores".to_owned(),
            value: Value::Integer(value),
            lease_s: 30.0,
            reason: String::new(),
            by: "controller".to_owned(),
        };
        let payload = encode(&order);
        scene.engine.order(&payload, Some(&scene.controller.sign(&payload)));
        scene.engine.tick();
    };
    order(&mut scene, "late", 0.0, 6);
    order(&mut scene, "early", 5.0, 4);
    assert_eq!((scene.value(), scene.last().2.as_str()), (6, "refused: a later Order for this knob is in force"));
}

#[test]
fn orders_that_come_together_share_a_reload_and_the_next_waits_for_its_time() {
    let mut scene = Scene::new(10.0);
    scene.order_for("cpu.cores", 6, 30.0);
    scene.order_for("cpu.share", 6, 30.0);
    scene.engine.tick();
    assert_eq!(scene.machine.commits.get(), 0);
    scene.pass_s(0.4);
    assert_eq!((scene.machine.commits.get(), scene.count()), (1, 2));
    scene.order(4, 30.0);
    scene.pass_s(5.0);
    assert_eq!((scene.machine.commits.get(), scene.value()), (1, 6));
    scene.pass_s(5.1);
    assert_eq!((scene.machine.commits.get(), scene.value()), (2, 4));
    // A restore waits too, but not for long.
    scene.engine.end_all(ChangeCause::ByHand, "test");
    scene.engine.tick();
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

#[test]
fn no_text_of_a_change_is_longer_than_the_controller_reads() {
    let mut scene = Scene::new(0.0);
    scene.order_of("cpu.cores", Value::Integer(4), 30.0, &"ä".repeat(5000));
    scene.engine.tick();
    assert_eq!(scene.value(), 4);
    let changes = scene.changes.borrow();
    assert!(!changes.is_empty() && changes.iter().all(|change| change.why.chars().count() <= 2000));
}

#[test]
fn the_report_names_orders_that_wait_for_a_reload_and_no_others() {
    let mut scene = Scene::new(30.0);
    let waiting = |scene: &mut Scene| scene.engine.report().waiting.expect("a list");
    assert!(waiting(&mut scene).is_empty());
    scene.order(6, 60.0);
    assert_eq!(waiting(&mut scene), ["o1"]);
    scene.pass_s(GATHER_S);
    assert!(waiting(&mut scene).is_empty());
    scene.order(7, 60.0);
    scene.pass_s(10.0);
    assert_eq!(waiting(&mut scene), ["o2"]);
    scene.crash();
    assert!(waiting(&mut scene).is_empty(), "a lost Order does not wait");
}
