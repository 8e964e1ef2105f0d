//! The life cycle against sequences worked out by hand.

use super::Action::{Reduce, Reshard, Unshard};
use super::*;

const TRAIN: Pass = Pass::Training;

fn schedule(mode: Mode, prefetch: usize) -> Schedule {
    Schedule::new(mode, prefetch, &[Placement::Hooked; 3])
}

/// One ordinary step; returns all actions of forward and of backward.
fn step(schedule: &mut Schedule, touched: &[usize]) -> (Vec<Action>, Vec<Action>) {
    let mut forward = Vec::new();
    for &unit in touched {
        forward.extend(schedule.enter(unit, TRAIN));
        forward.extend(schedule.leave(unit, TRAIN));
    }
    let mut backward = Vec::new();
    for (done, &unit) in touched.iter().rev().enumerate() {
        backward.extend(schedule.enter_backward(unit));
        if schedule.mode() == Mode::Z3 {
            backward.extend(schedule.read_backward(unit));
        }
        let left = &touched[..touched.len() - 1 - done];
        backward.extend(schedule.leave_backward(unit, true, |unit| left.contains(&unit)));
    }
    backward.extend(schedule.finish_backward());
    (forward, backward)
}

fn unshards(actions: &[Action]) -> Vec<usize> {
    let unit = |action: &Action| match action {
        Unshard(unit) => Some(*unit),
        _ => None,
    };
    actions.iter().filter_map(unit).collect()
}

fn reduces(actions: &[Action]) -> Vec<usize> {
    let unit = |action: &Action| match action {
        Reduce(unit) => Some(*unit),
        _ => None,
    };
    actions.iter().filter_map(unit).collect()
}

#[test]
fn z2_broadcasts_once_and_keeps_until_the_units_backward() {
    let (forward, backward) = step(&mut schedule(Mode::Z2, 0), &[0, 1, 2]);
    assert_eq!(forward, [Unshard(0), Unshard(1), Unshard(2)]);
    assert_eq!(backward, [Reshard(2), Reduce(2), Reshard(1), Reduce(1), Reshard(0), Reduce(0)]);
}

#[test]
fn z3_broadcasts_twice_and_prefetches_the_neighbour() {
    let (forward, backward) = step(&mut schedule(Mode::Z3, 1), &[0, 1, 2]);
    assert_eq!(forward, [Unshard(0), Unshard(1), Reshard(0), Unshard(2), Reshard(1), Reshard(2)]);
    assert_eq!(
        backward,
        [
            Unshard(2),
            Unshard(1),
            Reshard(2),
            Reduce(2),
            Unshard(0),
            Reshard(1),
            Reduce(1),
            Reshard(0),
            Reduce(0)
        ]
    );
}

#[test]
fn ranks_that_skip_units_issue_the_same_sequences() {
    for (mode, prefetch) in
        [(Mode::Z2, 0), (Mode::Z2, 1), (Mode::Z3, 0), (Mode::Z3, 1), (Mode::Z3, 5)]
    {
        let all = step(&mut schedule(mode, prefetch), &[0, 1, 2]);
        for touched in [&[0, 1][..], &[0, 2], &[1, 2], &[1], &[]] {
            let some = step(&mut schedule(mode, prefetch), touched);
            let of = |(forward, backward): &(Vec<Action>, Vec<Action>)| {
                ([unshards(forward), unshards(backward)].concat(), reduces(backward))
            };
            assert_eq!(of(&some), of(&all), "{mode:?} prefetch {prefetch} {touched:?}");
        }
    }
}

#[test]
fn a_step_leaves_nothing_unsharded() {
    for mode in [Mode::Z2, Mode::Z3] {
        let mut schedule = schedule(mode, 1);
        step(&mut schedule, &[0, 2]);
        assert!((0..3).all(|unit| !schedule.is_unsharded(unit)));
        assert!(!schedule.in_backward());
    }
}

