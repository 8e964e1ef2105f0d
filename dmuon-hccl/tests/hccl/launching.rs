//! Starting: with root information, with a rank table, and all that may be missing.

use crate::{
    again, double,
    ranks::{Ranks, assert_all_contain, text},
    suite::{PATIENCE, input, run},
};
use dmuon_core::{Collectives, Op, Rank, Result, World};
use dmuon_hccl::hccl::Libraries;
use std::{
    fs,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

fn all_reduce(world: World) -> Result<()> {
    run(&*world.group(), Op::AllReduce, 5, Some(input(world.rank().0, 0, 5))).map(drop)
}

/// A table of one machine with the world's devices, less the ranks that are left out.
fn write_table(path: &Path, ranks: &Ranks, num_listed: usize) {
    let device =
        |rank| format!(r#"{{"device_id": "{}", "rank_id": "{rank}"}}"#, ranks.first_device + rank);
    let devices: Vec<String> = (0..num_listed).map(device).collect();
    let table = format!(
        r#"{{"status": "completed", "version": "1.0", "server_count": "1",
            "server_list": [{{"server_id": "node_0", "device": [{}]}}]}}"#,
        devices.join(", ")
    );
    fs::write(path, table).expect("the temporary folder is writable");
}

fn with_table(size: usize, num_listed: usize) -> Ranks {
    let mut ranks = Ranks::new(size);
    let path = ranks.file("table.json");
    write_table(&path, &ranks, num_listed);
    ranks.rank_table = Some(path);
    ranks
}

#[test]
fn ranks_start_from_a_rank_table_and_take_its_devices() {
    let ranks = with_table(3, 3);
    let spec = |rank| {
        let mut spec = ranks.spec(rank);
        spec.local_rank = None;
        spec
    };
    for (rank, outcome) in ranks.run_as(&spec, all_reduce).into_iter().enumerate() {
        assert_eq!(text(outcome), "ok");
        assert_eq!(double::num_calls(ranks.device(rank), "HcclAllReduce"), 1);
    }
    fs::remove_file(ranks.file("table.json")).expect("just made");
}

#[test]
fn a_rank_table_that_is_not_there_is_named() {
    let mut ranks = Ranks::new(2);
    ranks.rank_table = Some("/nowhere/ranks.json".into());
    assert_all_contain(
        &ranks.texts(all_reduce),
        &["/nowhere/ranks.json cannot be used: No such file"],
    );
}

#[test]
fn a_rank_table_of_another_world_is_refused() {
    let ranks = with_table(3, 2);
    assert_all_contain(&ranks.texts(all_reduce), &["of 3", "lists 2 ranks"]);
    fs::remove_file(ranks.file("table.json")).expect("just made");
}

#[test]
fn missing_libraries_are_named_with_where_they_were_looked_for_and_what_to_do() {
    let mut ranks = Ranks::new(2);
    ranks.libraries = Libraries::at("/nowhere/libascendcl.so", double::path());
    let parts =
        ["no AscendCL library: tried /nowhere/libascendcl.so (", "DMUON_ACL_LIB", "set_env.sh"];
    assert_all_contain(&ranks.texts(all_reduce), &parts);
    let mut ranks = Ranks::new(2);
    ranks.libraries = Libraries::at(double::path(), "/nowhere/libhccl.so");
    let parts = ["no HCCL library: tried /nowhere/libhccl.so (", "DMUON_HCCL_LIB", "set_env.sh"];
    assert_all_contain(&ranks.texts(all_reduce), &parts);
}

#[test]
fn libraries_that_lack_a_function_are_named_with_it() {
    let mut ranks = Ranks::new(2);
    ranks.libraries = Libraries::at(double::path(), "libm.so.6");
    let parts = ["libm.so.6 has no symbol HcclGetRootInfo", "too old", "DMUON_HCCL_LIB"];
    assert_all_contain(&ranks.texts(all_reduce), &parts);
}

#[test]
fn one_rank_without_a_device_fails_all() {
    for poor in 0..3 {
        let ranks = Ranks::new(3);
        let spec = |rank| {
            let mut spec = ranks.spec(rank);
            if rank == poor {
                spec.local_rank = Some(70_000);
            }
            spec
        };
        let texts: Vec<_> = ranks.run_as(&spec, all_reduce).into_iter().map(text).collect();
        let who = format!("rank {poor} of 3");
        assert_all_contain(&texts, &[&who, "takes device 70000", "AscendCL shows 65536"]);
    }
}

#[test]
fn a_rank_that_never_starts_ends_with_the_deadline() {
    let mut ranks = Ranks::new(3);
    ranks.options = ranks.options.with_deadline(Duration::from_secs(1));
    double::never_start(ranks.device(2));
    let start = Instant::now();
    let texts = ranks.texts(all_reduce);
    assert_all_contain(&texts, &["HCCL did not connect the ranks within 1 s"]);
    assert!(start.elapsed() < PATIENCE / 2, "took {:?}", start.elapsed());
}

#[test]
fn a_device_that_never_opens_is_blamed_on_its_rank() {
    let mut ranks = Ranks::new(3);
    ranks.options = ranks.options.with_deadline(Duration::from_secs(1));
    double::never_open(ranks.device(1));
    let start = Instant::now();
    let texts = ranks.texts(all_reduce);
    // Rank 1 gives up on its device, or another one on rank 1, whoever is first.
    for (rank, text) in texts.iter().enumerate() {
        let is_named = text.contains("rank 1 failed: AscendCL did not open")
            || rank == 1 && text.contains("AscendCL did not open this rank's device within 1 s")
            || text.contains("ranks [1] did not ask it to");
        assert!(is_named, "rank {rank} got {text:?}");
    }
    assert!(start.elapsed() < PATIENCE / 2, "took {:?}", start.elapsed());
}

/// In a process of its own, as the double ends one that finalizes too early.
#[test]
fn a_process_may_exit_while_its_device_opens() {
    let start = |_: &Path, program: &Path| Command::new(program);
    let outcomes = again::run(1, start, |folder| {
        let mut ranks = Ranks::new(1);
        ranks.options = ranks.options.with_deadline(Duration::from_millis(300));
        double::never_open(ranks.device(0));
        again::leave(folder, Rank(0), &ranks.run(all_reduce).remove(0));
    });
    let texts: Vec<_> = outcomes.into_iter().map(text).collect();
    assert_all_contain(&texts, &["AscendCL did not open this rank's device within 0.3 s"]);
}

#[test]
fn what_nobody_says_is_asked_for() {
    let ranks = Ranks::new(1);
    let start = |change: fn(&mut dmuon_hccl::LaunchSpec)| {
        let spec = |rank| {
            let mut spec = ranks.spec(rank);
            change(&mut spec);
            spec
        };
        ranks.run_as(&spec, all_reduce).into_iter().map(text).collect::<Vec<_>>()
    };
    assert_all_contain(&start(|spec| spec.rendezvous = None), &["MASTER_ADDR and MASTER_PORT"]);
    assert_all_contain(
        &start(|spec| spec.local_rank = None),
        &["set LOCAL_RANK, or RANK_TABLE_FILE"],
    );
}

#[test]
fn ordered_sums_are_refused_where_they_were_chosen() {
    let mut ranks = Ranks::new(1);
    ranks.options = ranks.options.with_collectives(Collectives::Ordered);
    assert_all_contain(&ranks.texts(all_reduce), &["HCCL sums in an order of its own"]);
    ranks.options = ranks.options.with_collectives(Collectives::Library);
    assert_eq!(ranks.texts(all_reduce), ["ok"]);
}
