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
    /// Sums of squares of averaged gradients, each counted once, for every norm that is taken.
    pub(crate) sums_of_squares: Vec<f64>,
}

/// One rank's part of the agreement.
#[derive(Default)]
pub(crate) struct Findings {
    pub(crate) non_finite: Option<usize>,
    /// The same over the gradients that this rank counts: what it owns, its pieces in one replica,
    /// and on rank 0 what everyone holds.
    pub(crate) sums_of_squares: Vec<f64>,
    /// By parameter, or empty where none is stepped.
    pub(crate) stances: Vec<Stance>,
    pub(crate) terms: Terms,
}

/// How a rank is about to step a parameter; those that have a say must say the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stance {
    /// Whether there is a gradient; `None` on a rank that holds nothing of the parameter.
    pub(crate) gradient: Option<bool>,
    /// Whether the model's parameter requires gradients.
    pub(crate) trains: bool,
}

impl Stance {
    fn to_byte(self) -> u8 {
        let gradient = self.gradient.map_or(0, |gradient| 1 + u8::from(gradient));
        gradient | u8::from(self.trains) << 2
    }

    fn from_byte(byte: u8) -> Self {
        let gradient = match byte & 3 {
            0 => None,
            gradient => Some(gradient == 2),
        };
        Self { gradient, trains: byte & 4 != 0 }
    }

    /// What one rank says of the parameter and the other does not, for an error.
    fn differs(self, other: Self, parameter: &str) -> Option<[String; 2]> {
        let frozen = |trains: bool| match trains {
            true => format!("\"{parameter}\" requiring gradients"),
            false => format!("\"{parameter}\" frozen"),
        };
        let gradient = |has: bool| match has {
            true => format!("a gradient of \"{parameter}\""),
            false => format!("no gradient of \"{parameter}\""),
        };
        if self.trains != other.trains {
            return Some([self.trains, other.trains].map(frozen));
        }
        let (ours, theirs) = (self.gradient?, other.gradient?);
        (ours != theirs).then(|| [ours, theirs].map(gradient))
    }
}

/// What must be alike on every rank, or what several ranks hold would drift apart.
#[derive(Clone, Copy, Default, PartialEq)]
pub(crate) struct Terms {
    pub(crate) rates: [f64; 2],
    /// What averages were multiplied by.
    pub(crate) scale: f32,
    /// Digest of the optimizer's settings.
    pub(crate) settings: u64,
    /// Digest of replicated values, where they were changed outside.
    pub(crate) values: u64,
    /// The same of pieces of sharded parameters; alike on ranks that hold the same parts.
    pub(crate) sharded_values: u64,
}

impl Terms {
    const LEN: usize = 6;
    /// The first of the terms that are compared between replicas only.
    const SHARDED: usize = 5;

    fn to_bits(self) -> [u64; Self::LEN] {
        let [muon, adamw] = self.rates.map(f64::to_bits);
        let Self { settings, values, sharded_values, .. } = self;
        [muon, adamw, f64::from(self.scale).to_bits(), settings, values, sharded_values]
    }

    /// What the term is, for an error.
    fn describe(term: usize, bits: u64) -> String {
        match term {
            0 => format!("a muon learning rate of {}", f64::from_bits(bits)),
            1 => format!("an adamw learning rate of {}", f64::from_bits(bits)),
            2 => format!("a gradient scaling factor of {}", f64::from_bits(bits)),
            3 => format!("optimizer settings {bits:016x}"),
            4 => format!("values of replicated parameters {bits:016x}"),
            _ => format!("values of sharded parameters {bits:016x}"),
        }
    }
}

