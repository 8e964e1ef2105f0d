//! In which order driver and library are called: what they demand, and what would only show on a
//! real device.

use crate::{
    device,
    doubles::{as_rank, run_each},
    loans,
    suite::{self, PATIENCE, input},
};
use dmuon_core::{Call, Element, EngineOptions, Error, Op, Result, World};
use std::{
    env, fs,
    path::Path,
    thread,
    time::{Duration, Instant},
};

/// Where the double writes calls down.
pub(crate) const JOURNAL: &str = "DMUON_DOUBLE_JOURNAL";

/// A world of two ranks.
struct Scene<'a> {
    name: &'a str,
    fault: &'a str,
}

impl Scene<'_> {
    /// Each rank's outcome, and what its device was asked for, in order.
    fn play(&self, body: fn(World) -> Result<()>) -> [(Result<()>, Vec<String>); 2] {
        let name = format!("dmuon-{}-{}", std::process::id(), self.name);
        let journal = env::temp_dir().join(name);
        let path = journal.to_str().expect("names are plain");
        let settings = [(JOURNAL, path), ("DMUON_DOUBLE_FAULT", self.fault)];
        let options = EngineOptions::default().with_deadline(PATIENCE);
        let outcomes = run_each(2, &settings, |spec| as_rank(spec, &options, body));
        let mut ranks = outcomes.into_iter().enumerate();
        let played = [(); 2].map(|()| {
            let (rank, outcome) = ranks.next().expect("there are two");
            (outcome, calls_of(rank, &journal))
        });
        fs::remove_file(&journal).expect("the double wrote it");
        played
    }
}

fn calls_of(rank: usize, journal: &Path) -> Vec<String> {
    let text = fs::read_to_string(journal).unwrap_or_default();
    let call = |line: &str| line.strip_prefix(&format!("{rank} ")).map(str::to_owned);
    text.lines().filter_map(call).collect()
}

fn count(calls: &[String], name: &str) -> usize {
    calls.iter().filter(|call| *call == name).count()
}

#[test]
fn ranks_share_one_id_and_connect_first() {
    let scene = Scene { name: "connect", fault: "" };
    let [(zero, calls), (one, other_calls)] = scene.play(|_| Ok(()));
    assert!(zero.is_ok() && one.is_ok(), "{zero:?} {one:?}");
    assert_eq!(calls[..3], ["ncclGetUniqueId", "ncclCommInitRankConfig", "cuEventRecord"]);
    assert_eq!(other_calls[..2], ["ncclCommInitRankConfig", "cuEventRecord"]);
}

#[test]
fn messages_go_as_one_and_results_come_down_after_the_mark() {
    let scene = Scene { name: "messages", fault: "" };
    let played = scene.play(|world| {
        let own = input(world.rank().0, 0, 6);
        suite::run(&*world.group(), Op::AllToAll, 3, Some(own)).map(drop)
    });
    for (outcome, calls) in played {
        outcome.expect("nothing goes wrong");
        let start = calls.iter().position(|call| call == "ncclGroupStart").expect("a group");
        let expected = [
            "ncclGroupStart",
            "ncclSend",
            "ncclRecv",
            "ncclSend",
            "ncclRecv",
            "ncclGroupEnd",
            "cuEventRecord",
            "cuMemcpyDtoHAsync",
        ];
        assert_eq!(calls[start..start + expected.len()], expected);
    }
}

#[test]
fn memory_of_the_device_is_used_where_it_is_behind_its_fence() {
    let scene = Scene { name: "lent", fault: "" };
    let played = scene.play(|world| loans::all_reduce(&*world.group(), (Element::F32, 8), [8, 8]));
    for (outcome, calls) in played {
        outcome.expect("nothing goes wrong");
        assert_eq!(count(&calls, "cuMemAllocAsync"), 0);
        let start = calls.iter().position(|call| call == "cuCtxRecordEvent").expect("a fence");
        let expected = ["cuCtxRecordEvent", "cuStreamWaitEvent", "ncclAllReduce", "cuEventRecord"];
        assert_eq!(calls[start..start + expected.len()], expected);
        assert_eq!(count(&calls, "cuMemcpyDtoHAsync"), 0);
    }
}

