//! Which optimizer takes a parameter, where and why: decided before the first step.

use crate::error::{Error, Result};
use serde::Serialize;
use std::fmt;
use std::str::FromStr;

/// Which optimizer takes a parameter, and where it lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[non_exhaustive]
pub enum Route {
    /// Muon on the one rank that owns it.
    #[serde(rename = "muon")]
    Muon,
    /// AdamW on the one rank that owns it: for small tensors that travel with a boundary's
    /// matrices.
    #[serde(rename = "adamw_owned")]
    AdamWOwned,
    /// AdamW on every rank's own part of it.
    #[serde(rename = "adamw_sharded")]
    AdamWSharded,
    /// AdamW on every rank, alike, on averaged gradients.
    #[serde(rename = "replicated")]
    Replicated,
    /// None: it does not require gradients.
    #[serde(rename = "frozen")]
    Frozen,
}

impl Route {
    /// Every route, in declaration order.
    pub const ALL: [Self; 5] =
        [Self::Muon, Self::AdamWOwned, Self::AdamWSharded, Self::Replicated, Self::Frozen];

    /// The route's name, as reports write it and [`FromStr`] reads it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Muon => "muon",
            Self::AdamWOwned => "adamw_owned",
            Self::AdamWSharded => "adamw_sharded",
            Self::Replicated => "replicated",
            Self::Frozen => "frozen",
        }
    }
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Route {
    type Err = Error;

    /// # Errors
    /// [`Error::UnknownRoute`], naming those there are.
    fn from_str(name: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|route| route.name() == name);
        found.ok_or_else(|| Error::UnknownRoute { route: name.to_owned() })
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
    /// The rank that owns it; `None` where every rank holds it, or a part of it.
    pub owner: Option<usize>,
    /// Whether every rank of a replica holds a part of it.
    pub sharded: bool,
    /// The boundary it moves with.
    pub boundary: String,
    /// Why it has this route.
    pub reason: String,
}

/// Every parameter with its route, in visit order; printed before the first step.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RouteReport {
    /// One entry a parameter.
    pub entries: Vec<RouteEntry>,
    /// Rules that match no parameter they could apply to.
    pub unmatched: Vec<String>,
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

impl RouteEntry {
    fn holder(&self) -> String {
        match self.owner {
            Some(owner) => format!("rank {owner}"),
            None if self.sharded => "parts".to_owned(),
            None => "all".to_owned(),
        }
    }
}

impl fmt::Display for RouteReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.entries.iter().map(|entry| entry.name.len()).max().unwrap_or(0);
        for entry in &self.entries {
            let RouteEntry { name, shape, route, boundary, reason, .. } = entry;
            let (holder, shape) = (entry.holder(), format!("{shape:?}"));
            writeln!(
                f,
                "{name:width$}  {shape:14}  {route:13}  {holder:7}  {boundary:12}  {reason}"
            )?;
        }
        self.unmatched.iter().try_for_each(|rule| writeln!(f, "matches nothing: {rule}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back_and_unknown_ones_list_the_known() {
        for route in Route::ALL {
            assert_eq!(route.name().parse::<Route>().unwrap(), route);
            let json = serde_json::to_string(&route).unwrap();
            assert_eq!(json, format!("\"{route}\""));
        }
        let message = "adam".parse::<Route>().unwrap_err().to_string();
        assert!(message.contains("\"adam\"") && message.contains("adamw_sharded"), "{message}");
    }
}
