//! Passes over slices, compiled a second time for wider vectors and chosen at run time.
//!
//! The default target of x86-64 has vectors of four `f32`. A pass is plain Rust without fused
//! multiply-adds and with sums in lanes of its own, so both versions give the same bits.

/// Work over slices; `run` must be `#[inline(always)]`, or it is compiled once only.
pub(crate) trait Pass {
    type Output;
    fn run(self) -> Self::Output;
}

/// Runs a pass with AVX2 where the CPU has it.
pub(crate) fn widest<P: Pass>(pass: P) -> P::Output {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: AVX2 was detected on the line above.
        return unsafe { with_avx2(pass) };
    }
    pass.run()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn with_avx2<P: Pass>(pass: P) -> P::Output {
    pass.run()
}

/// Sums of squares in `f64`, by lane.
///
/// Squares of `f32` lie within 1e-90 and 1e77, so nothing overflows or vanishes, and a sum that
/// is not finite means an element that is not.
#[derive(Default)]
pub(crate) struct Squares([f64; Squares::LANES]);

impl Squares {
    /// Enough to keep the adders busy, and a fixed number, so that the order of additions depends
    /// on the length alone.
    pub(crate) const LANES: usize = 16;

    #[inline(always)]
    pub(crate) fn add(&mut self, values: &[f32; Self::LANES]) {
        for (lane, &value) in self.0.iter_mut().zip(values) {
            *lane += f64::from(value) * f64::from(value);
        }
    }

    #[inline(always)]
    pub(crate) fn add_rest(&mut self, values: &[f32]) {
        for (lane, &value) in self.0.iter_mut().zip(values) {
            *lane += f64::from(value) * f64::from(value);
        }
    }

    #[inline(always)]
    pub(crate) fn total(self) -> f64 {
        self.0.iter().sum()
    }
}

/// Sum of squares in `f64`, in an order fixed by the length.
pub(crate) fn sum_of_squares(values: &[f32]) -> f64 {
    widest(SumOfSquares(values))
}

struct SumOfSquares<'a>(&'a [f32]);

impl Pass for SumOfSquares<'_> {
    type Output = f64;

    #[inline(always)]
    fn run(self) -> f64 {
        let mut squares = Squares::default();
        let (chunks, rest) = self.0.as_chunks();
        chunks.iter().for_each(|values| squares.add(values));
        squares.add_rest(rest);
        squares.total()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wide_version_gives_the_bits_of_the_plain_one() {
        for len in [0, 1, 15, 16, 17, 1000] {
            let values: Vec<f32> = (0..len).map(|i| (i as f32 * 0.7).sin() * 1e3).collect();
            let plain = SumOfSquares(&values).run();
            assert_eq!(sum_of_squares(&values).to_bits(), plain.to_bits(), "{len} values");
        }
    }
}
