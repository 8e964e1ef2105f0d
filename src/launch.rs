//! Starts ranks: threads of this process, unless the environment says that it is one of several.

use dmuon_burn::{Error, Result};
use dmuon_core::{EngineOptions, World};
use dmuon_hccl::{Environment, Launch, read_launch};
use std::fmt::Display;

/// Runs `rank_main` on `num_ranks` rank threads and returns their results in rank order.
///
/// # Errors
/// The first failure of any rank, as [`dmuon_core::launch`]; all other ranks get an error naming
/// it. A process that a launcher started as one of several is refused: no engine in this version
/// connects processes, and each would train a model of its own.
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
    refuse_processes(read_launch(None, &Environment::of_process()))?;
    dmuon_core::launch_with(num_ranks, options, rank_main)
}

fn refuse_processes(
    launch: std::result::Result<Launch, dmuon_hccl::LaunchError>,
) -> std::result::Result<(), dmuon_core::Error> {
    match launch.map_err(dmuon_core::Error::external)? {
        Launch::InProcess => Ok(()),
        Launch::Process(spec) if spec.world_size == 1 => Ok(()),
        Launch::Process(spec) => Err(dmuon_core::Error::message(format!(
            "this process is rank {} of {} ({}), but this version runs ranks as threads of one \
             process: start the program once, without a launcher",
            spec.rank, spec.world_size, spec.source
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dmuon_core::Rank;
    use dmuon_hccl::LaunchSpec;

    #[test]
    fn one_of_several_processes_is_refused_rather_than_trained_alone() {
        assert!(refuse_processes(Ok(Launch::InProcess)).is_ok());
        assert!(refuse_processes(Ok(Launch::Process(LaunchSpec::new(Rank(0), 1)))).is_ok());
        let process = Launch::Process(LaunchSpec::new(Rank(1), 4));
        let message = refuse_processes(Ok(process)).unwrap_err().to_string();
        assert!(message.contains("rank 1 of 4"), "{message}");
    }
}