#[test]
fn a_unit_nobody_reads_is_not_broadcast_in_backward() {
    let mut schedule = schedule(Mode::Z3, 1);
    step(&mut schedule, &[0, 1, 2]);
    let mut reads = schedule.take_reads();
    assert_eq!(reads, [true; 3]);
    reads[0] = false;
    schedule.plan_reads(reads);
    for unit in 0..3 {
        schedule.enter(unit, TRAIN);
        schedule.leave(unit, TRAIN);
    }
    let mut backward = Vec::new();
    for unit in [2, 1] {
        backward.extend(schedule.enter_backward(unit));
        backward.extend(schedule.read_backward(unit));
        backward.extend(schedule.leave_backward(unit, true, |other| other < unit));
    }
    backward.extend(schedule.enter_backward(0));
    backward.extend(schedule.finish_backward());
    assert_eq!(unshards(&backward), [2, 1]);
    assert_eq!(reduces(&backward), [2, 1, 0]);
    assert_eq!(schedule.take_reads(), [false, true, true]);
}

#[test]
fn a_unit_read_against_the_plan_is_still_broadcast() {
    let mut schedule = schedule(Mode::Z3, 0);
    schedule.plan_reads(vec![false; 3]);
    for unit in 0..3 {
        schedule.enter(unit, TRAIN);
        schedule.leave(unit, TRAIN);
    }
    assert!(unshards(&schedule.enter_backward(2)).is_empty());
    assert_eq!(unshards(&schedule.read_backward(1)), [1]);
}

#[test]
fn a_unit_entered_twice_is_reduced_once_after_its_last_gradient() {
    for mode in [Mode::Z2, Mode::Z3] {
        let mut schedule = Schedule::new(mode, 0, &[Placement::Hooked]);
        let mut forward = Vec::new();
        for _ in 0..2 {
            forward.extend(schedule.enter(0, TRAIN));
            forward.extend(schedule.leave(0, TRAIN));
        }
        assert_eq!(unshards(&forward).len(), if mode == Mode::Z2 { 1 } else { 2 });
        let first = schedule.leave_backward(0, true, |_| true);
        assert!(reduces(&first).is_empty());
        let second = schedule.leave_backward(0, true, |_| false);
        assert_eq!(reduces(&second), [0]);
        assert!(reduces(&schedule.finish_backward()).is_empty());
    }
}

#[test]
fn loose_units_are_reduced_after_hooked_ones() {
    use Placement::{Hooked, Loose, Root};
    let mut schedule = Schedule::new(Mode::Z2, 0, &[Loose, Hooked, Hooked, Root, Loose]);
    assert_eq!(schedule.reduce_order, [2, 1, 4, 0, 3]);
    schedule = Schedule::new(Mode::Z2, 0, &[Hooked, Hooked, Loose]);
    (0..2).for_each(|unit| drop(schedule.enter(unit, TRAIN)));
    schedule.touch(2, TRAIN);
    assert_eq!(reduces(&schedule.leave_backward(1, true, |unit| unit != 1)), [1]);
    assert_eq!(reduces(&schedule.leave_backward(0, true, |unit| unit == 2)), [0]);
    assert_eq!(reduces(&schedule.leave_backward(2, false, |_| false)), [2]);
}

#[test]
fn loose_units_stay_until_the_next_unit_is_touched() {
    let mut schedule = Schedule::new(Mode::Z3, 0, &[Placement::Loose; 3]);
    assert_eq!(schedule.touch(0, TRAIN), [Unshard(0)]);
    assert_eq!(schedule.touch(0, TRAIN), []);
    assert_eq!(schedule.touch(1, TRAIN), [Reshard(0), Unshard(1)]);
    assert_eq!(schedule.begin_backward(), [Unshard(2), Reshard(2), Reshard(1)]);
}

#[test]
fn evaluation_keeps_nothing_in_either_mode() {
    for mode in [Mode::Z2, Mode::Z3] {
        let mut schedule = schedule(mode, 1);
        let mut actions = Vec::new();
        for unit in 0..3 {
            actions.extend(schedule.enter(unit, Pass::Evaluation));
            actions.extend(schedule.leave(unit, Pass::Evaluation));
        }
        assert_eq!(unshards(&actions), [0, 1, 2]);
        assert!((0..3).all(|unit| !schedule.is_unsharded(unit)));
    }
}

#[test]
fn an_abandoned_forward_does_not_disturb_the_next_step() {
    for mode in [Mode::Z2, Mode::Z3] {
        let mut schedule = schedule(mode, 1);
        for unit in 0..2 {
            schedule.enter(unit, TRAIN);
            schedule.leave(unit, TRAIN);
        }
        let (_, backward) = step(&mut schedule, &[0, 1, 2]);
        assert_eq!(reduces(&backward), [2, 1, 0]);
        let mut fresh = self::schedule(mode, 1);
        assert_eq!(step(&mut schedule, &[0, 1, 2]), step(&mut fresh, &[0, 1, 2]));
    }
}

