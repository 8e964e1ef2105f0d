//! The fault table: what one of four processes does wrong, and what the other three say.

use crate::program::{CULPRIT, DEADLINE, NUM_RANKS};
use crate::run::{Run, run};
use std::time::Duration;

/// How long after the deadline everybody must have ended. A fault that is noticed at once ends
/// everybody within this alone.
const SLACK: Duration = Duration::from_secs(2);

/// Every rank but the culprit says `part`, ends within `limit` of the fault with a code of its own
/// that is no success, and nothing is put out.
fn survivors_say(run: &Run, part: &str, limit: Duration) {
    let fault_at = run.fault_at.unwrap_or_else(|| panic!("the fault never happened: {run:#?}"));
    for (rank, outcome) in run.ranks.iter().enumerate().filter(|(rank, _)| *rank != CULPRIT) {
        assert!(outcome.said.contains(part), "rank {rank} does not say {part:?}: {run:#?}");
        assert!(outcome.code.is_some_and(|code| code != 0), "rank {rank}: {run:#?}");
        let took = outcome.ended_at.and_then(|ended_at| ended_at.duration_since(fault_at).ok());
        assert!(took.is_some_and(|took| took <= limit), "rank {rank} took {took:?} of {limit:?}");
    }
    assert!(!run.succeeded, "mpiexec reports success: {run:#?}");
    assert_eq!(run.made("output"), None, "no output of a run that failed");
}

/// A fault that is noticed without a deadline.
fn noticed_at_once(scenario: &str, part: &str) -> Run {
    let run = run(NUM_RANKS, scenario, &[]);
    survivors_say(&run, part, SLACK);
    run
}

fn killed_in(phase: &str) {
    let run = noticed_at_once(&format!("killed in {phase}"), "rank 2 is gone");
    assert_eq!(run.ranks[CULPRIT].code, Some(128 + 9), "{run:#?}");
}

#[test]
fn killed_in_forward() {
    killed_in("forward");
}

#[test]
fn killed_in_backward() {
    killed_in("backward");
}

#[test]
fn killed_in_the_step() {
    killed_in("step");
}

#[test]
fn killed_while_publishing() {
    killed_in("publish");
}

#[test]
fn killed_while_the_others_are_inside_the_library() {
    let variables = [("DMUON_COLLECTIVES", "library"), ("DMUON_VERIFY", "0")];
    let run = run(NUM_RANKS, "killed in backward", &variables);
    survivors_say(&run, "rank 2 is gone", SLACK);
}

#[test]
fn stopped_but_not_dead() {
    let run = run(NUM_RANKS, "stopped in backward", &[]);
    // Whichever comes first: its silence, or a wait for it.
    let silent = run.ranks[0].said.contains("rank 2 is gone");
    let part = if silent { "rank 2 is gone" } else { "not arrived: [2]" };
    survivors_say(&run, part, DEADLINE + SLACK);
}

#[test]
fn never_joins() {
    let run = run(NUM_RANKS, "never joins", &[]);
    survivors_say(&run, "MPI did not start within 4 s", DEADLINE + SLACK);
}

#[test]
fn returns_early() {
    let run = noticed_at_once("returns early", "rank 2 returned before");
    let culprit = &run.ranks[CULPRIT];
    assert!(culprit.code.is_some_and(|code| code != 0), "the world failed: {culprit:?}");
}

#[test]
fn panics() {
    let run = noticed_at_once("panics", "rank 2 panicked: out of luck");
    assert!(run.ranks[CULPRIT].code.is_some_and(|code| code != 0), "{run:#?}");
}

#[test]
fn fails() {
    noticed_at_once("fails", "rank 2 failed: the disk is full");
}

#[test]
fn sleeps_past_the_deadline() {
    for scenario in ["sleeps", "sleeps, flat"] {
        let run = run(NUM_RANKS, scenario, &[]);
        survivors_say(&run, "timed out after 4 s; not arrived: [2]", DEADLINE + SLACK);
        let culprit = &run.ranks[CULPRIT];
        assert!(culprit.code.is_some_and(|code| code != 0), "it wakes to an error: {culprit:?}");
    }
}

#[test]
fn skips_a_call() {
    let run = noticed_at_once("skips a call", "\"the call that rank 2 skips\"");
    assert!(run.ranks[0].said.contains("rank 2 called all_reduce(\"the next call\")"), "{run:#?}");
}

#[test]
fn skips_a_call_unverified() {
    let run = run(NUM_RANKS, "skips a call", &[("DMUON_VERIFY", "0")]);
    survivors_say(&run, "rank 2 called", DEADLINE + SLACK);
}

#[test]
fn uses_another_order() {
    let run = noticed_at_once("other order", "rank 2 called all_reduce(\"second\")");
    assert!(run.ranks[0].said.contains("called all_reduce(\"first\")"), "{run:#?}");
}

#[test]
fn uses_another_dtype() {
    noticed_at_once("other dtype", "rank 2 called all_reduce(\"norms\", 8 f64, 8 payload)");
}

#[test]
fn builds_another_model() {
    noticed_at_once("other model", "rank 2 has \"layers.3.weight\"");
}

#[test]
fn failures_leave_a_flight_recording_of_every_survivor() {
    let records = std::env::temp_dir().join(format!("dmuon-records-{}", std::process::id()));
    let variables = [("DMUON_FLIGHT_RECORDER", records.to_str().unwrap())];
    let run = run(NUM_RANKS, "killed in backward", &variables);
    survivors_say(&run, "rank 2 is gone", SLACK);
    for rank in (0..NUM_RANKS).filter(|rank| *rank != CULPRIT) {
        let record = std::fs::read_to_string(records.join(format!("dmuon-rank-{rank}.json")));
        let record = record.unwrap();
        assert!(record.contains(&format!("\"rank\": {rank}")), "{record}");
        assert!(record.contains("backward_enter") && record.contains("reduce"), "{record}");
    }
    std::fs::remove_dir_all(records).unwrap();
}
