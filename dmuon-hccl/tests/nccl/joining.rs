//! Processes that cannot join, and what they are told.

use crate::doubles::{DRIVER, Settings, as_rank, run, run_each};
use dmuon_core::{Collectives, EngineOptions, Error, Rank, Result, World};
use dmuon_hccl::{Environment, LaunchSpec, control::Credentials};
use std::{fs, thread, time::Duration};

/// A deadline for waits that are meant to fail.
const SHORT: Duration = Duration::from_secs(1);

fn nothing(_: World) -> Result<()> {
    Ok(())
}

/// What each rank is told when it tries to join.
fn refusals(num_ranks: usize, options: &EngineOptions, settings: Settings<'_>) -> Vec<String> {
    let outcomes = run(num_ranks, options, settings, nothing);
    outcomes.into_iter().map(|outcome| outcome.expect_err("cannot join").to_string()).collect()
}

fn alone(settings: Settings<'_>) -> String {
    refusals(1, &EngineOptions::default(), settings).remove(0)
}

#[test]
fn without_a_driver_its_name_is_told() {
    // Where there is a real driver, it has no device to show.
    let text = alone(&[("LD_LIBRARY_PATH", ""), ("CUDA_VISIBLE_DEVICES", "")]);
    assert!(
        text.starts_with("no GPU driver: looked for libcuda.so (")
            && text.contains("libcuda.so.1 (cannot open shared object")
            || text.contains("the driver shows this process 0 devices"),
        "{text}"
    );
}

#[test]
fn another_library_by_the_drivers_name_is_found_out() {
    let maps = fs::read_to_string("/proc/self/maps").expect("Linux tells");
    let libc = maps.split_whitespace().find(|word| word.ends_with("/libc.so.6"));
    let text = alone(&[(DRIVER, libc.expect("every program has it"))]);
    assert!(text.contains("looked for libcuda.so (it lacks cuInit)"), "{text}");
}

#[test]
fn without_a_device_the_driver_is_blamed() {
    let text = alone(&[("DMUON_DOUBLE_DEVICES", "0")]);
    assert!(text.contains("rank 0 of 1 (local rank 0)"), "{text}");
    assert!(text.contains("the driver shows this process 0 devices"), "{text}");
}

#[test]
fn too_few_devices_are_counted_and_everybody_is_told() {
    let texts = refusals(2, &EngineOptions::default(), &[("DMUON_DOUBLE_DEVICES", "1")]);
    let expected = "rank 1 of 2 (local rank 1) from the explicit configuration, but the driver \
                    shows this process 1 devices";
    assert!(texts[1].starts_with(expected), "{texts:?}");
    assert!(texts[0].starts_with(&format!("rank 1 failed: {expected}")), "{texts:?}");
}

#[test]
fn without_a_library_the_path_is_told() {
    let text = alone(&[("DMUON_NCCL_LIB", "/nowhere/libnccl.so.2")]);
    assert!(text.contains("no NCCL library: tried /nowhere/libnccl.so.2 (cannot open"), "{text}");
    assert!(text.contains("DMUON_NCCL_LIB"), "{text}");
}

#[test]
fn another_library_is_found_out_by_its_symbols() {
    let text = alone(&[("DMUON_NCCL_LIB", "libm.so.6")]);
    assert!(text.contains("libm.so.6 has no symbol ncclGetVersion"), "{text}");
}

#[test]
fn old_versions_are_refused() {
    let text = alone(&[("DMUON_DOUBLE_VERSION", "21703")]);
    let found = "has NCCL ABI 2.17.3, dmuon needs version 2.18.1 or newer";
    assert!(text.contains(found), "{text}");
}

#[test]
fn unknown_versions_are_refused() {
    let text = alone(&[("DMUON_DOUBLE_VERSION", "30000")]);
    assert!(text.contains("has NCCL ABI 3.0.0, dmuon needs version 2"), "{text}");
}

#[test]
fn sums_in_the_canonical_order_are_refused() {
    let ordered = EngineOptions::default().with_collectives(Collectives::Ordered);
    let text = refusals(1, &ordered, &[]).remove(0);
    assert!(text.contains("NCCL sums in an order of its own"), "{text}");
}

#[test]
fn sums_in_the_canonical_order_are_refused_to_the_environment() {
    let text = alone(&[("DMUON_COLLECTIVES", "ordered")]);
    assert!(text.contains("NCCL sums in an order of its own"), "{text}");
}

#[test]
fn settings_are_read_before_anything_is_opened() {
    let text = alone(&[("DMUON_VERIFY", "perhaps"), ("DMUON_DOUBLE_DEVICES", "0")]);
    assert!(text.contains("DMUON_VERIFY") && text.contains("perhaps"), "{text}");
}

#[test]
fn sums_of_the_library_may_be_asked_for() {
    let library = EngineOptions::default().with_collectives(Collectives::Library);
    let outcomes = run(1, &library, &[], nothing);
    assert!(outcomes[0].is_ok(), "{outcomes:?}");
}

/// What a rank is told whose launcher left something out.
fn forgetting(forget: fn(&mut LaunchSpec)) -> String {
    let outcomes = run_each(1, &[], |spec| {
        let mut spec = spec.clone();
        forget(&mut spec);
        as_rank(&spec, &EngineOptions::default(), nothing)
    });
    outcomes[0].as_ref().expect_err("something is missing").to_string()
}

#[test]
fn without_a_local_rank_the_variable_is_told() {
    let text = forgetting(|spec| spec.local_rank = None);
    assert!(text.contains("set LOCAL_RANK"), "{text}");
}

#[test]
fn without_a_place_to_meet_the_variables_are_told() {
    let text = forgetting(|spec| spec.rendezvous = None);
    assert!(text.contains("set MASTER_ADDR and MASTER_PORT"), "{text}");
}

#[test]
fn a_rank_that_never_comes_is_named() {
    let options = EngineOptions::default().with_deadline(SHORT);
    let outcomes = run_each(3, &[], |spec| match spec.rank {
        Rank(1) => Ok(()),
        _ => as_rank(spec, &options, nothing),
    });
    for rank in [0, 2] {
        let text = outcomes[rank].as_ref().expect_err("rank 1 is missing").to_string();
        assert!(text.contains("not arrived within 1 s: ranks [1]"), "{text}");
    }
}

#[test]
fn a_rank_that_meets_but_never_connects_ends_the_wait() {
    let options = EngineOptions::default().with_deadline(SHORT);
    let outcomes = run_each(3, &[], |spec| match spec.rank {
        Rank(1) => meet_only(spec),
        _ => as_rank(spec, &options, nothing),
    });
    assert!(outcomes[1].is_ok(), "{outcomes:?}");
    for rank in [0, 2] {
        let text = outcomes[rank].as_ref().expect_err("rank 1 is missing").to_string();
        assert!(text.contains("NCCL did not connect the ranks within 1 s"), "{text}");
    }
}

/// Stays in the world until it fails.
fn meet_only(spec: &LaunchSpec) -> Result<()> {
    let credentials = Credentials::read(spec, &Environment::of_process());
    let place = spec.rendezvous.as_ref().expect("ranks of tests meet somewhere");
    let (member, _host) = place.meet(&credentials, 10 * SHORT).map_err(Error::external)?;
    while member.watch().failure().is_none() {
        thread::sleep(Duration::from_millis(5));
    }
    member.leave(Duration::ZERO);
    Ok(())
}
