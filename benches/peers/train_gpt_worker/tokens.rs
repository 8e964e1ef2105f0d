//! Batches that another program has cut: a file of bytes, read once.

use std::path::Path;
use std::{fs, io};

use burn::tensor::{Device, Int, Tensor, TensorData};

/// All batches of all ranks.
#[derive(Debug)]
pub(crate) struct Tokens {
    bytes: Vec<u8>,
    /// Ranks, sequences of each, bytes a sequence is predicted from.
    shape: [usize; 3],
}

impl Tokens {
    /// From a file of `[steps, ranks, batch, seq_len + 1]` bytes; `shape` is `[ranks, batch, seq_len]`.
    pub(crate) fn read(path: &Path, shape: [usize; 3]) -> io::Result<Self> {
        Ok(Self { bytes: fs::read(path)?, shape })
    }

    /// Inputs and targets of one rank, `[batch, seq_len]` each; steps start over after the last.
    pub(crate) fn batch(&self, step: usize, rank: usize, device: &Device) -> [Tensor<2, Int>; 2] {
        let [ranks, batch, seq_len] = self.shape;
        let of_rank = batch * (seq_len + 1);
        let steps = self.bytes.len() / (ranks * of_rank);
        let start = (step % steps * ranks + rank) * of_rank;
        let sequences = self.bytes[start..start + of_rank].chunks_exact(seq_len + 1);
        [0, 1].map(|offset| {
            let cut = sequences.clone().flat_map(|sequence| &sequence[offset..offset + seq_len]);
            let tokens: Vec<i32> = cut.map(|&byte| byte.into()).collect();
            Tensor::from_data(TensorData::new(tokens, [batch, seq_len]), device)
        })
    }
}
