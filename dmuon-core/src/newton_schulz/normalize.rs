//! Norms in `f64` and exact scaling, for inputs too small or too large to square in `f32`.

/// Independent partial sums: enough to vectorize, and a fixed number, so that the order of
/// additions depends on the length alone.
const LANES: usize = 8;

/// Sum of squares in `f64`, in an order fixed by the length.
///
/// Squares of `f32` lie within 1e-90 and 1e77, so nothing overflows or vanishes, and a sum that
/// is not finite means an element that is not.
pub(crate) fn sum_of_squares(values: &[f32]) -> f64 {
    let mut lanes = [0.0f64; LANES];
    let mut chunks = values.chunks_exact(LANES);
    for chunk in &mut chunks {
        for (lane, &value) in lanes.iter_mut().zip(chunk) {
            *lane += f64::from(value) * f64::from(value);
        }
    }
    for (lane, &value) in lanes.iter_mut().zip(chunks.remainder()) {
        *lane += f64::from(value) * f64::from(value);
    }
    lanes.iter().sum()
}

/// `out ← factor · input`, the product in `f64` and rounded once.
pub(super) fn scaled(input: &[f32], factor: f64, out: &mut [f32]) {
    for (out, &value) in out.iter_mut().zip(input) {
        *out = (f64::from(value) * factor) as f32;
    }
}

/// The power of two in `(norm / 2, norm]`, for a positive normal number.
pub(super) fn power_of_two_near(norm: f64) -> f64 {
    const EXPONENT: u64 = 0x7ff << 52;
    f64::from_bits(norm.to_bits() & EXPONENT)
}
