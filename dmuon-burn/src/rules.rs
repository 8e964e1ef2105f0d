//! Rules that give parameters their routes, by name, shape or both; later rules win.

use crate::inspect::ParameterInfo;
use crate::route::Route;
use crate::select::matches;
use std::fmt;
use std::sync::Arc;

/// Gives a route to every trainable parameter it matches. Frozen parameters stay frozen; a rule of
/// [`FullyShard`](crate::FullyShard) with [`Route::Replicated`] keeps them whole.
///
/// ```
/// use dmuon_burn::{Route, Rule};
///
/// let small = Rule::new(Route::AdamWOwned).named("layers.*").shaped(|shape| shape.len() == 1);
/// assert_eq!(small.to_string(), "adamw_owned for \"layers.*\" of certain shapes");
/// ```
#[derive(Clone)]
pub struct Rule {
    route: Route,
    pattern: Option<String>,
    shaped: Option<ShapeTest>,
}

/// Must answer alike on every rank.
type ShapeTest = Arc<dyn Fn(&[usize]) -> bool + Send + Sync>;

impl Rule {
    /// A rule that matches every parameter.
    pub fn new(route: Route) -> Self {
        Self { route, pattern: None, shaped: None }
    }

    /// Narrows the rule to full names that match `pattern`; `*` stands for any characters.
    #[must_use]
    pub fn named(mut self, pattern: impl Into<String>) -> Self {
        self.pattern = Some(pattern.into());
        self
    }

    /// Narrows the rule to shapes the predicate accepts; it must answer alike on every rank.
    #[must_use]
    pub fn shaped(mut self, test: impl Fn(&[usize]) -> bool + Send + Sync + 'static) -> Self {
        self.shaped = Some(Arc::new(test));
        self
    }

    /// The route it gives.
    pub fn route(&self) -> Route {
        self.route
    }

    pub(crate) fn matches(&self, parameter: &ParameterInfo) -> bool {
        let named = |pattern: &String| matches(pattern, &parameter.name);
        let shaped = |test: &ShapeTest| test(&parameter.shape);
        self.pattern.as_ref().is_none_or(named) && self.shaped.as_ref().is_none_or(shaped)
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} for ", self.route)?;
        match &self.pattern {
            Some(pattern) => write!(f, "\"{pattern}\"")?,
            None => f.write_str("every parameter")?,
        }
        f.write_str(if self.shaped.is_some() { " of certain shapes" } else { "" })
    }
}

impl fmt::Debug for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Rule({self})")
    }
}
