//! The update around Newton–Schulz on host slices: momentum, scale, decay, and AdamW beside it.
//!
//! A Muon step of one matrix, in this order and nowhere else:
//!
//! ```text
//! momentum   buf ← μ·buf + g;  d = g + μ·buf (Nesterov) or buf
//! direction  O = newton_schulz(d)
//! apply      W ← W·(1 − lr·wd);  W ← W − lr·scale·O
//! ```
//!
//! Every function is a single pass in slice order, so its result depends on its inputs alone.

mod adamw;
mod apply;
mod momentum;
mod rms;
mod scale;

pub use adamw::{AdamW, AdamWState};
pub use apply::ApplyUpdate;
pub use momentum::{Momentum, MomentumRule};
pub use rms::{RmsPromise, RmsVerdict, rms};
pub use scale::{Fans, UpdateScale};

use crate::newton_schulz::{NumericsError, check_len};

/// Checks that every named slice is as long as the first one.
fn check_same_len<const N: usize>(
    expected: usize,
    others: [(&'static str, usize); N],
) -> Result<(), NumericsError> {
    others.into_iter().try_for_each(|(slice, found)| check_len(slice, found, expected))
}
