//! Newton–Schulz where the parameter lives: on host slices for Flex, in tensor operations elsewhere.

use crate::error::Result;
use crate::parameter::MatrixView;
use burn::backend::Flex;
use burn::tensor::{Device, Tensor, TensorData};
use dmuon_core::newton_schulz::{
    Form, NewtonSchulz, NewtonSchulzConfig, NumericsError, Parallelism, Restart, Workspace,
};

/// Where Newton–Schulz runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Arithmetic {
    /// On host slices for parameters on Flex, in tensor operations on any other device.
    #[default]
    Auto,
    /// On host slices.
    Host,
    /// In tensor operations.
    Tensors,
}

/// Newton–Schulz for a rank's matrices. Counts its runs.
#[derive(Debug)]
pub(crate) struct Orthogonalizer {
    host: NewtonSchulz,
    workspace: Workspace,
    schedule: Vec<[f32; 3]>,
    restart: Restart,
    form: Form,
    arithmetic: Arithmetic,
    num_runs: usize,
}

impl Orthogonalizer {
    /// # Errors
    /// The settings contradict each other, e.g. a number of steps the coefficients don't have.
    pub(crate) fn new(
        config: NewtonSchulzConfig,
        arithmetic: Arithmetic,
        parallelism: Parallelism,
    ) -> Result<Self> {
        let schedule = config.coefficients.schedule(config.ns_steps)?;
        Ok(Self {
            schedule: schedule.iter().map(|triple| triple.map(|value| value as f32)).collect(),
            restart: config.restart.clone(),
            form: config.form,
            host: NewtonSchulz::new(config)?,
            workspace: Workspace::new(parallelism),
            arithmetic,
            num_runs: 0,
        })
    }

    /// Matrices orthogonalized so far.
    pub(crate) fn num_runs(&self) -> usize {
        self.num_runs
    }

    /// Orthogonalizes a batch of matrices that lives on `device`.
    pub(crate) fn run(
        &mut self,
        device: &Device,
        view: MatrixView,
        input: &[f32],
        out: &mut [f32],
    ) -> Result<(), NumericsError> {
        let MatrixView { batch, rows, cols, .. } = view;
        let on_host = match self.arithmetic {
            Arithmetic::Auto => is_flex(device),
            Arithmetic::Host => true,
            Arithmetic::Tensors => false,
        };
        if on_host {
            let shape = [batch, rows, cols];
            self.host.orthogonalize_batch(&mut self.workspace, input, shape, out)?;
        } else {
            let data = TensorData::new(input.to_vec(), [batch, rows, cols]);
            let x = Tensor::<3>::from_data(data, &device.clone().without_autodiff());
            let form = self.form.resolve(rows, cols);
            let schedule: Vec<[f64; 3]> =
                self.schedule.iter().map(|triple| triple.map(f64::from)).collect();
            let restarts = self.restart.positions(&schedule)?;
            let y = newton_schulz(x, &self.schedule, form, &restarts);
            out.iter_mut().zip(y.into_data().iter::<f32>()).for_each(|(out, elem)| *out = elem);
        }
        self.count(view);
        Ok(())
    }

    /// Counts a batch as done.
    pub(crate) fn count(&mut self, view: MatrixView) {
        self.num_runs += view.batch;
    }
}

fn is_flex(device: &Device) -> bool {
    Tensor::<1>::zeros([1], &device.clone().without_autodiff()).try_into_primitive::<Flex>().is_ok()
}

/// Newton–Schulz in tensor operations: every matrix of `x` is divided by its Frobenius norm and
/// each of its singular values sent through `a·σ + b·σ³ + c·σ⁵` for every triple.
///
/// # Shapes
/// `x`: `[batch, rows, cols]`, f32; the result has the same shape. Zero matrices stay zero.
///
/// # Source
/// The direct form is Keller Jordan's Muon; the Gram form, which iterates on `XXᵀ` alone, is Gram
/// Newton–Schulz by the Dao-AILab.
fn newton_schulz(x: Tensor<3>, schedule: &[[f32; 3]], form: Form, restarts: &[usize]) -> Tensor<3> {
    let [_, rows, cols] = x.dims();
    let tall = rows > cols;
    let x = normalized(if tall { x.transpose() } else { x });
    let x = match form {
        Form::Gram => gram(x, schedule, restarts),
        _ => direct(x, schedule),
    };
    if tall { x.transpose() } else { x }
}

