//! Small collectives outside the training streams: agreement before the first step and after each.

use crate::error::{Error, Result};
use dmuon_core::{Call, Element, Op, Rank, World};

/// Gathers `part` from every rank; all parts have the same length. Returns them in rank order.
///
/// # Collective
/// Every rank of the world.
pub(crate) fn gather(world: &World, label: &str, part: &[u8]) -> Result<Vec<Vec<u8>>> {
    let call = Call::new(Op::AllGather, label, Element::U8, part.len()).with_payload(0);
    let input = world.pool().take_copy(part).freeze();
    let gathered = world.group().start(call, Some(input))?.wait(world.deadline())?;
    let bytes = gathered.map(|buffer| buffer.as_slice().to_vec()).unwrap_or_default();
    if part.is_empty() {
        return Ok(vec![Vec::new(); world.size()]);
    }
    Ok(bytes.chunks(part.len()).map(<[u8]>::to_vec).collect())
}

/// Gathers texts of any length, padded with line ends. Returns them in rank order.
///
/// # Collective
/// Every rank of the world.
pub(crate) fn gather_texts(world: &World, label: &str, mut text: Vec<u8>) -> Result<Vec<Vec<u8>>> {
    let own = (text.len() as u64).to_le_bytes();
    let lengths = gather(world, &format!("length of {label}"), &own)?;
    let longest = lengths.iter().map(|bytes| from_le_bytes(bytes)).max().unwrap_or(0);
    text.resize(longest as usize, b'\n');
    gather(world, label, &text)
}

/// Sums values over ranks.
///
/// # Collective
/// Every rank of the world, with as many values.
pub(crate) fn sum(world: &World, values: &[f64]) -> Result<Vec<f64>> {
    let call = Call::new(Op::AllReduce, "sums", Element::F64, values.len()).with_payload(0);
    let input = dmuon_core::Buffer::from_elements(values).freeze();
    let sums = world.group().start(call, Some(input))?.wait(world.deadline())?;
    Ok(sums.map(|sums| sums.elements::<f64>().to_vec()).unwrap_or_default())
}

/// Waits until every rank is here.
///
/// # Collective
/// Every rank of the world.
pub(crate) fn barrier(world: &World, label: &str) -> Result<()> {
    world.group().start(Call::barrier(label), None)?.wait(world.deadline())?;
    Ok(())
}

/// What a rank is about to train: one line a parameter, then one for how it is dedicated.
pub(crate) struct Description {
    pub(crate) parameters: Vec<String>,
    pub(crate) dedication: String,
}

/// Checks that every rank describes the same; the first difference is named.
///
/// # Collective
/// Every rank of the world.
///
/// # Errors
/// [`Error::ModelsDiffer`] or [`Error::PlansDiffer`], the same on every rank.
pub(crate) fn agree(world: &World, description: &Description) -> Result<()> {
    let text = description.to_text();
    let digest = digest(text.as_bytes()).to_le_bytes();
    let digests = gather(world, "agreement on the model", &digest)?;
    if digests.iter().all(|other| *other == digest) {
        return Ok(());
    }
    let texts = gather_texts(world, "the model's description", text.into_bytes())?;
    let descriptions: Vec<Description> =
        texts.iter().map(|text| Description::from_text(&String::from_utf8_lossy(text))).collect();
    let [first, others @ ..] = &descriptions[..] else { return Ok(()) };
    for (rank, other) in others.iter().enumerate() {
        first.compare(other, Rank(rank + 1))?;
    }
    Ok(())
}

impl Description {
    fn to_text(&self) -> String {
        format!("{}\n{}", self.dedication, self.parameters.join("\n"))
    }

    fn from_text(text: &str) -> Self {
        let mut lines = text.trim_end().lines().map(str::to_owned);
        let dedication = lines.next().unwrap_or_default();
        Self { dedication, parameters: lines.collect() }
    }

    fn compare(&self, other: &Self, rank: Rank) -> Result<()> {
        let num_parameters = self.parameters.len().max(other.parameters.len());
        for index in 0..num_parameters {
            let at = |parameters: &[String]| {
                parameters.get(index).cloned().unwrap_or_else(|| "no parameter".to_owned())
            };
            let (ours, theirs) = (at(&self.parameters), at(&other.parameters));
            if ours != theirs {
                return Err(Error::ModelsDiffer { rank, index, ours, theirs });
            }
        }
        let parts = self.dedication.split(' ').zip(other.dedication.split(' '));
        let differs = |(ours, theirs): &(&str, &str)| ours != theirs;
        match parts.into_iter().find(differs) {
            Some((ours, theirs)) => {
                let [ours, theirs] = [ours, theirs].map(|part| part.replace('=', " "));
                Err(Error::PlansDiffer { rank, ours, theirs })
            }
            None => Ok(()),
        }
    }
}

/// A 64-bit digest in the manner of FNV-1a, eight bytes at a time: the same on every machine.
pub(crate) fn digest(bytes: &[u8]) -> u64 {
    bytes.chunks(8).fold(0xcbf2_9ce4_8422_2325, |hash, word| {
        let hash = (hash ^ from_le_bytes(word)).wrapping_mul(0x0000_0100_0000_01b3);
        hash ^ (hash >> 32)
    })
}

/// The number in at most eight little-endian bytes.
pub(crate) fn from_le_bytes(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte))
}

#[cfg(test)]
mod tests {
    use super::*;
    use dmuon_core::launch;

    fn description(parameters: &[&str], dedication: &str) -> Description {
        Description {
            parameters: parameters.iter().map(|&line| line.to_owned()).collect(),
            dedication: dedication.to_owned(),
        }
    }

    #[test]
    fn equal_descriptions_agree_and_the_first_difference_is_named() {
        launch(3, |world| agree(&world, &description(&["a [2, 3]"], "z2"))).unwrap();
        let differ = |odd: Description| {
            let outcome = launch(3, |world| -> Result<()> {
                let own = description(&["a [2, 3]", "b [4]"], "z2 prefetch=1");
                agree(&world, if world.rank() == Rank(2) { &odd } else { &own })
            });
            outcome.unwrap_err().to_string()
        };
        let message = differ(description(&["a [2, 3]", "b [5]"], "z2"));
        assert!(message.contains("rank 2 has b [5] where rank 0 has b [4]"), "{message}");
        let message = differ(description(&["a [2, 3]"], "z2"));
        assert!(message.contains("rank 2 has no parameter"), "{message}");
        let message = differ(description(&["a [2, 3]", "b [4]"], "z3"));
        assert!(message.contains("z3, not z2"), "{message}");
        let message = differ(description(&["a [2, 3]", "b [4]"], "z2 prefetch=3"));
        assert!(message.contains("prefetch 3, not"), "{message}");
    }
}
