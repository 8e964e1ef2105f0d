//! Newton–Schulz where the parameter lives: on host slices for Flex, in tensor operations elsewhere.

use crate::error::Result;
use crate::parameter::MatrixView;
use crate::report::Method;
use crate::transport::{is_flex, write_tensor};
use burn::tensor::{Device, FloatDType, Tensor, TensorData};
use dmuon_core::newton_schulz::{
    Form, NewtonSchulz, NewtonSchulzConfig, NumericsError, Parallelism, Precision, Workspace,
};

/// Where Newton–Schulz runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Arithmetic {
    /// On host slices for parameters on Flex, in tensor operations on any other device.
    #[default]
    Auto,
    /// On host slices, whatever the device.
    Host,
    /// In tensor operations, with the products that the device has: what it calls `f32` may be less
    /// (TF32 on NVIDIA's GPUs), and a bf16 product is rounded to bf16. So [`Form::Auto`] is the direct
    /// form there, which corrects its own errors; the Gram form needs products in full `f32`.
    Tensors,
}

/// Newton–Schulz for a rank's matrices. Counts its runs.
#[derive(Debug)]
pub(crate) struct Orthogonalizer {
    host: NewtonSchulz,
    workspace: Workspace,
    schedule: Vec<[f32; 3]>,
    restarts: Vec<usize>,
    form: Form,
    precision: Precision,
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
            restarts: config.restart.positions(&schedule)?,
            schedule: schedule.iter().map(|triple| triple.map(|value| value as f32)).collect(),
            form: config.form,
            precision: config.precision,
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
        let Method { form, precision, kernel } = self.method(device, view);
        if kernel.is_some() {
            let shape = [batch, rows, cols];
            self.host.orthogonalize_batch(&mut self.workspace, input, shape, out)?;
        } else {
            check_finite(view, input)?;
            let data = TensorData::new(input.to_vec(), [batch, rows, cols]);
            let x = Tensor::<3>::from_data(data, &device.clone().without_autodiff());
            let y = match form {
                Form::Gram => on_wide(x, |x| gram(x, &self.schedule, &self.restarts)),
                _ => on_wide(x, |x| direct(x, &self.schedule, precision)),
            };
            write_tensor(y, out);
            if let Some(at) = out.iter().position(|elem| !elem.is_finite()) {
                return Err(NumericsError::Diverged { matrix: at / (rows * cols) });
            }
        }
        self.count(view);
        Ok(())
    }

    /// How a matrix on `device` is orthogonalized: what is in force, whatever was asked for.
    pub(crate) fn method(&self, device: &Device, view: MatrixView) -> Method {
        let MatrixView { rows, cols, .. } = view;
        let on_host = match self.arithmetic {
            Arithmetic::Auto => is_flex(device),
            Arithmetic::Host => true,
            Arithmetic::Tensors => false,
        };
        if on_host {
            let (form, precision) = (self.host.form(rows, cols), self.host.precision(rows, cols));
            return Method { form, precision, kernel: Some(self.host.kernel(rows, cols)) };
        }
        // As on hosts without bf16: the same iteration, with products in f32.
        let precision = match device.clone().without_autodiff().supports_dtype(FloatDType::BF16) {
            true => self.precision,
            false => Precision::F32,
        };
        match self.form {
            Form::Gram => Method { form: Form::Gram, precision: Precision::F32, kernel: None },
            _ => Method { form: Form::Direct, precision, kernel: None },
        }
    }

    /// Counts a batch as done.
    pub(crate) fn count(&mut self, view: MatrixView) {
        self.num_runs += view.batch;
    }
}

/// Refuses what is not finite before a device is asked to compute with it.
fn check_finite(view: MatrixView, input: &[f32]) -> Result<(), NumericsError> {
    let mut matrices = input.chunks(view.rows * view.cols).enumerate();
    let fault = matrices
        .find_map(|(matrix, elems)| NumericsError::non_finite_input(matrix, elems, view.cols));
    fault.map_or(Ok(()), Err)
}

