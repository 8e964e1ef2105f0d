//! Lets a trained model write: one byte at a time, drawn by a seeded generator of our own.

use burn::tensor::activation::softmax;
use burn::tensor::{Device, Int, Tensor, TensorData};

use crate::common::model::Gpt;
use crate::common::random::Random;

/// What to write, and how boldly.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sampling<'a> {
    pub(crate) prompt: &'a str,
    /// Bytes to add.
    pub(crate) bytes: usize,
    /// Below 1, likely bytes become likelier.
    pub(crate) temperature: f64,
    pub(crate) seed: u64,
    /// Longest context the model reads.
    pub(crate) seq_len: usize,
}

impl Sampling<'_> {
    /// The prompt and what `model`, which lives on `device`, makes of it.
    ///
    /// Reads the whole context again for each byte: plain, and fast enough for a few lines.
    pub(crate) fn write(&self, model: &Gpt, device: &Device) -> String {
        let mut random = Random::new(&[self.seed]);
        let mut text = self.prompt.as_bytes().to_vec();
        for _ in 0..self.bytes {
            let context = &text[text.len().saturating_sub(self.seq_len)..];
            let odds = self.odds(model, context, device);
            text.push(draw(&odds, unit(&mut random)));
        }
        // What a byte-level model writes need not be fit for a terminal.
        let text = String::from_utf8_lossy(&text).into_owned();
        let fit = |c: char| if c.is_control() && c != '\n' && c != '\t' { '\u{fffd}' } else { c };
        text.chars().map(fit).collect()
    }

    /// The probability of each byte to come after `context`.
    fn odds(&self, model: &Gpt, context: &[u8], device: &Device) -> Vec<f64> {
        let tokens: Vec<i32> = context.iter().map(|&byte| byte.into()).collect();
        let shape = [1, tokens.len()];
        let tokens = Tensor::<2, Int>::from_data(TensorData::new(tokens, shape), device);
        let last = model.forward(tokens).narrow(1, shape[1] - 1, 1).flatten::<1>(0, 2);
        softmax(last / self.temperature, 0).into_data().iter::<f64>().collect()
    }
}

/// A number in `[0, 1)`.
fn unit(random: &mut Random) -> f64 {
    (random.next_u64() >> 11) as f64 / (1u64 << 53) as f64
}

/// The byte whose slice of `[0, 1)` holds `point`.
fn draw(odds: &[f64], point: f64) -> u8 {
    let mut left = point;
    for (byte, odd) in (0..=u8::MAX).zip(odds) {
        left -= odd;
        if left < 0.0 {
            return byte;
        }
    }
    b'\n'
}