/// Shares findings, and plans the next step's broadcasts from what this one's passes touched.
///
/// # Collective
/// Every rank of the world.
///
/// # Errors
/// [`Error::StepsDiffer`] on every rank, or a group has failed.
pub(crate) fn agree(runtime: &Runtime, findings: &Findings) -> Result<Agreement> {
    let reads = runtime.take_reads();
    let revisits = runtime.take_revisits();
    let passes = reads.iter().zip(&revisits).map(|(&r, &again)| u8::from(r) | u8::from(again) << 1);
    let part = findings.to_bytes(&passes.collect::<Vec<u8>>(), &order(runtime));
    let parts = gather(runtime.world(), "agreement on the step", &part)?;
    let sums_of_squares = vec![0.0; findings.sums_of_squares.len()];
    let mut agreement = Agreement { non_finite: None, sums_of_squares };
    let (mut any_read, mut any_revisit) = (vec![false; reads.len()], vec![false; reads.len()]);
    let mut orders: Vec<Vec<usize>> = Vec::new();
    let mut stances: Vec<&[u8]> = Vec::new();
    for (rank, part) in parts.iter().enumerate() {
        let (index, rest) = split_u64(part);
        let mut rest = rest;
        for sum in &mut agreement.sums_of_squares {
            let (squares, after) = split_u64(rest);
            *sum += f64::from_bits(squares);
            rest = after;
        }
        let rest = same_terms(runtime, Rank(rank), &parts, rest)?;
        let (of_parameters, rest) = rest.split_at(findings.stances.len());
        let (passes, order) = rest.split_at(reads.len());
        stances.push(of_parameters);
        if index != u64::MAX && agreement.non_finite.is_none() {
            agreement.non_finite = Some((Rank(rank), index as usize));
        }
        any_read.iter_mut().zip(passes).for_each(|(any, &pass)| *any |= pass & 1 != 0);
        any_revisit.iter_mut().zip(passes).for_each(|(any, &pass)| *any |= pass & 2 != 0);
        // Of the longest, the last rank's: any will do that is alike everywhere.
        orders.push(touched(order));
    }
    same_stances(runtime, &stances)?;
    runtime.plan_reads(any_read);
    runtime.plan_revisits(&any_revisit);
    runtime.plan_order(&orders.into_iter().max_by_key(Vec::len).unwrap_or_default());
    Ok(agreement)
}

/// The units in the order in which this rank's forward touched them, one number a unit.
fn order(runtime: &Runtime) -> Vec<u8> {
    let mut order: Vec<u32> = runtime.take_order().iter().map(|&unit| unit as u32).collect();
    order.resize(runtime.units().len(), u32::MAX);
    order.iter().flat_map(|unit| unit.to_le_bytes()).collect()
}

/// Reads what [`order`] wrote.
fn touched(order: &[u8]) -> Vec<usize> {
    let units = order.chunks_exact(size_of::<u32>()).map(from_le_bytes);
    units.filter(|&unit| unit != u64::from(u32::MAX)).map(|unit| unit as usize).collect()
}

impl Findings {
    fn to_bytes(&self, passes: &[u8], order: &[u8]) -> Vec<u8> {
        let index = self.non_finite.map_or(u64::MAX, |index| index as u64);
        let sums = self.sums_of_squares.iter().map(|sum| sum.to_bits());
        let words = std::iter::once(index).chain(sums).chain(self.terms.to_bits());
        let mut part: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
        part.extend(self.stances.iter().map(|stance| stance.to_byte()));
        part.extend(passes);
        part.extend(order);
        part
    }
}

/// Compares a rank's terms with rank 0's, or with those of the first rank that holds the same
/// parts; returns what follows them.
fn same_terms<'a>(
    runtime: &Runtime,
    rank: Rank,
    parts: &[Vec<u8>],
    mut rest: &'a [u8],
) -> Result<&'a [u8]> {
    let first_with_same_parts = rank.0 % runtime.mesh().shape().shard();
    let start = parts[rank.0].len() - rest.len();
    for term in 0..Terms::LEN {
        let other = if term < Terms::SHARDED { 0 } else { first_with_same_parts };
        let (ours, _) = split_u64(&parts[other][start + term * size_of::<u64>()..]);
        let (theirs, after) = split_u64(rest);
        rest = after;
        if ours != theirs {
            runtime.release()?;
            let [ours, theirs] = [ours, theirs].map(|bits| Terms::describe(term, bits));
            return Err(Error::StepsDiffer { rank, other: Rank(other), ours, theirs });
        }
    }
    Ok(rest)
}

/// Compares what ranks say of each parameter.
fn same_stances(runtime: &Runtime, ranks: &[&[u8]]) -> Result<()> {
    for parameter in 0..ranks[0].len() {
        let stance = |rank: usize| Stance::from_byte(ranks[rank][parameter]);
        // Whoever holds something of the parameter speaks of its gradient, the first for all.
        let speaker = (0..ranks.len()).find(|&rank| stance(rank).gradient.is_some()).unwrap_or(0);
        for rank in 0..ranks.len() {
            let name = &runtime.parameter(parameter).name;
            if let Some([ours, theirs]) = stance(speaker).differs(stance(rank), name) {
                runtime.release()?;
                let (rank, other) = (Rank(rank), Rank(speaker));
                return Err(Error::StepsDiffer { rank, other, ours, theirs });
            }
        }
    }
    Ok(())
}

fn split_u64(bytes: &[u8]) -> (u64, &[u8]) {
    let (head, rest) = bytes.split_at(bytes.len().min(8));
    (from_le_bytes(head), rest)
}
