//! Which optimizer takes a parameter and why: decided before the first step, checked after each.

use serde::Serialize;
use std::fmt;

/// Which optimizer takes a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Route {
    /// Muon on the one rank that owns it.
    Muon,
    /// AdamW on every rank, on averaged gradients.
    Replicated,
    /// None: it does not require gradients.
    Frozen,
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Muon => "muon",
            Self::Replicated => "replicated",
            Self::Frozen => "frozen",
        })
    }
}

/// One parameter's route.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RouteEntry {
    /// Full parameter name.
    pub name: String,
    /// Its shape.
    pub shape: Vec<usize>,
    /// Which optimizer takes it.
    pub route: Route,
    /// The rank that owns it; `None` where every rank holds it.
    pub owner: Option<usize>,
    /// The boundary it moves with.
    pub boundary: String,
    /// Why it has this route.
    pub reason: &'static str,
}

/// Every parameter with its route, in visit order; printed before the first step.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RouteReport {
    /// One entry a parameter.
    pub entries: Vec<RouteEntry>,
}

impl RouteReport {
    /// Number of parameters, and of their elements, on a route.
    pub fn count(&self, route: Route) -> (usize, usize) {
        let on_route = self.entries.iter().filter(|entry| entry.route == route);
        on_route.fold((0, 0), |(num, elems), entry| {
            (num + 1, elems + entry.shape.iter().product::<usize>())
        })
    }
}

impl fmt::Display for RouteReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.entries.iter().map(|entry| entry.name.len()).max().unwrap_or(0);
        for RouteEntry { name, shape, route, owner, boundary, reason } in &self.entries {
            let owner = owner.map_or("all".to_owned(), |owner| format!("rank {owner}"));
            let shape = format!("{shape:?}");
            writeln!(
                f,
                "{name:width$}  {shape:14}  {:10}  {owner:7}  {boundary:12}  {reason}",
                route.to_string()
            )?;
        }
        Ok(())
    }
}
