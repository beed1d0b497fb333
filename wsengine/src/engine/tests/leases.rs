//! Leases: made, renewed, reported, given back, ended.

use super::*;

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
    assert_eq!(scene.causes(), [ChangeCause::Ordered, ChangeCause::LeaseEnded]);
    assert!(scene.engine.is_idle());
    assert_eq!(Store::open(&scene.fixture.path("state")).expect("a store").waiting().len(), 2);
}

#[test]
fn each_end_of_a_lease_has_its_cause() {
    for (end, cause) in [
        ((|scene| scene.pass_s(31.0)) as fn(&mut Scene), ChangeCause::LeaseEnded),
        (Scene::give_back, ChangeCause::GivenBack),
        (Scene::crash, ChangeCause::EngineDied),
        (|scene| scene.end_all(ChangeCause::EngineEnded), ChangeCause::EngineEnded),
        (|scene| scene.end_all(ChangeCause::ByHand), ChangeCause::ByHand),
    ] {
        let mut scene = Scene::new(0.0);
        scene.order(6, 30.0);
        end(&mut scene);
        assert_eq!((scene.value(), scene.causes()), (2, vec![ChangeCause::Ordered, cause]));
        assert!(cause.is_put_back() && !ChangeCause::Ordered.is_put_back());
    }
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
    assert_eq!(scene.last().2, "refused: it is not set");
    assert_eq!(scene.causes(), [ChangeCause::Ordered, ChangeCause::GivenBack, ChangeCause::Refused]);
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
    let set_knob = knob(&mut scene);
    assert_eq!(
        (set_knob.value, set_knob.baseline, set_knob.left_s),
        (Some(Value::Integer(6)), Some(Value::Integer(2)), Some(26.0))
    );
    assert_eq!((set_knob.order.as_str(), set_knob.by.as_str(), set_knob.why.as_str()), ("o1", "controller", ""));
    scene.machine.value.set(5);
    scene.pass_s(6.0);
    let theirs = knob(&mut scene);
    assert!(theirs.why.contains("theirs holds"));
    assert_eq!((idle.cause, set_knob.cause, theirs.cause), (None, None, Some(KnobCause::SomeoneElse)));
    assert_eq!(scene.causes().last(), Some(&ChangeCause::SomeoneElse));
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
