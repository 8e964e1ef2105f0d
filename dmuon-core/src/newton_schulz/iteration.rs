//! The checked iteration: it validates shapes and values, picks form and precision and runs them.

use super::batch::Batch;
use super::coefficients::compose;
use super::error::check_len;
use super::normalize::{power_of_two_near, scaled};
use super::steps::{Fault, Plan};
use super::workspace::at_least;
use super::{Form, Kernel, NewtonSchulzConfig, NumericsError, Precision, Workspace};
use crate::kernels::{Engine, Products, View, sum_of_squares, turn};

/// A Newton–Schulz run with its schedule fixed; cheap to share between threads.
#[derive(Clone, Debug)]
pub struct NewtonSchulz {
    schedule: Vec<[f32; 3]>,
    /// What the schedule makes of σ = 1, the only singular value of a normalized vector.
    vector_gain: f64,
    form: Form,
    restarts: Vec<usize>,
    /// A restart before every step, which makes the Gram form the direct form.
    every_step: Vec<usize>,
    precision: Precision,
    engine: Engine,
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
            every_step: (1..schedule.len()).collect(),
            vector_gain: compose(&schedule, 1.0),
            form: config.form,
            precision: config.precision,
            engine: Engine::detect(),
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

    /// The same run on the portable kernel, whatever the CPU has: to compare with, in speed and
    /// in bits.
    pub fn with_portable_kernel(mut self) -> Self {
        self.engine = Engine::PORTABLE;
        self
    }

    /// The form a `rows × cols` matrix takes on this machine; never [`Form::Auto`].
    pub fn form(&self, rows: usize, cols: usize) -> Form {
        let able = self.engine.precision(self.precision, View::new(rows, cols));
        self.form.resolve_for(able, rows, cols)
    }

    /// The precision in force for a `rows × cols` matrix on this machine: what was asked, or
    /// [`Precision::F32`] where [`Precision::Bf16Products`] falls back to it.
    pub fn precision(&self, rows: usize, cols: usize) -> Precision {
        match self.form(rows, cols) {
            Form::Gram => Precision::F32,
            _ => self.engine.precision(self.precision, View::new(rows, cols)),
        }
    }

    /// The kernel a `rows × cols` matrix runs on, on this machine.
    pub fn kernel(&self, rows: usize, cols: usize) -> Kernel {
        self.engine.kernel(View::new(rows, cols))
    }

    /// Floating-point operations of one `rows × cols` matrix; see [`Form::flops`].
    pub fn flops(&self, rows: usize, cols: usize) -> u64 {
        self.form(rows, cols).flops(rows, cols, self.ns_steps(), self.restarts.len())
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
    /// have been written, and others may have been.
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
        let team = workspace.parallelism().team();
        let batch = Batch { input, out, len: view.len() };
        team.gather(|| batch.run(workspace, |member, x, y| self.one(member, x, view, y)))
            .map_err(|(matrix, fault)| name(fault, matrix, &input[matrix * view.len()..], cols))
    }

    fn one(
        &self,
        workspace: &mut Workspace,
        input: &[f32],
        view: View,
        out: &mut [f32],
    ) -> Result<(), Fault> {
        if view.m() == 1 {
            return self.vector(input, out);
        }
        if self.engine.wants_turned(view) {
            return self.turned(workspace, input, view, out);
        }
        match self.iterate(workspace, input, view, out) {
            Err(Fault::Scale) => self.rescaled(workspace, input, view, out),
            outcome => outcome,
        }
    }

    /// A tall matrix as its transpose.
    fn turned(
        &self,
        workspace: &mut Workspace,
        input: &[f32],
        View { rows, cols }: View,
        out: &mut [f32],
    ) -> Result<(), Fault> {
        let mut buffers = std::mem::take(&mut workspace.turned);
        let [x, y] = buffers.each_mut().map(|buffer| at_least(buffer, input.len()));
        turn(input, cols, x);
        let outcome = self.one(workspace, x, View::new(cols, rows), y);
        if outcome.is_ok() {
            turn(y, rows, out);
        }
        workspace.turned = buffers;
        outcome
    }

    /// A vector: its Gram matrix is the number 1.
    fn vector(&self, input: &[f32], out: &mut [f32]) -> Result<(), Fault> {
        let norm = sum_of_squares(input).sqrt();
        if !norm.is_finite() {
            return Err(Fault::Input);
        }
        if norm == 0.0 {
            out.fill(0.0);
            return Ok(());
        }
        let gain = self.vector_gain;
        if gain.is_nan() || gain.abs() > f64::from(f32::MAX) {
            return Err(Fault::Diverged);
        }
        scaled(input, gain / norm, out);
        Ok(())
    }

    /// A matrix too small or too large to square in `f32`: a power of two is taken out first,
    /// which changes no bit of the result.
    fn rescaled(
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
        let mut copy = std::mem::take(&mut workspace.rescaled);
        let x = at_least(&mut copy, input.len());
        scaled(input, power_of_two_near(norm).recip(), x);
        let outcome = self.iterate(workspace, x, view, out);
        workspace.rescaled = copy;
        outcome
    }

    fn iterate(
        &self,
        workspace: &mut Workspace,
        input: &[f32],
        view: View,
        out: &mut [f32],
    ) -> Result<(), Fault> {
        let View { rows, cols } = view;
        let restarts = match self.form(rows, cols) {
            Form::Gram => &self.restarts,
            _ => &self.every_step,
        };
        let plan = Plan { schedule: &self.schedule, restarts };
        let team = workspace.parallelism().team();
        let x_len = if plan.needs_x() { view.len() } else { 0 };
        let (scratch, panels) = workspace.scratch(x_len, view.m(), plan.num_squares());
        let precision = self.precision(rows, cols);
        let mut products = Products { engine: self.engine, view, precision, panels, team };
        plan.run(&mut products, scratch, input, out)
    }
}

/// Names what went wrong with one matrix of a batch.
fn name(fault: Fault, matrix: usize, input: &[f32], cols: usize) -> NumericsError {
    let input = match fault {
        Fault::Input => NumericsError::non_finite_input(matrix, input, cols),
        _ => None,
    };
    input.unwrap_or(NumericsError::Diverged { matrix })
}
