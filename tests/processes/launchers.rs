//! The same program as threads and as processes, and launches that cannot be.

use crate::program::NUM_RANKS;
use crate::run::{run, run_alone};
use std::net::TcpListener;

/// No MPI library, where the loader and `mpiexec` would have one.
const NO_LIBRARY: (&str, &str) = ("DMUON_MPI_LIB", "/nowhere/libmpi_abi.so.1");

/// All ranks fail and say every part.
fn refused(num_ranks: usize, variables: &[(&str, &str)], parts: &[&str]) {
    let run = run(num_ranks, "plain", variables);
    assert!(!run.succeeded, "{run:#?}");
    for part in parts {
        assert!(run.ranks.iter().all(|rank| rank.said.contains(part)), "no {part:?}: {run:#?}");
    }
}

fn refused_alone(variables: &[(&str, &str)], parts: &[&str]) {
    let rank = run_alone("plain", variables);
    assert_eq!(rank.code, Some(1), "{rank:#?}");
    for part in parts {
        assert!(rank.said.contains(part), "no {part:?}: {rank:#?}");
    }
}

#[test]
fn processes_train_the_weights_that_threads_train() {
    let output = |scenario: &str| {
        let run = run(NUM_RANKS, scenario, &[]);
        assert!(run.succeeded, "{run:#?}");
        run.made("output").unwrap()
    };
    let processes = output("plain");
    assert_eq!(processes.len(), 64, "a hash: {processes}");
    assert_eq!(processes, output("plain, flat"));
    let threads = run_alone("plain", &[]);
    assert!(threads.said.contains(&processes), "{threads:#?} lacks {processes}");
}

#[test]
fn a_rank_may_skip_a_boundary() {
    let run = run(NUM_RANKS, "skips a boundary", &[]);
    assert!(run.succeeded && run.made("output").is_some(), "{run:#?}");
}

#[test]
fn another_number_of_processes_is_refused() {
    refused(2, &[], &["asks for 4 ranks", "of 2 (local rank"]);
}

#[test]
fn a_missing_library_is_named_with_what_was_tried() {
    let parts = ["no MPI library", "/nowhere/libmpi_abi.so.1", "No such file", "DMUON_MPI_LIB"];
    refused(NUM_RANKS, &[NO_LIBRARY], &parts);
}

#[test]
fn a_library_that_is_no_mpi_is_named_with_what_it_lacks() {
    let libm = ("DMUON_MPI_LIB", "libm.so.6");
    refused(NUM_RANKS, &[libm], &["libm.so.6", "no symbol MPI_", "DMUON_MPI_LIB"]);
}

#[test]
fn a_port_in_use_is_named_by_everybody() {
    let taken = TcpListener::bind("0.0.0.0:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let variables = [("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", port.as_str())];
    refused(NUM_RANKS, &variables, &[&format!("0.0.0.0:{port}"), "another MASTER_PORT"]);
}

#[test]
fn a_given_port_is_used() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let variables = [("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", free.as_str())];
    let run = run(NUM_RANKS, "plain", &variables);
    assert!(run.succeeded, "{run:#?}");
}

#[test]
fn a_launcher_that_mpi_does_not_know_is_named() {
    let torchrun = [("RANK", "1"), ("WORLD_SIZE", "4"), ("LOCAL_RANK", "1")];
    refused_alone(&torchrun, &["rank 1 of 4", "says rank 0 of 1", "mpiexec of that library"]);
}

#[test]
fn half_a_launch_is_refused() {
    refused_alone(&[("RANK", "1")], &["RANK=1 is set but WORLD_SIZE is not"]);
}

#[test]
fn a_rank_out_of_range_is_refused() {
    refused_alone(&[("RANK", "4"), ("WORLD_SIZE", "4")], &["rank 4 of 4", "out of range"]);
}

#[test]
fn launchers_that_disagree_are_both_named() {
    let torchrun = [("RANK", "0"), ("WORLD_SIZE", "8")];
    refused(NUM_RANKS, &torchrun, &["of 8 from RANK and WORLD_SIZE", "of 4", "PMI_RANK"]);
}
