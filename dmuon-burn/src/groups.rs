//! Groups of parameters with settings of their own, resolved to one set for each parameter.

use crate::config::{MuonConfig, in_range};
use crate::error::{Error, Result};
use crate::parameter::Parameter;
use crate::route::Route;
use crate::select::matches;
use dmuon_core::update::AdamW;

/// Parameters that are updated with settings of their own; for [`MuonConfig::with_group`].
///
/// What a group does not set is as for everything else.
///
/// ```
/// use dmuon_burn::{MuonConfig, OptimizerGroup};
///
/// let embeddings = OptimizerGroup::new("embeddings", ["*embedding*"])
///     .with_lr_scale(0.1)
///     .with_betas(0.9, 0.99)
///     .with_weight_decay(0.01);
/// let config = MuonConfig::new().with_group(embeddings).without_decay(["*.bias", "*norm*"]);
/// ```
#[derive(Clone, Debug)]
pub struct OptimizerGroup {
    name: String,
    patterns: Vec<String>,
    lr_scale: f64,
    momentum: Option<f64>,
    betas: Option<(f64, f64)>,
    weight_decay: Option<f64>,
    max_norm: Option<f64>,
}

impl OptimizerGroup {
    /// A group of the parameters whose full names match one of `patterns`, in which `*` stands for
    /// any characters.
    pub fn new<P: Into<String>>(
        name: impl Into<String>,
        patterns: impl IntoIterator<Item = P>,
    ) -> Self {
        Self {
            name: name.into(),
            patterns: patterns.into_iter().map(Into::into).collect(),
            lr_scale: 1.0,
            momentum: None,
            betas: None,
            weight_decay: None,
            max_norm: None,
        }
    }

    /// Multiplies the step's learning rate, Muon's or AdamW's, by this factor of 0 or more, so that
    /// schedules apply to the group too. [`Muon::set_lr_scale`](crate::Muon::set_lr_scale) changes
    /// it between steps.
    #[must_use]
    pub fn with_lr_scale(mut self, scale: f64) -> Self {
        self.lr_scale = scale;
        self
    }

    /// Sets Muon's momentum factor, in `[0, 1)`.
    #[must_use]
    pub fn with_momentum(mut self, momentum: f64) -> Self {
        self.momentum = Some(momentum);
        self
    }

    /// Sets AdamW's betas, in `[0, 1)`.
    #[must_use]
    pub fn with_betas(mut self, beta_1: f64, beta_2: f64) -> Self {
        self.betas = Some((beta_1, beta_2));
        self
    }

    /// Sets the decoupled weight decay, whichever optimizer takes the parameter.
    #[must_use]
    pub fn with_weight_decay(mut self, weight_decay: f64) -> Self {
        self.weight_decay = Some(weight_decay);
        self
    }

    /// Clips the group's gradients to this norm, taken over the group alone; the group then counts
    /// no longer where [`MuonConfig::with_max_norm`] clips everything else.
    #[must_use]
    pub fn with_max_norm(mut self, max_norm: f64) -> Self {
        self.max_norm = Some(max_norm);
        self
    }

    /// The group's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    fn check(&self) -> Result<()> {
        let unit = |value: f64| (0.0..1.0).contains(&value);
        let (beta_1, beta_2) = self.betas.unwrap_or_default();
        let positive = |value: f64| value >= 0.0;
        in_range("a group's learning rate scale", self.lr_scale, "must be 0 or more", positive)?;
        in_range("a group's momentum", self.momentum.unwrap_or(0.0), "must be in [0, 1)", unit)?;
        in_range("a group's beta 1", beta_1, "must be in [0, 1)", unit)?;
        in_range("a group's beta 2", beta_2, "must be in [0, 1)", unit)?;
        let decay = self.weight_decay.unwrap_or(0.0);
        in_range("a group's weight decay", decay, "must be 0 or more", positive)?;
        let max_norm = self.max_norm.unwrap_or(1.0);
        in_range("a group's max norm", max_norm, "must be above 0", |norm| norm > 0.0)
    }
}

/// What one parameter is updated with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    /// Index of the group, if it is in one.
    pub(crate) group: Option<usize>,
    pub(crate) momentum: f64,
    /// Muon's decay.
    pub(crate) weight_decay: f64,
    /// With the decay AdamW uses; the rate is the step's.
    pub(crate) adamw: AdamW,
    /// Which norm its gradient is part of: 0, or one more than the group's index.
    pub(crate) norm: usize,
}

