//! What ranks tell each other between backward and update: finiteness, norm, and who read what.

use crate::control::{from_le_bytes, gather};
use crate::error::{Error, Result};
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
#[derive(Default)]
pub(crate) struct Findings {
    pub(crate) non_finite: Option<usize>,
    /// Over the gradients that this rank counts: what it owns, and on rank 0 what everyone holds.
    pub(crate) sum_of_squares: f64,
    pub(crate) terms: Terms,
}

/// What must be alike on every rank, or what everyone holds would drift apart.
#[derive(Clone, Copy, Default, PartialEq)]
pub(crate) struct Terms {
    pub(crate) rates: [f64; 2],
    /// Digest of the optimizer's settings.
    pub(crate) settings: u64,
    /// Digest of which replicated parameters have a gradient.
    pub(crate) gradients: u64,
    /// Digest of replicated values, where they were changed outside.
    pub(crate) values: u64,
}

impl Terms {
    const LEN: usize = 5;

    fn to_bits(self) -> [u64; Self::LEN] {
        let [muon, adamw] = self.rates.map(f64::to_bits);
        [muon, adamw, self.settings, self.gradients, self.values]
    }

    /// What the term is, for an error.
    fn describe(term: usize, bits: u64) -> String {
        match term {
            0 => format!("a muon learning rate of {}", f64::from_bits(bits)),
            1 => format!("an adamw learning rate of {}", f64::from_bits(bits)),
            2 => format!("optimizer settings {bits:016x}"),
            3 => format!("gradients of replicated parameters {bits:016x}"),
            _ => format!("values of replicated parameters {bits:016x}"),
        }
    }
}

/// Shares findings, and plans the next step's backward broadcasts from what backward read.
///
/// # Collective
/// Every rank of the world.
///
/// # Errors
/// [`Error::StepsDiffer`] on every rank, or a group has failed.
pub(crate) fn agree(runtime: &Runtime, findings: &Findings) -> Result<Agreement> {
    let reads = runtime.take_reads();
    let index = findings.non_finite.map_or(u64::MAX, |index| index as u64);
    let head = [index, findings.sum_of_squares.to_bits()];
    let words = head.into_iter().chain(findings.terms.to_bits());
    let mut part: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    part.extend(reads.iter().map(|&read| u8::from(read)));
    let parts = gather(runtime.world(), "agreement on the step", &part)?;
    let mut agreement = Agreement { non_finite: None, sum_of_squares: 0.0 };
    let mut any_read = vec![false; reads.len()];
    for (rank, part) in parts.iter().enumerate() {
        let (index, rest) = split_u64(part);
        let (squares, rest) = split_u64(rest);
        let reads = same_terms(runtime, Rank(rank), &parts[0], rest)?;
        if index != u64::MAX && agreement.non_finite.is_none() {
            agreement.non_finite = Some((Rank(rank), index as usize));
        }
        agreement.sum_of_squares += f64::from_bits(squares);
        any_read.iter_mut().zip(reads).for_each(|(any, &read)| *any |= read != 0);
    }
    runtime.plan_reads(any_read);
    Ok(agreement)
}

/// Compares a rank's terms with rank 0's; returns what follows them.
fn same_terms<'a>(
    runtime: &Runtime,
    rank: Rank,
    first: &[u8],
    mut rest: &'a [u8],
) -> Result<&'a [u8]> {
    let mut first = &first[2 * size_of::<u64>()..];
    for term in 0..Terms::LEN {
        let (ours, after) = split_u64(first);
        let (theirs, after_theirs) = split_u64(rest);
        (first, rest) = (after, after_theirs);
        if ours != theirs {
            runtime.release()?;
            let [ours, theirs] = [ours, theirs].map(|bits| Terms::describe(term, bits));
            return Err(Error::StepsDiffer { rank, ours, theirs });
        }
    }
    Ok(rest)
}

fn split_u64(bytes: &[u8]) -> (u64, &[u8]) {
    let (head, rest) = bytes.split_at(bytes.len().min(8));
    (from_le_bytes(head), rest)
}
