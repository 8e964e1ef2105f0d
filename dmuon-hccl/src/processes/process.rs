//! One process's seat in a world of processes: taking it, failing everybody, leaving.

use super::{
    conduit::Conduit,
    group::ProcessGroup,
    progress::{Rig, Shared, UnderWay},
};
use crate::control::{GroupId, Host, Member};
use dmuon_core::{BufferPool, EngineOptions, Error, Ledger, Rank, Recorder, Result, Seat, World};
use std::{
    fmt::Debug,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

/// How long a process whose world has failed waits for the others before it exits.
const LINGER: Duration = Duration::from_millis(500);

/// A process that has joined a world of processes.
#[derive(Debug)]
pub struct Process {
    shared: Arc<Shared>,
    world: World,
    /// On rank 0.
    host: Option<Host>,
    dump: Option<PathBuf>,
    engine: Option<Arc<dyn Release>>,
}

/// What an engine has when all ranks are connected.
#[derive(Debug)]
pub(crate) struct Opening<C> {
    /// Moves the data of the group of all ranks.
    pub(crate) conduit: C,
    pub(crate) member: Member,
    /// On rank 0.
    pub(crate) host: Option<Host>,
    /// Told when the world has closed in good order.
    pub(crate) engine: Option<Arc<dyn Release>>,
}

/// Something of an engine's that outlives a world, and ends with it or may be used for another.
pub(crate) trait Release: Debug + Send + Sync {
    /// Notes that the world is closed in good order; the process may exit when this returns.
    fn release(&self);

    /// Notes that the world has failed; the process may exit when this returns, soon.
    fn give_up(&self);
}

impl Process {
    /// Takes the seat.
    pub(crate) fn open<C: Conduit>(opening: Opening<C>, options: &EngineOptions) -> Result<Self> {
        let Opening { conduit, member, host, engine } = opening;
        let (deadline, verify) = (options.resolved_deadline()?, options.resolved_verify()?);
        let (pool, under_way) = (BufferPool::new(), UnderWay::default());
        let shared = Arc::new(Shared { member, pool, deadline, verify, under_way });
        let world = world(&shared, conduit, options)?;
        Ok(Self { shared, world, host, dump: options.resolved_dump(), engine })
    }

    /// Leaves the world, after the rank has [finished](Seat::finish).
    ///
    /// # Errors
    /// Why the world has failed, on this rank or another.
    pub fn leave(self) -> Result<()> {
        let Self { shared, world, host, engine, .. } = self;
        let failure = shared.member.watch().failure();
        drop(world);
        if failure.is_none() {
            engine.iter().for_each(|engine| engine.release());
        }
        part(&shared.member, host.as_ref());
        if failure.is_some() {
            engine.iter().for_each(|engine| engine.give_up());
        }
        failure.map_or(Ok(()), Err)
    }
}

impl Seat for Process {
    fn world(&self) -> World {
        self.world.clone()
    }

    fn fail(&self, cause: Error) {
        self.shared.member.fail(cause);
    }

    /// Waits for this rank's calls, then for all other ranks to finish: engines let nobody go early.
    fn finish(&self) {
        let finished = self.shared.drain().and_then(|()| {
            let patience = self.shared.deadline;
            self.shared.member.finish(patience)
        });
        if let Err(failure) = finished {
            tracing::debug!(%failure, "the world failed before this rank could leave");
        }
    }

    fn dump_directory(&self) -> Option<&Path> {
        self.dump.as_deref()
    }
}

/// Ends the control connection; where the world has failed, not before the others have heard why.
pub(crate) fn part(member: &Member, host: Option<&Host>) {
    match host {
        Some(host) => {
            member.leave(Duration::ZERO);
            host.linger(LINGER);
        }
        None => member.leave(LINGER),
    }
}

fn world<C: Conduit>(shared: &Arc<Shared>, conduit: C, options: &EngineOptions) -> Result<World> {
    let (rank, size) = (Rank(conduit.rank()), conduit.size());
    let recorder = Recorder::new(rank, Instant::now(), options.recorder_capacity);
    let ranks = (0..size).map(Rank).collect();
    let rig = Rig { shared: shared.clone(), conduit, ranks };
    let group = ProcessGroup::new(rig, GroupId::WORLD, "world", recorder.clone())?;
    let (pool, deadline) = (shared.pool.clone(), shared.deadline);
    Ok(World::new(group, pool, Ledger::new(), recorder, deadline))
}
