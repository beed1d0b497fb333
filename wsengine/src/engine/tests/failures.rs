//! Crashes, failures, and changes by somebody else.

use super::*;

#[test]
fn a_crash_restores_also_when_it_came_between_the_disk_and_the_setting() {
    let mut scene = Scene::new(0.0);
    scene.order(6, 30.0);
    scene.order(4, 30.0);
    scene.crash();
    assert_eq!((scene.value(), scene.last().2.as_str()), (2, "put back: the last run did not end well"));
    // The lease is on disk, the knob not yet set: what stands there is the baseline, or the lease of before.
    let store = Store::open(&scene.fixture.path("state")).expect("a store");
    for stands in [2, 6] {
        let mut state = store.load().expect("a state");
        scene.machine.value.set(stands);
        state.leases.insert(
            "cpu.cores".to_owned(),
            Lease { baseline: Json::from(2), written: vec![Json::from(6), Json::from(4)], ..lease() },
        );
        store.save(&state).expect("the state is saved");
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
        written: vec![],
        lease_s: 30.0,
        until_unix_s: 0.0,
    }
}

#[test]
fn what_fails_is_undone_and_said() {
    for (fails, why, commits) in [
        ("apply", "refused: apply fails", 0),
        ("commit", "refused: commit fails", 1),
        ("verify", "refused: verify fails", 2),
    ] {
        let mut scene = Scene::new(0.0);
        scene.machine.fails.set(fails);
        scene.order(6, 30.0);
        scene.pass_s(0.1);
        assert_eq!(scene.value(), 2, "{fails}");
        assert!(scene.changes.borrow().iter().any(|change| change.why == why && !change.applied), "{fails}");
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
    let why = "not put back yet: restart fails; trying again every 2 s";
    assert_eq!((scene.last().2.as_str(), scene.count()), (why, 2));
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
    let why = "put back: the operator set 3: theirs holds; left alone: the operator set 3";
    assert_eq!(scene.last().2, why);
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
fn an_order_that_waits_while_somebody_else_changes_the_knob_is_refused() {
    let mut scene = Scene::new(60.0);
    scene.order(6, 120.0);
    scene.pass_s(GATHER_S);
    assert_eq!(scene.value(), 6);
    scene.order(4, 120.0);
    scene.machine.value.set(3);
    scene.pass_s(5.0);
    let refused = scene.changes.borrow().iter().any(|change| change.why == "refused: the operator set 3: theirs holds");
    assert!(refused);
    scene.pass_s(60.0);
    assert_eq!(scene.value(), 3);
}
