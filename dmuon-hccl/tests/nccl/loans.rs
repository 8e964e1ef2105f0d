//! Memory of devices when something goes wrong: what ranks learn, and that it is kept as long as the
//! device may use it.

use crate::{
    conformance::Nccl,
    device::{self, Memory, hold, release, wait_until},
    doubles::{as_rank, run_each},
    protocol::JOURNAL,
    suite::{self, PATIENCE, input, texts},
};
use dmuon_core::{
    Call, DeviceBuffer, DeviceTransfer, Element, EngineOptions, Error, Group, Op, Rank, Result,
};
use std::{
    env, fs,
    sync::{Arc, Barrier},
    thread,
    time::Duration,
};

/// A deadline for waits that are meant to fail.
const SHORT: Duration = Duration::from_millis(200);

fn transfer(input: &Arc<Memory>, output: &Arc<Memory>) -> DeviceTransfer {
    DeviceTransfer { input: Some(input.lend()), output: Some(output.lend()) }
}

/// Starts an all-reduce, for which room for so many `f32` is lent each way, and waits.
pub(crate) fn all_reduce(
    group: &dyn Group,
    (element, num_elems): (Element, usize),
    lent: [usize; 2],
) -> Result<()> {
    let device = group.ranks()[group.rank()].0 as i32;
    let [input, output] = lent.map(|num| Memory::zeroed(device, 4 * num));
    let call = Call::new(Op::AllReduce, "layers.0", element, num_elems);
    group.start_on_device(call, transfer(&input, &output))?.wait(PATIENCE).map(drop)
}

#[test]
fn different_calls_are_reported_as_their_users_mean_them() {
    let texts = texts::<Nccl>(2, |world| match world.rank().0 {
        0 => all_reduce(&*world.group(), (Element::Bf16, 4), [4, 4]),
        rank => suite::run(&*world.group(), Op::AllReduce, 4, Some(input(rank, 0, 4))).map(drop),
    });
    for text in texts {
        assert!(text.contains("rank 0 called all_reduce(\"layers.0\", 4 bf16, 4 pay"), "{text}");
        assert!(text.contains("rank 1 called all_reduce(\"layers.0\", 4 f32, 4 payl"), "{text}");
    }
}

#[test]
fn missing_rank_is_named_within_the_deadline() {
    let texts = texts::<Nccl>(3, |world| {
        if world.rank() == Rank(2) {
            // Stays in the world until another rank has given up on it.
            while world.group().health().is_ok() {
                thread::sleep(Duration::from_millis(5));
            }
            return world.group().health();
        }
        let memory = Memory::zeroed(device::of(&world), 16);
        let room = Memory::zeroed(device::of(&world), 16);
        let call = Call::new(Op::AllReduce, "layers.0", Element::F32, 4);
        let work = world.group().start_on_device(call, transfer(&memory, &room))?;
        let outcome = work.wait(SHORT).map(drop);
        wait_until("given back", || Arc::strong_count(&memory) == 1);
        outcome
    });
    let expected = "all_reduce of \"layers.0\" on world #0 timed out after 0.2 s; not arrived: [2]";
    assert!(texts.iter().all(|text| text.contains(expected)), "{texts:?}");
}

#[test]
fn ill_sized_room_fails_everybody() {
    let texts = texts::<Nccl>(2, |world| {
        // Of halves, sums are carried out in `f32`, and so are their buffers.
        let is_right = world.rank() == Rank(0);
        let room = if is_right { 4 } else { 2 };
        let outcome = all_reduce(&*world.group(), (Element::Bf16, 4), [4, room]);
        let is_typed = matches!(
            outcome,
            Err(Error::Output { rank: Rank(1), expected: Some(16), actual: Some(8), .. })
        );
        assert!(is_right || is_typed, "{outcome:?}");
        outcome
    });
    let expected = "rank 1: all_reduce of \"layers.0\" on world #0 takes 16 bytes for its result, \
                    but got 8 bytes";
    assert!(texts.iter().all(|text| text.contains(expected)), "{texts:?}");
}