#[test]
fn communicators_have_ended_in_good_order_when_a_rank_leaves() {
    let scene = Scene { name: "end", fault: "" };
    let played = scene.play(|world| {
        let pair = world.group().split(0, world.rank().0, "pair")?;
        suite::run(&*pair, Op::Barrier, 0, None).map(drop)
    });
    for (outcome, calls) in played {
        outcome.expect("nothing goes wrong");
        assert_eq!(count(&calls, "ncclCommFinalize"), 2);
        assert_eq!(count(&calls, "ncclCommDestroy"), 2);
        assert_eq!(count(&calls, "ncclCommAbort"), 0);
    }
}

#[test]
fn failed_communicators_have_been_aborted_when_a_rank_leaves() {
    let scene = Scene { name: "abort", fault: "lost-peer" };
    let played = scene.play(|world| {
        let own = input(world.rank().0, 0, 8);
        suite::run(&*world.group(), Op::AllReduce, 8, Some(own)).map(drop)
    });
    for (outcome, calls) in played {
        assert!(outcome.is_err());
        assert_eq!((count(&calls, "ncclCommAbort"), count(&calls, "aborted")), (1, 1));
        assert_eq!(count(&calls, "ncclCommFinalize") + count(&calls, "ncclCommDestroy"), 0);
    }
}

/// What a rank says that waits in vain for devices to get everything back.
const LEFT_BEHIND: &str = "something is left on the devices";

#[test]
fn nothing_is_left_on_devices_after_a_world() {
    for fault in ["", "lost-peer"] {
        let outcomes = run_each(2, &[("DMUON_DOUBLE_FAULT", fault)], |spec| {
            let options = EngineOptions::default().with_deadline(PATIENCE);
            let outcome = as_rank(spec, &options, |world| {
                let pair = world.group().split(0, world.rank().0, "pair")?;
                loans::all_reduce(&*pair, (Element::F32, 8), [8, 8])?;
                let own = input(world.rank().0, 0, 8);
                suite::run(&*pair, Op::AllReduce, 8, Some(own)).map(drop)
            });
            let since = Instant::now();
            while device::num_live() > 0 {
                if since.elapsed() > PATIENCE {
                    return Err(Error::message(LEFT_BEHIND));
                }
                thread::sleep(Duration::from_millis(5));
            }
            outcome
        });
        for outcome in outcomes {
            let text = outcome.as_ref().map_or_else(ToString::to_string, |()| String::new());
            assert_eq!(outcome.is_ok(), fault.is_empty(), "{fault:?}: {text}");
            assert!(!text.contains(LEFT_BEHIND), "{fault:?}");
        }
    }
}

#[test]
fn collectives_of_several_groups_come_in_one_order_on_all_devices() {
    let scene = Scene { name: "turns", fault: "" };
    let played = scene.play(|world| {
        let rank = world.rank().0;
        let (here, there) = (world.group(), world.group().split(0, rank, "there")?);
        let mut works = Vec::new();
        for _ in 0..20 {
            let own = || (rank == 0).then(|| input(0, 0, 4));
            let cast = || there.start(call(Op::Broadcast { root: 0 }), own());
            let sum = || here.start(call(Op::Reduce { root: 0 }), Some(input(rank, 0, 4)));
            // The ranks start in opposite order.
            works.extend(if rank == 0 { [cast(), sum()] } else { [sum(), cast()] });
        }
        works.into_iter().try_for_each(|work| work?.wait(PATIENCE).map(drop))
    });
    let [zero, one] = played.map(|(outcome, mut calls)| {
        outcome.expect("nothing goes wrong");
        calls.retain(|call| call == "ncclBroadcast" || call == "ncclReduce");
        calls
    });
    assert_eq!((zero.len(), zero), (40, one));
}

fn call(op: Op) -> Call {
    Call::new(op, "layers.0", Element::F32, 4)
}