#[test]
fn the_order_of_the_last_forward_is_learned() {
    let mut schedule = schedule(Mode::Z3, 1);
    let touched = [2, 0, 1];
    let guessed = step(&mut schedule, &touched).0;
    assert_eq!(unshards(&guessed), [0, 1, 2]);
    let order = schedule.take_order();
    assert_eq!(order, touched);
    schedule.plan_order(&order);
    let (forward, backward) = step(&mut schedule, &touched);
    assert_eq!(unshards(&forward), touched);
    assert_eq!(unshards(&backward), [1, 0, 2]);
    assert_eq!(reduces(&backward), [1, 0, 2]);
}

#[test]
fn ranks_issue_the_same_whatever_the_order_in_which_they_touch() {
    for (mode, prefetch) in [(Mode::Z2, 0), (Mode::Z2, 1), (Mode::Z3, 0), (Mode::Z3, 1)] {
        let all = step(&mut schedule(mode, prefetch), &[0, 1, 2]).0;
        for touched in [&[2, 0, 1][..], &[2, 1, 0], &[1, 0], &[2], &[]] {
            let mut schedule = schedule(mode, prefetch);
            let mut actions = Vec::new();
            for &unit in touched {
                actions.extend(schedule.enter(unit, TRAIN));
                actions.extend(schedule.leave(unit, TRAIN));
            }
            actions.extend(schedule.begin_backward());
            assert_eq!(unshards(&actions), unshards(&all), "{mode:?} {touched:?}");
        }
    }
}

#[test]
fn a_unit_touched_again_stays_through_forward_once_that_is_agreed() {
    let mut schedule = schedule(Mode::Z3, 0);
    let forward = |schedule: &mut Schedule| {
        let mut actions = Vec::new();
        for unit in [0, 1, 2, 0] {
            actions.extend(schedule.enter(unit, TRAIN));
            actions.extend(schedule.leave(unit, TRAIN));
        }
        actions
    };
    assert_eq!(unshards(&forward(&mut schedule)), [0, 1, 2, 0]);
    schedule.finish_backward();
    let revisits = schedule.take_revisits();
    assert_eq!(revisits, [true, false, false]);
    schedule.plan_revisits(&revisits);
    assert_eq!(unshards(&forward(&mut schedule)), [0, 1, 2]);
    assert!(schedule.is_unsharded(0) && !schedule.is_unsharded(1));
    schedule.begin_backward();
    assert!(!schedule.is_unsharded(0));
}

#[test]
fn kept_weights_are_broadcast_once_for_several_passes() {
    let all = [0, 1, 2];
    for touched in [&all[..], &[1], &[]] {
        let mut schedule = schedule(Mode::Z2, 1);
        schedule.keep(true);
        let mut seen = Vec::new();
        for _ in 0..2 {
            let (forward, backward) = step(&mut schedule, touched);
            assert!(forward.iter().chain(&backward).all(|a| !matches!(a, Reshard(_))));
            assert_eq!(reduces(&backward), [2, 1, 0]);
            seen.extend(unshards(&[forward, backward].concat()));
        }
        schedule.keep(false);
        let (forward, backward) = step(&mut schedule, touched);
        seen.extend(unshards(&[forward, backward].concat()));
        assert_eq!(seen, all, "{touched:?}");
        assert!(all.iter().all(|&unit| !schedule.is_unsharded(unit)));
    }
}

#[test]
fn units_that_nobody_touched_keep_their_positions() {
    let mut schedule = schedule(Mode::Z2, 0);
    for (touched, order) in [(&[1, 2][..], [0, 1, 2]), (&[2, 0], [2, 1, 0]), (&[], [2, 1, 0])] {
        schedule.plan_order(touched);
        assert_eq!(schedule.order, order);
        assert!((0..3).all(|unit| schedule.order[schedule.position[unit]] == unit));
    }
}

#[test]
fn publishing_drops_every_copy() {
    let mut schedule = schedule(Mode::Z2, 1);
    schedule.enter(0, TRAIN);
    assert_eq!(schedule.publish(), [Reshard(0), Reshard(1)]);
}
