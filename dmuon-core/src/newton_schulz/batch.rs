//! Matrices of a batch over the threads of a call: each on one thread if there are enough.

use std::sync::{Mutex, PoisonError};

use super::steps::Fault;
use super::workspace::{Parallelism, Workspace};

/// The matrices of a batch and where their results go.
pub(super) struct Batch<'a> {
    pub(super) input: &'a [f32],
    pub(super) out: &'a mut [f32],
    /// Elements of one matrix.
    pub(super) len: usize,
}

impl Batch<'_> {
    /// Calls `work` for every matrix; the error is that of the first matrix at fault.
    pub(super) fn run(
        self,
        workspace: &mut Workspace,
        work: impl Fn(&mut Workspace, &[f32], &mut [f32]) -> Result<(), Fault> + Sync,
    ) -> Result<(), (usize, Fault)> {
        let pairs = self.input.chunks_exact(self.len).zip(self.out.chunks_exact_mut(self.len));
        let team = workspace.parallelism().team();
        if team.size() == 1 || pairs.len() < team.size() {
            return pairs
                .enumerate()
                .try_for_each(|(i, (x, y))| work(workspace, x, y).map_err(|fault| (i, fault)));
        }
        let mut members = std::mem::take(&mut workspace.members);
        while members.len() < team.size() {
            members.push(Workspace::new(Parallelism::Serial));
        }
        let (idle, fault) = (Mutex::new(members), Mutex::new(None));
        team.each(pairs.enumerate(), |(i, (x, y))| {
            let mut member = locked(&idle).pop().unwrap_or_default();
            if let Err(found) = work(&mut member, x, y) {
                let mut first = locked(&fault);
                if first.is_none_or(|(matrix, _)| i < matrix) {
                    *first = Some((i, found));
                }
            }
            locked(&idle).push(member);
        });
        workspace.members = idle.into_inner().unwrap_or_else(PoisonError::into_inner);
        fault.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
    }
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