/// Newton–Schulz in tensor operations: every matrix of `x` is divided by its Frobenius norm, and
/// `steps` sends each of its singular values through `a·σ + b·σ³ + c·σ⁵` for every triple. Tall
/// matrices are transposed around it.
///
/// # Shapes
/// `x`: `[batch, rows, cols]`, f32; the result has the same shape. Zero matrices stay zero.
///
/// # Source
/// The direct form is Keller Jordan's Muon; the Gram form, which iterates on `XXᵀ` alone, is Gram
/// Newton–Schulz by the Dao-AILab.
fn on_wide(x: Tensor<3>, steps: impl FnOnce(Tensor<3>) -> Tensor<3>) -> Tensor<3> {
    let [_, rows, cols] = x.dims();
    match rows > cols {
        true => steps(normalized(x.transpose())).transpose(),
        false => steps(normalized(x)),
    }
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

/// `A = XXᵀ; X ← aX + (bA + cA²)X`, the products in `precision`.
fn direct(x: Tensor<3>, schedule: &[[f32; 3]], precision: Precision) -> Tensor<3> {
    let product = |lhs: Tensor<3>, rhs: Tensor<3>| match precision {
        Precision::Bf16Products => {
            let [lhs, rhs] = [lhs, rhs].map(|factor| factor.cast(FloatDType::BF16));
            lhs.matmul(rhs).cast(FloatDType::F32)
        }
        _ => lhs.matmul(rhs),
    };
    schedule.iter().fold(x, |x, &[a, b, c]| {
        let gram = product(x.clone(), x.clone().transpose());
        let polynomial = gram.clone() * b + product(gram.clone(), gram) * c;
        x.clone() * a + product(polynomial, x)
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

    /// Independent elements: what rounding does to low ranks is another test.
    fn noise(view: MatrixView) -> impl Iterator<Item = f32> {
        (0..view.batch * view.rows * view.cols).map(|i| {
            let hash = (i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let hash = (hash ^ (hash >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            (hash >> 40) as f32 / (1 << 24) as f32 - 0.5
        })
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
            let input = noise(view).map(|elem| elem * 1e-12).collect::<Vec<f32>>();
            for (form, tolerance) in TOLERANCES {
                let host = run(Arithmetic::Host, form, view, &input);
                let tensors = run(Arithmetic::Tensors, form, view, &input);
                for (host, tensor) in host.iter().zip(&tensors) {
                    assert!((host - tensor).abs() < tolerance, "{view:?} {form:?}");
                }
            }
        }
    }

    /// Eight bits in every product of five steps, on values near 1.
    const BF16_ERROR: f32 = 5e-2;

    #[test]
    fn bf16_products_stay_near_single_precision_in_tensor_operations() {
        let view = view(2, 16, 24);
        let input: Vec<f32> = noise(view).collect();
        let run = |precision| {
            let config =
                NewtonSchulzConfig::new().with_form(Form::Direct).with_precision(precision);
            let serial = Parallelism::Serial;
            let mut ns = Orthogonalizer::new(config, Arithmetic::Tensors, serial).unwrap();
            let mut out = vec![f32::NAN; input.len()];
            ns.run(&Device::flex(), view, &input, &mut out).unwrap();
            out
        };
        let (bf16, f32) = (run(Precision::Bf16Products), run(Precision::F32));
        for (a, b) in bf16.iter().zip(&f32) {
            assert!((a - b).abs() < BF16_ERROR, "{a} is not {b}");
        }
        assert_ne!(bf16, f32);
    }

    #[test]
    fn what_is_not_finite_is_named_in_tensor_operations_too() {
        let run = |coefficients, input: &[f32]| {
            let config = NewtonSchulzConfig::new().with_coefficients(coefficients);
            let (arithmetic, serial) = (Arithmetic::Tensors, Parallelism::Serial);
            let mut ns = Orthogonalizer::new(config, arithmetic, serial).unwrap();
            ns.run(&Device::flex(), view(2, 2, 3), input, &mut [0.0; 12])
        };
        let mut input = [1.0; 12];
        let wild = Coefficients::Custom(vec![[1e30, 1e30, 1e30]; 5]);
        assert_eq!(run(wild, &input), Err(NumericsError::Diverged { matrix: 0 }));
        input[10] = f32::INFINITY;
        let value = f32::INFINITY;
        let named = NumericsError::NonFiniteInput { matrix: 1, row: 1, col: 1, value };
        assert_eq!(run(Coefficients::default(), &input), Err(named));
    }

    #[test]
    fn zero_stays_zero_in_tensor_operations() {
        let out = run(Arithmetic::Tensors, Form::Auto, view(2, 3, 4), &[0.0; 24]);
        assert_eq!(out, [0.0; 24]);
    }
}
