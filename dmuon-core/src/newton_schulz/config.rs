//! Settings of a Newton–Schulz run; they are checked once, by `NewtonSchulz::new`.

use super::{Coefficients, Form, Precision, Restart};

/// Settings of a Newton–Schulz run.
#[derive(Clone, Debug, PartialEq)]
pub struct NewtonSchulzConfig {
    /// The quintics to apply.
    pub coefficients: Coefficients,
    /// Number of steps; it really sets the number of steps.
    pub ns_steps: usize,
    /// How a step is evaluated.
    pub form: Form,
    /// Where the Gram form starts anew.
    pub restart: Restart,
    /// The arithmetic of the products.
    pub precision: Precision,
    /// Accepted for parity with other implementations, checked, and then without any effect: the
    /// norm of a nonzero matrix is divided out exactly however small it is, and zero stays zero.
    pub eps: f64,
}

impl Default for NewtonSchulzConfig {
    fn default() -> Self {
        Self {
            coefficients: Coefficients::PolarExpress,
            ns_steps: 5,
            form: Form::Auto,
            restart: Restart::Auto,
            precision: Precision::F32,
            eps: 1e-7,
        }
    }
}

impl NewtonSchulzConfig {
    /// Polar Express, five steps, the cheaper form for each shape, `f32` throughout.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the quintics to apply.
    pub fn with_coefficients(mut self, coefficients: Coefficients) -> Self {
        self.coefficients = coefficients;
        self
    }

    /// Sets the number of steps.
    pub fn with_ns_steps(mut self, ns_steps: usize) -> Self {
        self.ns_steps = ns_steps;
        self
    }

    /// Sets how a step is evaluated.
    pub fn with_form(mut self, form: Form) -> Self {
        self.form = form;
        self
    }

    /// Sets where the Gram form starts anew.
    pub fn with_restart(mut self, restart: Restart) -> Self {
        self.restart = restart;
        self
    }

    /// Sets the arithmetic of the products.
    pub fn with_precision(mut self, precision: Precision) -> Self {
        self.precision = precision;
        self
    }

    /// Accepts an `eps`; see the field for why it has no effect.
    pub fn with_eps(mut self, eps: f64) -> Self {
        self.eps = eps;
        self
    }
}
