//! Runs ranks as threads and turns whatever goes wrong on one of them into an error for all.

use crate::{EngineOptions, Error, Rank, Recorder, Result, World, engine::in_process::InProcess};
use std::{
    any::Any,
    fmt::Display,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    path::Path,
    sync::Arc,
    thread::{self, Scope, ScopedJoinHandle},
};

/// Runs `rank_main` on `num_ranks` threads named `rank-N` and returns their results in rank order.
///
/// ```
/// use dmuon_core::{Error, launch};
///
/// let ranks = launch(4, |world| Ok::<_, Error>(world.rank().0))?;
/// assert_eq!(ranks, [0, 1, 2, 3]);
/// # Ok::<(), Error>(())
/// ```
///
/// # Errors
/// The first failure of any rank: the error it returned, the [`Error`] it [raised](raise), or
/// [`Error::RankPanicked`]. Every other rank's collectives fail at once with an error naming it, and
/// all ranks are joined before this returns.
pub fn launch<T, E, F>(num_ranks: usize, rank_main: F) -> Result<Vec<T>, E>
where
    T: Send,
    E: From<Error> + Display + Send + 'static,
    F: Fn(World) -> Result<T, E> + Sync,
{
    launch_with(num_ranks, &EngineOptions::default(), rank_main)
}

/// [`launch`] with options.
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
    E: From<Error> + Display + Send + 'static,
    F: Fn(World) -> Result<T, E> + Sync,
{
    let engine = InProcess::new(num_ranks, options)?;
    let mut outcomes = run(&engine, num_ranks, &rank_main);
    let Some((culprit, cause)) = engine.failure() else {
        return outcomes.into_iter().collect();
    };
    match outcomes.swap_remove(culprit.0) {
        Err(own) => Err(own),
        Ok(_) => Err(cause.into()),
    }
}

/// [`launch`] with options and every rank's own outcome, for tests of failure.
///
/// # Errors
/// No rank could be started. What happens on a rank is in its own entry.
pub fn launch_each<T, E, F>(
    num_ranks: usize,
    options: &EngineOptions,
    rank_main: F,
) -> Result<Vec<Result<T, E>>>
where
    T: Send,
    E: From<Error> + Display + Send + 'static,
    F: Fn(World) -> Result<T, E> + Sync,
{
    let engine = InProcess::new(num_ranks, options)?;
    Ok(run(&engine, num_ranks, &rank_main))
}

/// A rank's place in its engine: where its world comes from, and how the other ranks learn what
/// became of it.
pub trait Seat {
    /// The rank's view of the world; asked for once.
    fn world(&self) -> World;

    /// Fails every rank with `cause`, unless they have failed before.
    fn fail(&self, cause: Error);

    /// Notes that the rank will start nothing more; whoever needs it from now on learns so.
    fn finish(&self);

    /// Where to write the flight recording when the rank fails, if anywhere.
    fn dump_directory(&self) -> Option<&Path>;
}

/// Runs `rank_main` as one rank on the calling thread; whatever it does, the others are told.
///
/// # Errors
/// The rank's own: what `rank_main` returned, the [`Error`] it [raised](raise), or
/// [`Error::RankPanicked`].
pub fn run_rank<T, E, F>(seat: &impl Seat, rank_main: F) -> Result<T, E>
where
    E: From<Error> + Display + 'static,
    F: FnOnce(World) -> Result<T, E>,
{
    let world = seat.world();
    let (rank, recorder) = (world.rank(), world.recorder().clone());
    let outcome = match catch_unwind(AssertUnwindSafe(|| rank_main(world))) {
        Ok(returned) => returned.inspect_err(|error| seat.fail(seen_from_afar(error, rank))),
        Err(panic) => {
            let error = unwound(panic, rank);
            seat.fail(error.clone().seen_from_afar(rank));
            Err(error.into())
        }
    };
    if let (Err(_), Some(directory)) = (&outcome, seat.dump_directory()) {
        dump(&recorder, rank, directory);
    }
    seat.finish();
    outcome
}

/// Unwinds with `error`, silently: [`launch`] and [`catch`] turn it into `Err`. For code that has
/// no way to return a result, such as a hook inside a forward.
pub fn raise(error: Error) -> ! {
    // Unlike a panic, this does not call the panic hook.
    resume_unwind(Box::new(error))
}

/// Runs `body` and returns the [`Error`] it unwinds with, if it does; any other panic goes on.
///
/// # Errors
/// What `body` [raised](raise).
pub fn catch<T>(body: impl FnOnce() -> T) -> Result<T> {
    catch_unwind(AssertUnwindSafe(body)).map_err(|payload| match payload.downcast::<Error>() {
        Ok(error) => *error,
        Err(panic) => resume_unwind(panic),
    })
}

/// Starts and joins every rank.
fn run<T, E, F>(engine: &InProcess, num_ranks: usize, rank_main: &F) -> Vec<Result<T, E>>
where
    T: Send,
    E: From<Error> + Display + Send + 'static,
    F: Fn(World) -> Result<T, E> + Sync,
{
    thread::scope(|scope| {
        let ranks: Vec<_> =
            (0..num_ranks).map(|rank| spawn(scope, engine, Rank(rank), rank_main)).collect();
        ranks.into_iter().map(join).collect()
    })
}

fn spawn<'scope, T, E, F>(
    scope: &'scope Scope<'scope, '_>,
    engine: &'scope InProcess,
    rank: Rank,
    rank_main: &'scope F,
) -> Result<ScopedJoinHandle<'scope, Result<T, E>>>
where
    T: Send + 'scope,
    E: From<Error> + Display + Send + 'static,
    F: Fn(World) -> Result<T, E> + Sync,
{
    thread::Builder::new()
        .name(format!("rank-{rank}"))
        .spawn_scoped(scope, move || run_rank(&engine.seat(rank), rank_main))
        .map_err(|source| {
            let error = Error::Thread { rank, source: Arc::new(source) };
            engine.fail(rank, error.clone());
            error
        })
}

fn join<T, E: From<Error>>(rank: Result<ScopedJoinHandle<'_, Result<T, E>>>) -> Result<T, E> {
    match rank?.join() {
        Ok(outcome) => outcome,
        Err(panic) => resume_unwind(panic),
    }
}

fn dump(recorder: &Recorder, rank: Rank, directory: &Path) {
    match recorder.dump_to(directory) {
        Ok(path) => tracing::error!(%rank, path = %path.display(), "flight recording written"),
        Err(error) => tracing::error!(%rank, %error, "flight recording could not be written"),
    }
}

fn seen_from_afar<E: Display + 'static>(error: &E, rank: Rank) -> Error {
    let typed = (error as &dyn Any).downcast_ref::<Error>().cloned();
    typed.unwrap_or_else(|| Error::message(error.to_string())).seen_from_afar(rank)
}

fn unwound(panic: Box<dyn Any + Send>, rank: Rank) -> Error {
    let panic = match panic.downcast::<Error>() {
        Ok(raised) => return *raised,
        Err(panic) => panic,
    };
    let message = panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("a panic without a message");
    Error::RankPanicked { rank, message: message.into() }
}
