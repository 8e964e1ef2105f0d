//! Newton–Schulz on host slices: the orthogonal polar factor of a whole matrix, without Burn.
//!
//! One call takes a row-major `f32` matrix `G = U Σ Vᵀ` and returns `U p(Σ) Vᵀ`, where `p` is the
//! composition of one odd quintic per step and maps every singular value that is not tiny close
//! to 1. The result depends on the matrix alone: not on its scale, not on the number of threads,
//! not on where the slices lie in memory.
//!
//! ```
//! use dmuon_core::newton_schulz::{NewtonSchulz, NewtonSchulzConfig, Parallelism, Workspace};
//!
//! let newton_schulz = NewtonSchulz::new(NewtonSchulzConfig::new())?;
//! let mut workspace = Workspace::new(Parallelism::Serial);
//! let gradient = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]; // [2, 3]
//! let mut direction = [0.0; 6];
//! newton_schulz.orthogonalize(&mut workspace, &gradient, 2, 3, &mut direction)?;
//! assert!((direction[0] - -0.491937).abs() < 1e-5);
//! # Ok::<(), dmuon_core::newton_schulz::NumericsError>(())
//! ```

mod batch;
mod coefficients;
mod config;
mod error;
mod form;
mod iteration;
mod normalize;
mod steps;
mod workspace;

pub use coefficients::{Band, Coefficients};
pub use config::NewtonSchulzConfig;
pub use error::NumericsError;
pub use form::{Form, Restart};
pub use iteration::NewtonSchulz;
pub use workspace::{Parallelism, Workspace};

pub use crate::kernels::{Kernel, Precision};

pub(crate) use error::check_len;
