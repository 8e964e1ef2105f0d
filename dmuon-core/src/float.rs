//! Floating-point types that weights and gradients travel in; values at rest are `f32`.

use crate::{Buffer, BufferPool, Element, SharedBuffer};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use serde::{Deserialize, Serialize};
use std::fmt;

/// A floating-point type.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum FloatType {
    /// Single precision.
    #[default]
    F32,
    /// IEEE half precision: 11 significant bits, up to 65 504. Gradients below 6e-8 vanish, so scale
    /// the loss.
    F16,
    /// The upper half of single precision: 8 significant bits, the range of `f32`.
    Bf16,
}

impl FloatType {
    /// Size of one element in bytes.
    pub fn num_bytes(self) -> usize {
        self.element().num_bytes()
    }

    /// What a collective calls it.
    pub fn element(self) -> Element {
        match self {
            Self::F32 => Element::F32,
            Self::F16 => Element::F16,
            Self::Bf16 => Element::Bf16,
        }
    }

    /// The elements rounded to this type, to nearest and ties to even; `buffer` itself in `f32`.
    pub fn narrow(self, buffer: SharedBuffer, pool: &BufferPool) -> SharedBuffer {
        let elems = buffer.as_f32();
        let mut narrowed = match self {
            Self::F32 => return buffer,
            Self::F16 | Self::Bf16 => pool.take(elems.len() * self.num_bytes()),
        };
        match self {
            Self::F16 => narrowed.elements_mut::<f16>().convert_from_f32_slice(elems),
            Self::F32 | Self::Bf16 => narrowed.elements_mut::<bf16>().convert_from_f32_slice(elems),
        }
        narrowed.freeze()
    }

    /// Elements of this type as `f32`, exactly; `buffer` itself in `f32`.
    pub fn widen(self, buffer: SharedBuffer, pool: &BufferPool) -> SharedBuffer {
        match self {
            Self::F32 => buffer,
            Self::F16 | Self::Bf16 => self.widened(&buffer, pool).freeze(),
        }
    }

    /// Elements of this type as `f32`, in a buffer of its own.
    pub(crate) fn widened(self, bytes: &[u8], pool: &BufferPool) -> Buffer {
        let num_elems = bytes.len() / self.num_bytes();
        let mut widened = pool.take(num_elems * size_of::<f32>());
        let out = widened.as_f32_mut();
        match self {
            Self::F32 => out.copy_from_slice(bytemuck::cast_slice(bytes)),
            Self::F16 => bytemuck::cast_slice::<u8, f16>(bytes).convert_to_f32_slice(out),
            Self::Bf16 => bytemuck::cast_slice::<u8, bf16>(bytes).convert_to_f32_slice(out),
        }
        widened
    }
}

impl fmt::Display for FloatType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.element().name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn narrowing_rounds_to_nearest_even_and_widening_is_exact() {
        let pool = BufferPool::default();
        let values = [1.0, -0.0, 1.0 + 1.0 / 256.0, 1.0 + 3.0 / 256.0, 1e30, 6e4, f32::INFINITY];
        let through = |float: FloatType| {
            let narrow = float.narrow(Buffer::from_elements(&values).freeze(), &pool);
            assert_eq!(narrow.len_bytes(), values.len() * float.num_bytes());
            float.widen(narrow, &pool).as_f32().to_vec()
        };
        assert_eq!(through(FloatType::F32), values);
        let tie = 1.0 + 4.0 / 256.0;
        let bf16 = through(FloatType::Bf16);
        assert_eq!(bf16[..4], [1.0, -0.0, 1.0, tie]);
        assert!((bf16[4] / 1e30 - 1.0).abs() < 1.0 / 256.0 && bf16[6].is_infinite());
        let f16 = through(FloatType::F16);
        assert_eq!(f16[..4], values[..4]);
        assert_eq!((f16[4], f16[5]), (f32::INFINITY, 6e4));
    }
}
