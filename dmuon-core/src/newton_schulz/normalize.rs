//! Exact scaling, for inputs too small or too large to square in `f32`.

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