/// Divides by the Frobenius norm. The largest element is taken out first, so that squares neither
/// vanish nor overflow.
fn normalized(x: Tensor<3>) -> Tensor<3> {
    let largest = x.clone().abs().max_dim(2).max_dim(1);
    let scale = largest.clone().mask_fill(largest.equal_elem(0.0), 1.0);
    let x = x / scale;
    let squares = x.clone().square().sum_dim(2).sum_dim(1);
    let norm = squares.clone().mask_fill(squares.equal_elem(0.0), 1.0).sqrt();
    x / norm
}

/// `A = XXᵀ; X ← aX + (bA + cA²)X`.
fn direct(x: Tensor<3>, schedule: &[[f32; 3]]) -> Tensor<3> {
    schedule.iter().fold(x, |x, &[a, b, c]| {
        let gram = x.clone().matmul(x.clone().transpose());
        let polynomial = gram.clone() * b + gram.clone().matmul(gram) * c;
        x.clone() * a + polynomial.matmul(x)
    })
}

/// `R = XXᵀ; Z = bR + cR²; Q ← (a + Z)Q; R ← (a + Z)²R`, and `X ← QX` at restarts and at the end.
fn gram(x: Tensor<3>, schedule: &[[f32; 3]], restarts: &[usize]) -> Tensor<3> {
    let [batch, rows, _] = x.dims();
    let eye = || Tensor::<2>::eye(rows, &x.device()).unsqueeze::<3>().repeat_dim(0, batch);
    let (mut q, mut r) = (eye(), x.clone().matmul(x.clone().transpose()));
    let mut x = x.clone();
    for (step, &[a, b, c]) in schedule.iter().enumerate() {
        if restarts.contains(&step) {
            x = q.matmul(x);
            r = x.clone().matmul(x.clone().transpose());
            q = Tensor::<2>::eye(rows, &x.device()).unsqueeze::<3>().repeat_dim(0, batch);
        }
        let z = r.clone() * b + r.clone().matmul(r.clone()) * c;
        q = q.clone() * a + z.clone().matmul(q);
        if step + 1 < schedule.len() {
            let t = r.clone() * a + r.matmul(z.clone());
            r = t.clone() * a + z.matmul(t);
        }
    }
    q.matmul(x)
}

#[cfg(test)]
mod tests {
    use super::*;
    use dmuon_core::newton_schulz::Coefficients;
    use dmuon_core::update::Fans;

    /// Both run the same polynomial in f32 and differ by the order of sums: about 20 roundings of
    /// values near 1 a step. The Gram form amplifies them a thousandfold in small singular values.
    const TOLERANCES: [(Form, f32); 2] = [(Form::Direct, 2e-4), (Form::Gram, 2e-3)];

    fn view(batch: usize, rows: usize, cols: usize) -> MatrixView {
        MatrixView { batch, rows, cols, fans: Fans { fan_out: cols, fan_in: rows } }
    }

    fn run(arithmetic: Arithmetic, form: Form, view: MatrixView, input: &[f32]) -> Vec<f32> {
        let config =
            NewtonSchulzConfig::new().with_coefficients(Coefficients::PolarExpress).with_form(form);
        let mut ns = Orthogonalizer::new(config, arithmetic, Parallelism::Serial).unwrap();
        let mut out = vec![f32::NAN; input.len()];
        ns.run(&Device::flex(), view, input, &mut out).unwrap();
        assert_eq!(ns.num_runs(), view.batch);
        out
    }

    #[test]
    fn tensor_operations_agree_with_host_slices() {
        for view in [view(1, 8, 24), view(1, 24, 8), view(3, 16, 16), view(2, 1, 5)] {
            let len = view.batch * view.rows * view.cols;
            // Independent elements: what rounding does to a rank-deficient Gram form is another test.
            let elem = |i: usize| {
                let hash = (i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                let hash = (hash ^ (hash >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                ((hash >> 40) as f32 / (1 << 24) as f32 - 0.5) * 1e-12
            };
            let input: Vec<f32> = (0..len).map(elem).collect();
            for (form, tolerance) in TOLERANCES {
                let host = run(Arithmetic::Host, form, view, &input);
                let tensors = run(Arithmetic::Tensors, form, view, &input);
                for (host, tensor) in host.iter().zip(&tensors) {
                    assert!((host - tensor).abs() < tolerance, "{view:?} {form:?}");
                }
            }
        }
    }

    #[test]
    fn zero_stays_zero_in_tensor_operations() {
        let out = run(Arithmetic::Tensors, Form::Auto, view(2, 3, 4), &[0.0; 24]);
        assert_eq!(out, [0.0; 24]);
    }
}
