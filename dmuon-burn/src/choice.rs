//! Which route each parameter takes: defaults, then rules. Pure.

use crate::blueprint::Request;
use crate::error::{Error, Result};
use crate::inspect::ParameterInfo;
use crate::route::Route;
use crate::rules::Rule;

/// What becomes of parameters that no rank owns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rest {
    /// Every rank holds them.
    Replicated,
    /// Every rank holds a part of them.
    Sharded,
}

/// One parameter's route and where that puts it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Choice {
    pub(crate) route: Route,
    /// One rank owns it, trainable or frozen.
    pub(crate) owned: bool,
    /// Every rank of a replica holds a part of it.
    pub(crate) sharded: bool,
    pub(crate) reason: String,
}

impl Request {
    /// Every parameter's route, and the rules that match nothing.
    ///
    /// # Errors
    /// A selector or rule that selects nothing or no matrix, or a rule given to the wrong builder.
    pub(crate) fn choose(&self, found: &[ParameterInfo]) -> Result<(Vec<Choice>, Vec<String>)> {
        let mut selected = vec![false; found.len()];
        if let Some(matrices) = &self.matrices {
            for index in matrices.select(found)? {
                selected[index] = true;
            }
        }
        let choose = |(info, &selected): (&ParameterInfo, &bool)| self.choice(info, selected);
        let mut choices: Vec<Choice> = found.iter().zip(&selected).map(choose).collect();
        let mut unmatched = Vec::new();
        let of_dedicate = self.rules.iter().map(|rule| (rule, Decides::Everything));
        let of_fully_shard = self.shard_rules.iter().map(|rule| (rule, Decides::WhatIsLeft));
        for (rule, decides) in of_dedicate.chain(of_fully_shard) {
            if !apply(rule, decides, found, &mut choices)? {
                unmatched.push(rule.to_string());
            }
        }
        Ok((choices, unmatched))
    }

    fn choice(&self, info: &ParameterInfo, selected: bool) -> Choice {
        let rest = self.rest == Rest::Sharded;
        let (route, sharded, reason) = match (info.trainable, selected) {
            (true, true) => (Route::Muon, false, "selected matrix"),
            (false, true) => (Route::Frozen, false, "requires no gradient"),
            // A frozen vector may be a running statistic, which its module updates by itself.
            (false, false) => {
                let shards = rest && info.shape.len() >= 2 && !reads_stored_shape(info);
                (Route::Frozen, shards, "requires no gradient")
            }
            (true, false) if rest && reads_stored_shape(info) => {
                (Route::Replicated, false, "its module reads its stored shape")
            }
            (true, false) if rest => (Route::AdamWSharded, true, left_over(info)),
            (true, false) => (Route::Replicated, false, left_over(info)),
        };
        Choice { route, owned: selected, sharded, reason: reason.to_owned() }
    }
}

/// What a rule may decide about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Decides {
    /// Every parameter, dedicated or not.
    Everything,
    /// What is not dedicated.
    WhatIsLeft,
}

/// Applies a rule; returns whether it matched anything it may decide about.
fn apply(
    rule: &Rule,
    decides: Decides,
    found: &[ParameterInfo],
    choices: &mut [Choice],
) -> Result<bool> {
    let route = rule.route();
    check_route(rule, decides)?;
    let mut matched = false;
    for (info, choice) in found.iter().zip(choices) {
        let decidable = decides == Decides::Everything || !choice.owned;
        if !decidable || !rule.matches(info) {
            continue;
        }
        if !info.trainable {
            // Frozen it stays; only whether it is cut into parts may be asked for.
            if decides == Decides::WhatIsLeft && route == Route::Replicated {
                matched = true;
                choice.sharded = false;
            }
            continue;
        }
        if route == Route::Muon && info.shape.len() < 2 {
            let names = vec![format!("{} {:?}", info.name, info.shape)];
            return Err(Error::NotAMatrix { selector: format!("the rule \"{rule}\""), names });
        }
        matched = true;
        *choice = Choice {
            route,
            owned: matches!(route, Route::Muon | Route::AdamWOwned),
            sharded: route == Route::AdamWSharded,
            reason: format!("rule: {rule}"),
        };
    }
    Ok(matched)
}

/// A rule's route must be one that its builder can give.
fn check_route(rule: &Rule, decides: Decides) -> Result<()> {
    let cure = match (rule.route(), decides) {
        (Route::Frozen, _) => "freeze the module itself, with Burn's `no_grad`",
        (Route::AdamWSharded, Decides::Everything) => "give it to `FullyShard`",
        (Route::Muon | Route::AdamWOwned, Decides::WhatIsLeft) => {
            "give it to `Dedicate`, before `FullyShard`"
        }
        _ => return Ok(()),
    };
    Err(Error::RuleMisplaced { rule: rule.to_string(), cure })
}

/// Whether a forward of Burn's asks the stored parameter for its shape, which a piece has not.
fn reads_stored_shape(info: &ParameterInfo) -> bool {
    let feed_forward = |module: &String| module.ends_with("PositionWiseFeedForward");
    ["RmsNorm", "BatchNorm"].iter().any(|norm| info.module.ends_with(norm))
        || (info.name.ends_with("linear_inner.weight") && info.within.iter().any(feed_forward))
}

fn left_over(info: &ParameterInfo) -> &'static str {
    match info {
        info if info.shape.len() < 2 => "fewer than two dimensions",
        info if info.module.contains("Embedding") => "embedding",
        info if info.boundary.is_none() => "outside all boundaries",
        _ => "not selected",
    }
}
