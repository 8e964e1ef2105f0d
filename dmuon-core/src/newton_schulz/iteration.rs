//! The checked iteration: it validates shapes and values, picks the form and runs it.

use super::coefficients::compose;
use super::error::check_len;
use super::normalize::{scaled, sum_of_squares};
use super::view::View;
use super::{Form, NewtonSchulzConfig, NumericsError, Precision, Workspace};
use super::{direct, gram};

/// A Newton–Schulz run with its schedule fixed; cheap to share between threads.
#[derive(Clone, Debug)]
pub struct NewtonSchulz {
    schedule: Vec<[f32; 3]>,
    /// What the schedule makes of σ = 1, the only singular value of a normalized vector.
    vector_gain: f64,
    form: Form,
    restarts: Vec<usize>,
}

impl NewtonSchulz {
    /// Checks the settings.
    ///
    /// # Errors
    /// A schedule length the coefficients do not have, coefficients that are not finite, restarts
    /// outside the run, an `eps` that is negative or not finite.
    pub fn new(config: NewtonSchulzConfig) -> Result<Self, NumericsError> {
        if !config.eps.is_finite() || config.eps < 0.0 {
            return Err(NumericsError::InvalidEps { eps: config.eps });
        }
        let schedule = config.coefficients.schedule(config.ns_steps)?;
        Ok(Self {
            restarts: config.restart.positions(&schedule)?,
            vector_gain: compose(&schedule, 1.0),
            form: config.form,
            schedule: schedule.iter().map(|triple| triple.map(|v| v as f32)).collect(),
        })
    }

    /// Number of steps of a run.
    pub fn ns_steps(&self) -> usize {
        self.schedule.len()
    }

    /// Where the Gram form restarts.
    pub fn restarts(&self) -> &[usize] {
        &self.restarts
    }

    /// The form a `rows × cols` matrix takes; never [`Form::Auto`].
    pub fn form(&self, rows: usize, cols: usize) -> Form {
        self.form.resolve_for(Precision::F32, rows, cols)
    }

    /// The precision in force for a `rows × cols` matrix on this machine: what was asked, or
    /// [`Precision::F32`] where [`Precision::Bf16Products`] falls back to it.
    pub fn precision(&self, _rows: usize, _cols: usize) -> Precision {
        Precision::F32
    }

    /// Floating-point operations of one `rows × cols` matrix; see [`Form::flops`].
    pub fn flops(&self, rows: usize, cols: usize) -> u64 {
        self.form.flops(rows, cols, self.ns_steps(), self.restarts.len())
    }

    /// Writes the orthogonalized `input` to `out`.
    ///
    /// The input is divided by its Frobenius norm first, whatever its scale; multiplying it by a
    /// power of two gives the same bits. A zero matrix gives zeros.
    ///
    /// # Shapes
    /// `input` and `out` are row-major `[rows, cols]`, `f32`.
    ///
    /// # Errors
    /// An empty matrix, slices of another length, NaN or an infinity in the input (then `out` is
    /// not written), divergence (then `out` is meaningless).
    pub fn orthogonalize(
        &self,
        workspace: &mut Workspace,
        input: &[f32],
        rows: usize,
        cols: usize,
        out: &mut [f32],
    ) -> Result<(), NumericsError> {
        self.orthogonalize_batch(workspace, input, [1, rows, cols], out)
    }

    /// Orthogonalizes every matrix of a batch, each as [`NewtonSchulz::orthogonalize`] would, to
    /// the bit.
    ///
    /// # Shapes
    /// `input` and `out` are row-major `shape = [batch, rows, cols]`, `f32`.
    ///
    /// # Errors
    /// As [`NewtonSchulz::orthogonalize`], naming the first matrix at fault; matrices before it
    /// have been written.
    pub fn orthogonalize_batch(
        &self,
        workspace: &mut Workspace,
        input: &[f32],
        shape: [usize; 3],
        out: &mut [f32],
    ) -> Result<(), NumericsError> {
        let [batch, rows, cols] = shape;
        if rows == 0 || cols == 0 {
            return Err(NumericsError::EmptyMatrix { rows, cols });
        }
        let view = View::new(rows, cols);
        check_len("input", input.len(), batch * view.len())?;
        check_len("out", out.len(), batch * view.len())?;
        let pairs = input.chunks_exact(view.len()).zip(out.chunks_exact_mut(view.len()));
        for (matrix, (input, out)) in pairs.enumerate() {
            self.one(workspace, input, view, out).map_err(|fault| fault.at(matrix, input, cols))?;
        }
        Ok(())
    }

    fn one(
        &self,
        workspace: &mut Workspace,
        input: &[f32],
        view: View,
        out: &mut [f32],
    ) -> Result<(), Fault> {
        let norm = sum_of_squares(input).sqrt();
        if !norm.is_finite() {
            return Err(Fault::Input);
        }
        if norm == 0.0 {
            out.fill(0.0);
            return Ok(());
        }
        self.iterate(workspace, input, view, norm.recip(), out);
        if sum_of_squares(out).is_finite() { Ok(()) } else { Err(Fault::Diverged) }
    }

    fn iterate(
        &self,
        workspace: &mut Workspace,
        input: &[f32],
        view: View,
        inverse_norm: f64,
        out: &mut [f32],
    ) {
        let load = |x: &mut [f32]| scaled(input, inverse_norm, x);
        let schedule = &self.schedule;
        if view.m() == 1 {
            // A vector: its Gram matrix is the number 1. Matrix-vector kernels would also split
            // their sums by thread and alignment, which the products below do not.
            scaled(input, inverse_norm * self.vector_gain, out);
        } else if view.resolve(self.form) == Form::Gram {
            let scratch = workspace.scratch(view, gram::NUM_SQUARES);
            gram::run((schedule, &self.restarts), view, scratch, out, load);
        } else {
            let scratch = workspace.scratch(view, direct::NUM_SQUARES);
            direct::run(schedule, view, scratch, out, load);
        }
    }
}

/// What went wrong with one matrix, before its place in the batch is known.
enum Fault {
    Input,
    Diverged,
}

impl Fault {
    fn at(self, matrix: usize, input: &[f32], cols: usize) -> NumericsError {
        let culprit = input.iter().position(|v| !v.is_finite());
        match (self, culprit) {
            (Fault::Input, Some(index)) => NumericsError::NonFiniteInput {
                matrix,
                row: index / cols,
                col: index % cols,
                value: input[index],
            },
            _ => NumericsError::Diverged { matrix },
        }
    }
}
