//! Runs one body on every rank of a world whose ranks are threads and whose devices are the double's.

use crate::{double, suite::PATIENCE};
use dmuon_core::{EngineOptions, Rank, Result, Verify, World, run_rank};
use dmuon_hccl::{
    LaunchSpec, Rendezvous,
    hccl::{Libraries, join_with},
};
use std::{
    env,
    path::PathBuf,
    process,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

/// More devices than any world here has ranks.
const NUM_DEVICES: usize = 16;

/// A world to be: devices that no other test uses, and a place to meet.
#[derive(Clone, Debug)]
pub(crate) struct Ranks {
    pub(crate) size: usize,
    pub(crate) first_device: usize,
    pub(crate) options: EngineOptions,
    pub(crate) libraries: Libraries,
    pub(crate) rank_table: Option<PathBuf>,
}

impl Ranks {
    /// So many ranks, with calls verified.
    pub(crate) fn new(size: usize) -> Self {
        static NUM_WORLDS: AtomicUsize = AtomicUsize::new(0);
        Self {
            size,
            first_device: NUM_DEVICES * NUM_WORLDS.fetch_add(1, Ordering::Relaxed),
            options: EngineOptions::default().with_deadline(PATIENCE).with_verify(Verify::Always),
            libraries: Libraries::at(double::path(), double::path()),
            rank_table: None,
        }
    }

    /// The device of a rank.
    pub(crate) fn device(&self, rank: usize) -> i32 {
        (self.first_device + rank) as i32
    }

    /// A file that only this world knows.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        env::temp_dir().join(format!("dmuon-hccl-{}-{}-{name}", process::id(), self.first_device))
    }

    /// How a rank is launched.
    pub(crate) fn spec(&self, rank: usize) -> LaunchSpec {
        let mut spec = LaunchSpec::new(Rank(rank), self.size);
        spec.local_rank = Some(self.first_device + rank);
        spec.rendezvous = Some(Rendezvous::File { path: self.file("meeting") });
        spec.rank_table.clone_from(&self.rank_table);
        spec
    }

    /// Every rank's outcome.
    pub(crate) fn run(&self, body: impl Fn(World) -> Result<()> + Sync) -> Vec<Result<()>> {
        self.run_as(&|rank| self.spec(rank), body)
    }

    /// Every rank's outcome, launched as it is told.
    pub(crate) fn run_as(
        &self,
        spec: &(dyn Fn(usize) -> LaunchSpec + Sync),
        body: impl Fn(World) -> Result<()> + Sync,
    ) -> Vec<Result<()>> {
        let rank_main = |rank| {
            let process = join_with(&self.libraries, &spec(rank), &self.options)?;
            let outcome = run_rank(&process, &body);
            // What the others did is theirs to tell.
            let _failure = process.leave();
            outcome
        };
        thread::scope(|scope| {
            let ranks: Vec<_> =
                (0..self.size).map(|rank| scope.spawn(move || rank_main(rank))).collect();
            ranks.into_iter().map(|rank| rank.join().expect("panics are caught")).collect()
        })
    }

    /// Every rank's outcome as text, `"ok"` for success.
    pub(crate) fn texts(&self, body: impl Fn(World) -> Result<()> + Sync) -> Vec<String> {
        self.run(body).into_iter().map(text).collect()
    }

    /// Expects success everywhere.
    pub(crate) fn succeed(&self, body: impl Fn(World) -> Result<()> + Sync) {
        for (rank, outcome) in self.run(body).into_iter().enumerate() {
            outcome.unwrap_or_else(|error| panic!("rank {rank}: {error}"));
        }
    }
}

/// An outcome as text.
pub(crate) fn text(outcome: Result<()>) -> String {
    outcome.map_or_else(|error| error.to_string(), |()| "ok".into())
}

/// Asserts that every rank was told the same.
pub(crate) fn assert_all_contain(texts: &[String], parts: &[&str]) {
    for (rank, text) in texts.iter().enumerate() {
        for part in parts {
            assert!(text.contains(part), "rank {rank} got {text:?} without {part:?}");
        }
    }
}