#[test]
fn ill_sized_input_fails_everybody() {
    let texts = texts::<Nccl>(2, |world| {
        let brought = if world.rank().0 == 0 { 4 } else { 2 };
        all_reduce(&*world.group(), (Element::F32, 4), [brought, 4])
    });
    let expected = "rank 1: all_reduce of \"layers.0\" on world #0 takes 16 bytes, got 8 bytes";
    assert!(texts.iter().all(|text| text.contains(expected)), "{texts:?}");
}

#[test]
fn a_root_that_sends_has_no_room_for_results() {
    let texts = texts::<Nccl>(2, |world| {
        let lend = || Some(Memory::zeroed(device::of(&world), 4).lend());
        let own = |buffer: Option<DeviceBuffer>| buffer.filter(|_| world.rank().0 == 0);
        let transfer = DeviceTransfer { input: own(lend()), output: lend() };
        let call = Call::new(Op::Broadcast { root: 0 }, "layers.0", Element::F32, 1);
        world.group().start_on_device(call, transfer)?.wait(PATIENCE).map(drop)
    });
    let expected = "rank 0: broadcast of \"layers.0\" on world #0 takes no buffer for its result";
    assert!(texts.iter().all(|text| text.contains(expected)), "{texts:?}");
}

/// Everything the double was asked for.
fn journal() -> Vec<String> {
    let path = env::var_os(JOURNAL).expect("ranks are told where it is");
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

#[test]
fn memory_is_kept_until_the_device_is_past_an_aborted_collective() {
    static AGREED: Barrier = Barrier::new(2);
    let path = env::temp_dir().join(format!("dmuon-{}-loans", std::process::id()));
    let settings = [(JOURNAL, path.to_str().expect("names are plain"))];
    let options = EngineOptions::default().with_deadline(PATIENCE);
    let outcomes = run_each(2, &settings, |spec| {
        as_rank(spec, &options, |world| {
            let (rank, device) = (world.rank().0, device::of(&world));
            let [memory, room] = [(); 2].map(|()| Memory::zeroed(device, 16));
            if rank == 1 {
                // So rank 1's stream does not come to the collective, for which rank 0's waits.
                hold(1);
                memory.set(7);
            }
            let call = Call::new(Op::AllReduce, "layers.0", Element::F32, 4);
            let work = world.group().start_on_device(call, transfer(&memory, &room))?;
            let kept = [memory, room].map(|memory| Arc::downgrade(&memory));
            let note = |what: &str| format!("{rank} {what}");
            // Behind the wait and the collective there is the mark.
            let is_marked = || {
                let calls = journal();
                let start = calls.iter().position(|call| *call == note("ncclAllReduce"));
                start.is_some_and(|start| calls[start..].contains(&note("cuEventRecord")))
            };
            wait_until("on the stream", is_marked);
            AGREED.wait();
            if rank == 0 {
                world.group().abort(Error::message("enough"));
            }
            let failed = work.wait(PATIENCE).expect_err("aborted");
            wait_until("aborted", || journal().contains(&note("aborted")));
            if rank == 1 {
                thread::sleep(SHORT);
                assert!(kept.iter().all(|memory| memory.strong_count() > 0), "given back early");
                release(1);
            }
            wait_until("given back", || kept.iter().all(|memory| memory.strong_count() == 0));
            Err(failed)
        })
    });
    for (rank, outcome) in outcomes.iter().enumerate() {
        let text = outcome.as_ref().expect_err("aborted").to_string();
        assert!(text.contains("rank 0 failed: enough"), "rank {rank}: {text}");
    }
    let calls = fs::read_to_string(&path).expect("the double wrote it");
    fs::remove_file(&path).expect("just read");
    for rank in 0..2 {
        let place = |what| calls.lines().position(|call| call == format!("{rank} {what}"));
        let [aborted, freed] = ["aborted", "testdouble_free"].map(place);
        assert!(aborted.is_some() && aborted < freed, "rank {rank}: {aborted:?}, {freed:?}");
    }
}
