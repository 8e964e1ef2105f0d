//! Starts ranks: threads of this process or, where a launcher started several, this process as one.

use dmuon_burn::{Error, Result};
use dmuon_core::{EngineOptions, World};
use dmuon_hccl::{Environment, Launch, LaunchError, LaunchSpec, read_launch};
use std::fmt::Display;

/// Runs `rank_main` on `num_ranks` ranks and returns the results of those that this process runs.
///
/// Started by itself, a process runs all ranks as threads, and returns all results in rank order.
/// Started as one of several, by `mpiexec` for instance, it is one rank and returns one result; the
/// program is the same. Which of the two is read from the environment, as
/// [`read_launch`](dmuon_hccl::read_launch) describes; a launcher that starts one process only
/// counts as none.
///
/// # Collective
/// Every process, as often as every other.
///
/// # Errors
/// The first failure of any rank, as [`dmuon_core::launch`]; all other ranks get an error naming
/// it, in every process. Also a launcher that started another number of processes than
/// `num_ranks`, launchers that disagree, and a missing engine (features `mpi`, `cuda`,
/// `hccl`) or library. Where several engines were built, `DMUON_ENGINE` chooses.
pub fn launch<T, E, F>(num_ranks: usize, rank_main: F) -> Result<Vec<T>, E>
where
    T: Send,
    E: From<Error> + From<dmuon_core::Error> + Display + Send + 'static,
    F: Fn(World) -> Result<T, E> + Sync,
{
    launch_with(num_ranks, &EngineOptions::default(), rank_main)
}

/// [`launch`] with options: deadlines, how buffers are shared, what is recorded.
///
/// # Errors
/// As [`launch`].
pub fn launch_with<T, E, F>(
    num_ranks: usize,
    options: &EngineOptions,
    rank_main: F,
) -> Result<Vec<T>, E>
where
    T: Send,
    E: From<Error> + From<dmuon_core::Error> + Display + Send + 'static,
    F: Fn(World) -> Result<T, E> + Sync,
{
    match one_of_several(read()?, num_ranks)? {
        Some(spec) => processes::run(&spec, options, rank_main).map(|result| vec![result]),
        None => dmuon_core::launch_with(num_ranks, options, rank_main),
    }
}

/// Whether this process runs rank 0, so that what it prints or writes appears once.
///
/// # Errors
/// Half a launch, or launchers that disagree.
pub fn is_first_process() -> Result<bool> {
    Ok(match read()? {
        Launch::InProcess => true,
        Launch::Process(spec) => spec.rank.0 == 0,
    })
}

/// Which of its machine's processes this is, and so which device it should take; 0 where ranks are
/// threads.
///
/// # Errors
/// Half a launch, launchers that disagree, or a launcher that does not say.
pub fn local_rank() -> Result<usize> {
    Ok(local_rank_of(read()?)?)
}

fn local_rank_of(launch: Launch) -> Result<usize, dmuon_core::Error> {
    match launch {
        Launch::Process(spec) if spec.world_size > 1 => spec.local_rank.ok_or_else(|| {
            dmuon_core::Error::external(LaunchError::NoLocalRank { claim: spec.claim() })
        }),
        _ => Ok(0),
    }
}

fn read() -> Result<Launch, dmuon_core::Error> {
    read_launch(None, &Environment::of_process()).map_err(dmuon_core::Error::external)
}

/// This process's place among several, if there are several.
fn one_of_several(
    launch: Launch,
    num_ranks: usize,
) -> Result<Option<LaunchSpec>, dmuon_core::Error> {
    let spec = match launch {
        Launch::Process(spec) if spec.world_size > 1 => spec,
        _ => return Ok(None),
    };
    if spec.world_size != num_ranks {
        let error = LaunchError::WorldSize { claim: spec.claim(), asked: num_ranks };
        return Err(dmuon_core::Error::external(error));
    }
    Ok(Some(spec))
}

/// This process as a rank.
#[cfg(any(feature = "mpi", feature = "cuda", feature = "hccl"))]
mod processes {
    use super::*;
    use dmuon_hccl::Engine;

    pub(super) fn run<T, E, F>(
        spec: &LaunchSpec,
        options: &EngineOptions,
        rank_main: F,
    ) -> Result<T, E>
    where
        E: From<dmuon_core::Error> + Display + 'static,
        F: Fn(World) -> Result<T, E>,
    {
        let engine = Engine::choose(&Environment::of_process());
        let process = engine.map_err(dmuon_core::Error::external)?.join(spec, options)?;
        let outcome = dmuon_core::run_rank(&process, rank_main);
        // A rank that did well fails all the same when another does.
        let left = process.leave();
        let result = outcome?;
        left?;
        Ok(result)
    }
}

/// Nothing here connects processes.
#[cfg(not(any(feature = "mpi", feature = "cuda", feature = "hccl")))]
mod processes {
    use super::*;

    pub(super) fn run<T, E, F>(
        spec: &LaunchSpec,
        _options: &EngineOptions,
        _rank_main: F,
    ) -> Result<T, E>
    where
        E: From<dmuon_core::Error>,
        F: Fn(World) -> Result<T, E>,
    {
        // Never alone: each process would train a model of its own.
        let error = LaunchError::NoEngine { claim: spec.claim() };
        Err(dmuon_core::Error::external(error).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dmuon_core::Rank;

    fn one_of(world_size: usize) -> Launch {
        Launch::Process(LaunchSpec::new(Rank(0), world_size))
    }

    #[test]
    fn one_process_runs_threads_and_several_are_ranks() {
        assert_eq!(one_of_several(Launch::InProcess, 4).ok(), Some(None));
        assert_eq!(one_of_several(one_of(1), 4).ok(), Some(None));
        let spec = one_of_several(one_of(4), 4).ok().flatten();
        assert_eq!(spec, Some(LaunchSpec::new(Rank(0), 4)));
    }

    #[test]
    fn local_ranks_are_told_or_asked_for_and_threads_have_the_first_device() {
        assert_eq!(local_rank_of(Launch::InProcess).ok(), Some(0));
        assert_eq!(local_rank_of(one_of(1)).ok(), Some(0));
        let message = local_rank_of(one_of(4)).unwrap_err().to_string();
        assert!(message.contains("set LOCAL_RANK"), "{message}");
        let spec = LaunchSpec { local_rank: Some(2), ..LaunchSpec::new(Rank(6), 8) };
        assert_eq!(local_rank_of(Launch::Process(spec)).ok(), Some(2));
    }

    #[test]
    fn a_program_that_wants_other_ranks_than_the_launcher_is_told() {
        let message = one_of_several(one_of(4), 2).unwrap_err().to_string();
        assert!(message.contains("asks for 2 ranks"), "{message}");
        assert!(message.contains("rank 0 of 4"), "{message}");
    }

    #[cfg(not(any(feature = "mpi", feature = "cuda", feature = "hccl")))]
    #[test]
    fn one_of_several_processes_is_refused_rather_than_trained_alone() {
        let spec = LaunchSpec::new(Rank(1), 4);
        let run = processes::run::<(), dmuon_core::Error, _>;
        let message = run(&spec, &EngineOptions::default(), |_| Ok(())).unwrap_err().to_string();
        assert!(message.contains("rank 1 of 4"), "{message}");
        assert!(message.contains("--features mpi"), "{message}");
    }
}
