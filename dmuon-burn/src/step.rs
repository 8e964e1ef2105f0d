//! What ranks tell each other between backward and update: finiteness, norm, and who read what.

use crate::control::gather;
use crate::error::Result;
use crate::runtime::Runtime;
use dmuon_core::Rank;

/// What all ranks know before they step.
#[derive(Debug)]
pub(crate) struct Agreement {
    /// The first rank with a gradient that is not finite, and the parameter's index.
    pub(crate) non_finite: Option<(Rank, usize)>,
    /// Sum of squares of all averaged gradients, each counted once.
    pub(crate) sum_of_squares: f64,
}

/// One rank's part of the agreement.
pub(crate) struct Findings {
    pub(crate) non_finite: Option<usize>,
    /// Over the gradients that this rank counts: what it owns, and on rank 0 what everyone holds.
    pub(crate) sum_of_squares: f64,
}

/// Shares findings, and plans the next step's backward broadcasts from what backward read.
///
/// # Collective
/// Every rank of the world.
pub(crate) fn agree(runtime: &Runtime, findings: &Findings) -> Result<Agreement> {
    let reads = runtime.take_reads();
    let index = findings.non_finite.map_or(u64::MAX, |index| index as u64);
    let mut part = index.to_le_bytes().to_vec();
    part.extend(findings.sum_of_squares.to_le_bytes());
    part.extend(reads.iter().map(|&read| u8::from(read)));
    let parts = gather(runtime.world(), "agreement on the step", &part)?;
    let mut agreement = Agreement { non_finite: None, sum_of_squares: 0.0 };
    let mut any_read = vec![false; reads.len()];
    for (rank, part) in parts.iter().enumerate() {
        let (index, rest) = split_u64(part);
        let (squares, reads) = split_u64(rest);
        if index != u64::MAX && agreement.non_finite.is_none() {
            agreement.non_finite = Some((Rank(rank), index as usize));
        }
        agreement.sum_of_squares += f64::from_bits(squares);
        any_read.iter_mut().zip(reads).for_each(|(any, &read)| *any |= read != 0);
    }
    runtime.plan_reads(any_read);
    Ok(agreement)
}

/// Plans the next step's backward broadcasts alone, where something else decides on the step.
///
/// # Collective
/// Every rank of the world.
pub(crate) fn share_reads(runtime: &Runtime) -> Result<()> {
    agree(runtime, &Findings { non_finite: None, sum_of_squares: 0.0 }).map(drop)
}

fn split_u64(bytes: &[u8]) -> (u64, &[u8]) {
    let (head, rest) = bytes.split_at(bytes.len().min(8));
    (head.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte)), rest)
}
