//! What the numerics can refuse, with the numbers that explain it; it never names a parameter.

use thiserror::Error;

/// Why a numeric routine refused its input.
///
/// The routines see slices, not parameters: the caller adds the parameter's name and the rank.
#[derive(Clone, Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum NumericsError {
    /// A coefficient set has no schedule of the asked length.
    #[error(
        "{set} coefficients exist for 1 to {longest} steps, {asked} were asked; \
         set ns_steps within that range, or use Jordan (any number of steps) or Custom coefficients"
    )]
    ScheduleLength {
        /// Name of the coefficient set.
        set: &'static str,
        /// Steps asked for.
        asked: usize,
        /// Longest schedule of the set.
        longest: usize,
    },
    /// A coefficient is NaN or infinite.
    #[error("coefficients of step {step} are not finite: {triple:?}")]
    NonFiniteCoefficient {
        /// Step, counted from 0.
        step: usize,
        /// The triple `(a, b, c)`.
        triple: [f64; 3],
    },
    /// `eps` is negative, NaN or infinite.
    #[error("eps must be finite and not negative, got {eps}")]
    InvalidEps {
        /// The value given.
        eps: f64,
    },
    /// Restart positions are not strictly increasing within `1..steps`.
    #[error("restarts must rise strictly within 1..{steps}, got {restarts:?}")]
    InvalidRestarts {
        /// Number of steps.
        steps: usize,
        /// The positions given.
        restarts: Vec<usize>,
    },
    /// A matrix has no elements.
    #[error("matrix [{rows}, {cols}] has no elements")]
    EmptyMatrix {
        /// Rows given.
        rows: usize,
        /// Columns given.
        cols: usize,
    },
    /// A slice does not have the length its shape says.
    #[error("{slice} holds {found} elements where the shape asks for {expected}")]
    LengthMismatch {
        /// Which slice.
        slice: &'static str,
        /// Elements the shape asks for.
        expected: usize,
        /// Elements found.
        found: usize,
    },
    /// The input holds NaN or an infinity.
    #[error("matrix {matrix} of the batch holds {value} at [{row}, {col}]")]
    NonFiniteInput {
        /// Index in the batch; 0 for a single matrix.
        matrix: usize,
        /// Row of the first such element.
        row: usize,
        /// Column of the first such element.
        col: usize,
        /// The element.
        value: f32,
    },
    /// The iteration left the finite numbers: coefficients that diverge, or too few restarts.
    #[error(
        "Newton-Schulz diverged on matrix {matrix} of the batch; \
         check custom coefficients, or let Restart::Auto place the restarts"
    )]
    Diverged {
        /// Index in the batch; 0 for a single matrix.
        matrix: usize,
    },
}

impl NumericsError {
    /// What is wrong with matrix `matrix` of a batch, if its elements, in rows of `cols`, are not all
    /// finite.
    pub fn non_finite_input(matrix: usize, elems: &[f32], cols: usize) -> Option<Self> {
        let index = elems.iter().position(|elem| !elem.is_finite())?;
        let (row, col, value) = (index / cols, index % cols, elems[index]);
        Some(Self::NonFiniteInput { matrix, row, col, value })
    }
}

/// Checks a slice's length against its shape.
pub(crate) fn check_len(
    slice: &'static str,
    found: usize,
    expected: usize,
) -> Result<(), NumericsError> {
    if found == expected {
        Ok(())
    } else {
        Err(NumericsError::LengthMismatch { slice, expected, found })
    }
}
