//! The learning rates of one step: one for all, one for each optimizer, or what a scheduler says.

use crate::config::in_range;
use crate::error::Result;
use crate::groups::Groups;
use crate::parameter::Parameter;
use crate::route::Route;
use burn::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use std::fmt;

/// The learning rates of one step, by optimizer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// For matrices on the Muon route.
    pub muon: f64,
    /// For everything else.
    pub adamw: f64,
}

/// What [`Muon::step`](crate::Muon::step) takes: a number for everything, [`Rates`], or what one of
/// Burn's schedulers returns, whose groups then decide for each parameter.
///
/// ```
/// use burn::lr_scheduler::LrSchedulerConfig::{Cosine, Linear};
/// use burn::lr_scheduler::cosine::CosineAnnealingLrSchedulerConfig;
/// use burn::lr_scheduler::linear::LinearLrSchedulerConfig;
/// use burn::lr_scheduler::sequential::SequentialLrSchedulerConfig;
/// use dmuon_burn::StepRates;
///
/// let warm_up = LinearLrSchedulerConfig::new(1e-5, 0.02, 100);
/// let cosine = CosineAnnealingLrSchedulerConfig::new(0.02, 900);
/// let schedule = SequentialLrSchedulerConfig::new(vec![Linear(warm_up), Cosine(cosine)], vec![100]);
/// let mut schedule = schedule.init()?;
/// let rates: StepRates = schedule.step().into(); // `muon.step(schedule.step(), model, gradients)`
/// # Ok::<(), String>(())
/// ```
#[derive(Clone)]
pub struct StepRates(Kind);

#[derive(Clone)]
enum Kind {
    ByOptimizer(Rates),
    ByParameter(ModuleLearningRate),
}

impl From<f64> for Rates {
    fn from(rate: f64) -> Self {
        Self { muon: rate, adamw: rate }
    }
}

impl From<Rates> for StepRates {
    fn from(rates: Rates) -> Self {
        Self(Kind::ByOptimizer(rates))
    }
}

impl From<f64> for StepRates {
    fn from(rate: f64) -> Self {
        Rates::from(rate).into()
    }
}

impl From<ModuleLearningRate> for StepRates {
    fn from(rates: ModuleLearningRate) -> Self {
        Self(Kind::ByParameter(rates))
    }
}

impl StepRates {
    /// # Errors
    /// A rate is not finite.
    pub(crate) fn checked(self) -> Result<Self> {
        let Rates { muon, adamw } = self.base();
        let expected = "must be finite in single precision";
        in_range("the muon learning rate", muon, expected, |_| true)?;
        in_range("the adamw learning rate", adamw, expected, |_| true)?;
        Ok(self)
    }

    /// The rates of parameters that no group decides about.
    pub(crate) fn base(&self) -> Rates {
        match &self.0 {
            Kind::ByOptimizer(rates) => *rates,
            Kind::ByParameter(rates) => rates.base().into(),
        }
    }

    /// Every parameter's rate, its group's scale included.
    pub(crate) fn of_parameters(&self, parameters: &[Parameter], groups: &Groups) -> Vec<f64> {
        let rate = |(index, parameter): (usize, &Parameter)| {
            let rate = match (&self.0, parameter.route) {
                (Kind::ByOptimizer(rates), Route::Muon) => rates.muon,
                (Kind::ByOptimizer(rates), _) => rates.adamw,
                (Kind::ByParameter(rates), _) => {
                    rates.lr_from_param(parameter.id, Some(&parameter.name))
                }
            };
            rate * groups.lr_scale(index)
        };
        parameters.iter().enumerate().map(rate).collect()
    }
}

impl fmt::Debug for StepRates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let groups = if matches!(self.0, Kind::ByParameter(_)) { " and groups" } else { "" };
        write!(f, "{:?}{groups}", self.base())
    }
}