/// Everything that differs between parameters.
#[derive(Debug)]
pub(crate) struct Groups {
    /// By parameter.
    pub(crate) settings: Vec<Settings>,
    names: Vec<String>,
    /// By group.
    lr_scales: Vec<f64>,
    /// By norm: what its gradients are clipped to.
    pub(crate) max_norms: Vec<Option<f64>>,
}

impl Groups {
    /// # Errors
    /// A setting out of range, a pattern that matches nothing, a parameter in two groups.
    pub(crate) fn resolve(config: &MuonConfig, parameters: &[Parameter]) -> Result<Self> {
        let groups = &config.groups;
        groups.iter().try_for_each(OptimizerGroup::check)?;
        for group in groups {
            all_match(&format!("the group \"{}\"", group.name), &group.patterns, parameters)?;
        }
        if let Err(unmatched) = all_match("`without_decay`", &config.no_decay, parameters) {
            // A list of usual exclusions fits models that lack some of them.
            tracing::warn!("{unmatched}");
        }
        let settings = parameters.iter().map(|parameter| settings(config, parameter));
        let own = groups.iter().map(|group| group.max_norm);
        Ok(Self {
            settings: settings.collect::<Result<_>>()?,
            names: groups.iter().map(|group| group.name.clone()).collect(),
            lr_scales: groups.iter().map(|group| group.lr_scale).collect(),
            max_norms: std::iter::once(config.max_norm).chain(own).collect(),
        })
    }

    pub(crate) fn lr_scale(&self, parameter: usize) -> f64 {
        self.settings[parameter].group.map_or(1.0, |group| self.lr_scales[group])
    }

    /// # Errors
    /// There is no such group, or the scale is out of range.
    pub(crate) fn set_lr_scale(&mut self, group: &str, scale: f64) -> Result<()> {
        let positive = |scale: f64| scale >= 0.0;
        in_range("a group's learning rate scale", scale, "must be 0 or more", positive)?;
        let Some(index) = self.names.iter().position(|name| name == group) else {
            let (group, available) = (group.to_owned(), self.names.clone());
            return Err(Error::UnknownGroup { group, available });
        };
        self.lr_scales[index] = scale;
        Ok(())
    }
}

fn settings(config: &MuonConfig, parameter: &Parameter) -> Result<Settings> {
    let is_in = |group: &&OptimizerGroup| any_matches(&group.patterns, parameter);
    let mut found = config.groups.iter().enumerate().filter(|(_, group)| is_in(group));
    let group = found.next();
    if let (Some((_, first)), Some((_, second))) = (group, found.next()) {
        return Err(Error::InTwoGroups {
            parameter: parameter.name.to_string(),
            first: first.name.clone(),
            second: second.name.clone(),
        });
    }
    let MuonConfig { mut adamw, momentum, weight_decay, .. } = *config;
    let mut settings = Settings { group: None, momentum, weight_decay, adamw, norm: 0 };
    if let Some((index, group)) = group {
        (adamw.beta_1, adamw.beta_2) = group.betas.unwrap_or((adamw.beta_1, adamw.beta_2));
        adamw.weight_decay = group.weight_decay.unwrap_or(adamw.weight_decay);
        settings = Settings {
            group: Some(index),
            momentum: group.momentum.unwrap_or(momentum),
            weight_decay: group.weight_decay.unwrap_or(weight_decay),
            adamw,
            norm: if group.max_norm.is_some() { index + 1 } else { 0 },
        };
    }
    if any_matches(&config.no_decay, parameter) {
        settings.weight_decay = 0.0;
        settings.adamw.weight_decay = 0.0;
    }
    Ok(settings)
}

fn any_matches(patterns: &[String], parameter: &Parameter) -> bool {
    patterns.iter().any(|pattern| matches(pattern, &parameter.name))
}

fn all_match(of: &str, patterns: &[String], parameters: &[Parameter]) -> Result<()> {
    let trained = || parameters.iter().filter(|parameter| parameter.route != Route::Frozen);
    for pattern in patterns {
        if !trained().any(|parameter| matches(pattern, &parameter.name)) {
            let available = trained().map(|parameter| parameter.name.to_string()).collect();
            let (of, pattern) = (of.to_owned(), pattern.clone());
            return Err(Error::PatternMatchesNothing { of, pattern, available });
        }
    }
    Ok(())
}
