//! Dynamic loss scaling, for gradients that half precision would lose.

use crate::config::in_range;
use crate::dedicated::Dedicated;
use crate::error::Result;
use crate::report::StepReport;
use crate::runtime::Factor;
use burn::tensor::Tensor;

/// Multiplies the loss so that small gradients survive fp16, and divides averaged gradients again.
///
/// A step whose gradients overflow is skipped on every rank and halves the scale; many good steps
/// double it. Ranks agree because they agree on which steps are skipped. Use it with
/// [`NonFinite::Skip`](crate::NonFinite::Skip).
///
/// ```
/// # use burn::{module::Module, optim::GradientsParams, tensor::{Device, Tensor}};
/// # use burn::nn::{Linear, LinearConfig};
/// # use dmuon_burn::{Dedicate, Error, Hooked, LossScaler, MuonConfig, NonFinite};
/// # use dmuon_core::{Mesh, launch};
/// # #[derive(Module, Debug)]
/// # struct Net { layers: Vec<Hooked<Linear>> }
/// # let device = Device::flex().autodiff();
/// # let net = Net { layers: vec![Hooked::new(LinearConfig::new(4, 4).init(&device))] };
/// # dmuon_burn::initialize(&net);
/// # launch(2, |world| -> Result<(), Error> {
/// # let device = Device::flex().autodiff();
/// # let (mut net, handle) = Dedicate::new(&Mesh::new(&world)?).apply(net.clone().fork(&device))?;
/// # let loss = |net: &Net| net.layers[0].run(Tensor::<2>::ones([2, 4], &device), |l, x| l.forward(x)).mean();
/// let mut muon = MuonConfig::new().with_non_finite(NonFinite::Skip).init(&handle)?;
/// let mut scaler = LossScaler::new(&handle)?;
/// for _ in 0..3 {
///     let backward = scaler.scaled(loss(&net)).backward();
///     net = muon.step(0.02, net.clone(), GradientsParams::from_grads(backward, &net))?;
///     scaler.update(muon.report())?;
/// }
/// # Ok(()) }).unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct LossScaler {
    handle: Dedicated,
    scale: f64,
    /// Good steps until the scale doubles.
    growth_interval: u64,
    good_steps: u64,
}

impl LossScaler {
    /// The scale never leaves this range: beyond it nothing is gained, or lost.
    const RANGE: (f64, f64) = (1.0, (1u64 << 32) as f64);

    /// A scale of 2¹⁶ that doubles after 2000 good steps.
    ///
    /// # Errors
    /// As [`with_scale`](Self::with_scale).
    pub fn new(handle: &Dedicated) -> Result<Self> {
        let scale = f64::from(1u32 << 16);
        let scaler = Self { handle: handle.clone(), scale, growth_interval: 2000, good_steps: 0 };
        scaler.with_scale(scale)
    }

    /// Starts from this scale; powers of two change no bit of a gradient that does not overflow.
    ///
    /// # Errors
    /// The scale is not between 1 and 2³².
    pub fn with_scale(mut self, scale: f64) -> Result<Self> {
        let (least, most) = Self::RANGE;
        let inside = |scale: f64| (least..=most).contains(&scale);
        in_range("the loss scale", scale, "must be from 1 to 2^32", inside)?;
        self.scale = scale;
        self.undo_scale()?;
        Ok(self)
    }

    /// Doubles the scale after this many steps without an overflow.
    #[must_use]
    pub fn with_growth_interval(mut self, steps: u64) -> Self {
        self.growth_interval = steps;
        self
    }

    /// What the loss is multiplied by.
    pub fn scale(&self) -> f64 {
        self.scale
    }

    /// The loss to run backward from.
    pub fn scaled(&self, loss: Tensor<1>) -> Tensor<1> {
        loss.mul_scalar(self.scale)
    }

    /// Learns from the step that was just taken, or skipped.
    ///
    /// # Errors
    /// As [`with_scale`](Self::with_scale), which the scale's range rules out.
    pub fn update(&mut self, report: &StepReport) -> Result<()> {
        let (least, most) = Self::RANGE;
        if report.skipped.is_some() {
            self.good_steps = 0;
            self.scale = (self.scale / 2.0).max(least);
            tracing::info!(scale = self.scale, "gradients overflowed: the loss scale is halved");
        } else {
            self.good_steps += 1;
            if self.good_steps >= self.growth_interval {
                self.good_steps = 0;
                self.scale = (self.scale * 2.0).min(most);
            }
        }
        self.undo_scale()
    }

    fn undo_scale(&self) -> Result<()> {
        let runtime = &self.handle.runtime;
        runtime.check_current()?;
        runtime.set_gradient_factor(Factor::LossScale, self.scale.recip() as f32);
        Ok(())
    }
}
