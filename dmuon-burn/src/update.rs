//! What one step makes of what this rank holds: momentum, Newton–Schulz, AdamW. Talks to nobody.

use crate::batch::Batch;
use crate::clip::Clip;
use crate::config::{MuonConfig, NonFinite};
use crate::error::{Error, Result};
use crate::groups::{Groups, Settings};
use crate::held::HeldGradients;
use crate::ops::Place;
use crate::orthogonalize::Orthogonalizer;
use crate::parameter::MatrixView;
use crate::report::{MatrixUpdate, StepReport};
use crate::route::Route;
use crate::runtime::Runtime;
use dmuon_core::newton_schulz::{Band, NumericsError};
use dmuon_core::update::{AdamW, AdamWState, ApplyUpdate, Momentum, RmsPromise, RmsVerdict};
use dmuon_core::{Buffer, EventKind};
use std::collections::BTreeMap;
use std::ops::Range;

/// States and scratch memory of a rank's updates.
#[derive(Debug)]
pub(crate) struct Updater {
    config: MuonConfig,
    orthogonalizer: Orthogonalizer,
    band: Band,
    /// By parameter.
    states: Vec<Option<State>>,
    batches: Vec<Batch>,
    /// By (unit, pack): indices of the batches that have matrices there.
    of_pack: BTreeMap<(usize, usize), Vec<usize>>,
    /// By batch: what Newton–Schulz made of it in this step, until it is applied.
    directions: Vec<Directions>,
    scratch: Scratch,
}

/// What does not change during a step.
pub(crate) struct Terms<'a> {
    pub(crate) runtime: &'a Runtime,
    pub(crate) groups: &'a Groups,
    pub(crate) gradients: &'a HeldGradients,
    pub(crate) clip: &'a Clip,
    /// By parameter.
    pub(crate) rates: &'a [f64],
}

/// What the optimizer remembers of one parameter.
#[derive(Debug)]
enum State {
    Muon { momentum: Vec<f32> },
    AdamW { first: Vec<f32>, second: Vec<f32>, step: u64 },
}

/// Memory that every update uses again.
#[derive(Debug, Default)]
struct Scratch {
    clipped: Vec<f32>,
    input: Vec<f32>,
    directions: Vec<f32>,
}

/// The directions of a batch.
#[derive(Debug, Default)]
struct Directions {
    elems: Vec<f32>,
    /// By parameter that had a gradient: where its directions lie.
    places: BTreeMap<usize, Range<usize>>,
    is_made: bool,
}

impl Updater {
    pub(crate) fn new(config: &MuonConfig, runtime: &Runtime) -> Result<Self> {
        let ns = config.newton_schulz();
        // The band's upper end bounds the singular values of every update, whatever its rank.
        let band = ns.coefficients.band(ns.ns_steps, config.smallest_sigma)?;
        let parallelism = config.parallelism(runtime.world());
        let batches = Batch::group(runtime.parameters(), |index| runtime.trains(index));
        let mut of_pack: BTreeMap<_, Vec<usize>> = BTreeMap::new();
        for (index, batch) in batches.iter().enumerate() {
            for pack in batch.packs(runtime.parameters()) {
                of_pack.entry(pack).or_default().push(index);
            }
        }
        Ok(Self {
            of_pack,
            orthogonalizer: Orthogonalizer::new(ns, config.arithmetic, parallelism)?,
            band,
            states: runtime.parameters().iter().map(|_| None).collect(),
            directions: batches.iter().map(|_| Directions::default()).collect(),
            batches,
            scratch: Scratch::default(),
            config: config.clone(),
        })
    }

    /// Bytes of momentum and moments.
    pub(crate) fn state_bytes(&self) -> usize {
        let elems = |state: &State| match state {
            State::Muon { momentum } => momentum.len(),
            State::AdamW { first, second, .. } => first.len() + second.len(),
        };
        self.states.iter().flatten().map(elems).sum::<usize>() * size_of::<f32>()
    }

    /// Nothing of an earlier step is left to apply.
    pub(crate) fn begin_step(&mut self) {
        self.directions.iter_mut().for_each(|directions| directions.is_made = false);
    }

    /// The new weights of one pack; `None` if it was never published, which `apply` rules out.
    pub(crate) fn pack(
        &mut self,
        terms: &Terms<'_>,
        (unit, pack): (usize, usize),
        report: &mut StepReport,
    ) -> Result<Option<Buffer>> {
        let runtime = terms.runtime;
        let Some(published) = runtime.published(unit, pack) else { return Ok(None) };
        runtime.recorder().mark(EventKind::OwnerStep, runtime.unit_name(unit));
        let mut buffer = runtime.spare(unit, pack);
        for &index in runtime.in_pack(unit, pack) {
            let held = runtime.held_place(index, published.clone());
            let Some(Place { storage, slot }) = held else { continue };
            let weight = &mut buffer.as_f32_mut()[slot.range()];
            weight.copy_from_slice(storage.slot(&slot));
            match runtime.parameter(index).route {
                Route::AdamWOwned | Route::AdamWSharded | Route::Replicated => {
                    self.adamw(terms, index, weight, report)?;
                }
                Route::Muon | Route::Frozen => {}
            }
        }
        for batch in self.of_pack.get(&(unit, pack)).cloned().unwrap_or_default() {
            self.apply(terms, batch, (unit, pack), &mut buffer, report)?;
        }
        Ok(Some(buffer))
    }

    fn adamw(
        &mut self,
        terms: &Terms<'_>,
        index: usize,
        weight: &mut [f32],
        report: &mut StepReport,
    ) -> Result<()> {
        let _span = tracing::trace_span!("adamw").entered();
        let Some(gradient) = terms.gradients.get(index) else { return Ok(()) };
        let Settings { norm, adamw, .. } = terms.groups.settings[index];
        let gradient = terms.clip.apply(norm, gradient, &mut self.scratch.clipped);
        let state = self.states[index].get_or_insert_with(|| State::AdamW {
            first: vec![0.0; weight.len()],
            second: vec![0.0; weight.len()],
            step: 0,
        });
        let State::AdamW { first, second, step } = state else { return Ok(()) };
        *step += 1;
        let adamw = AdamW { lr: terms.rates[index], ..adamw };
        adamw.step(weight, gradient, AdamWState { first, second, step: *step })?;
        report.adamw_updated += 1;
        Ok(())
    }

    /// Updates the batch's matrices in this pack.
    fn apply(
        &mut self,
        terms: &Terms<'_>,
        batch: usize,
        pack: (usize, usize),
        buffer: &mut Buffer,
        report: &mut StepReport,
    ) -> Result<()> {
        let here = |&&(index, _): &&(usize, MatrixView)| {
            let address = terms.runtime.parameter(index).address;
            (address.unit, address.pack) == pack
        };
        if !self.directions[batch].is_made {
            self.make_directions(terms, batch, report)?;
        }
        let mut directions = std::mem::take(&mut self.directions[batch]);
        for &(index, view) in self.batches[batch].members.iter().filter(here) {
            let Some(place) = directions.places.get(&index) else { continue };
            let weight = &mut buffer.as_f32_mut()[terms.runtime.whole_slot(index).range()];
            let update =
                self.update(terms, (index, view), weight, &directions.elems[place.clone()])?;
            report.updates.push(update);
            report.muon_updated += 1;
        }
        if self.batches[batch].pack.is_some() {
            // Applied: the next batch may use the memory.
            self.scratch.directions = std::mem::take(&mut directions.elems);
        }
        self.directions[batch] = directions;
        Ok(())
    }

    /// Momentum of every matrix of the batch that has a gradient, then Newton–Schulz once for each.
    fn make_directions(
        &mut self,
        terms: &Terms<'_>,
        batch: usize,
        report: &mut StepReport,
    ) -> Result<()> {
        let mut directions = std::mem::take(&mut self.directions[batch]);
        let Scratch { clipped, input, .. } = &mut self.scratch;
        input.clear();
        directions.places.clear();
        let mut present = Vec::new();
        for &(index, view) in &self.batches[batch].members {
            let Some(gradient) = terms.gradients.get(index) else { continue };
            let Settings { norm, momentum: mu, .. } = terms.groups.settings[index];
            let gradient = terms.clip.apply(norm, gradient, clipped);
            let state = self.states[index]
                .get_or_insert_with(|| State::Muon { momentum: vec![0.0; gradient.len()] });
            let State::Muon { momentum } = state else { continue };
            let place = input.len()..input.len() + gradient.len();
            input.resize(place.end, 0.0);
            let rule = Momentum { mu: mu as f32, rule: self.config.momentum_rule() };
            rule.step(momentum, gradient, &mut input[place.clone()])?;
            directions.places.insert(index, place);
            present.push((index, view));
        }
        directions.is_made = true;
        let num_elems = input.len();
        if !present.is_empty() {
            if self.batches[batch].pack.is_some() {
                directions.elems = std::mem::take(&mut self.scratch.directions);
            }
            directions.elems.resize(num_elems, 0.0);
            report.ns_calls += self.orthogonalize(terms, &present, &mut directions)?;
        }
        self.directions[batch] = directions;
        Ok(())
    }

    /// Returns how many matrices it ran on, which is all.
    fn orthogonalize(
        &mut self,
        terms: &Terms<'_>,
        present: &[(usize, MatrixView)],
        directions: &mut Directions,
    ) -> Result<usize> {
        let _span = tracing::trace_span!("orthogonalize").entered();
        let device = terms.gradients.device();
        let batch = present.iter().map(|(_, view)| view.batch).sum();
        let together = MatrixView { batch, ..present[0].1 };
        let before = self.orthogonalizer.num_runs();
        let Scratch { input, .. } = &self.scratch;
        let outcome = self.orthogonalizer.run(device, together, input, &mut directions.elems);
        match outcome {
            Err(NumericsError::NonFiniteInput { .. })
                if self.config.non_finite == NonFinite::Proceed =>
            {
                for &(index, view) in present {
                    let place = directions.places[&index].clone();
                    let (input, out) = (&input[place.clone()], &mut directions.elems[place]);
                    if self.orthogonalizer.run(device, view, input, out).is_err() {
                        out.fill(f32::NAN);
                        self.orthogonalizer.count(view);
                    }
                }
            }
            outcome => outcome.map_err(|source| {
                let parameter = terms.runtime.name(culprit(present, &source));
                Error::Update { rank: terms.runtime.rank(), parameter, source }
            })?,
        }
        let calls = self.orthogonalizer.num_runs() - before;
        match calls == batch {
            true => Ok(calls),
            false => Err(Error::NotUpdated { parameter: terms.runtime.name(present[0].0), calls }),
        }
    }

    /// Applies a direction, and compares its size with what the scale promises.
    fn update(
        &self,
        terms: &Terms<'_>,
        (index, view): (usize, MatrixView),
        weight: &mut [f32],
        direction: &[f32],
    ) -> Result<MatrixUpdate> {
        let Settings { weight_decay, .. } = terms.groups.settings[index];
        let scale = self.config.scale.factor(view.fans.fan_out, view.fans.fan_in);
        let lr = terms.rates[index];
        let rms = ApplyUpdate { lr, weight_decay, scale }.apply(weight, direction)?;
        let promise = RmsPromise::new(scale, self.band, view.rows, view.cols);
        let verdict = promise.judge(rms);
        Ok(MatrixUpdate {
            name: terms.runtime.name(index),
            rms,
            upper: promise.upper,
            full_rank_lower: promise.full_rank_lower,
            low_rank: verdict == RmsVerdict::LowRank,
            too_large: verdict == RmsVerdict::TooLarge,
            method: self.orthogonalizer.method(terms.gradients.device(), view),
        })
    }
}

/// The parameter that an error about a batch is about.
fn culprit(present: &[(usize, MatrixView)], error: &NumericsError) -> usize {
    let (NumericsError::NonFiniteInput { matrix, .. } | NumericsError::Diverged { matrix }) = error
    else {
        return present[0].0;
    };
    let mut end = 0;
    let holds = |(_, view): &&(usize, MatrixView)| {
        end += view.batch;
        *matrix < end
    };
    present.iter().find(holds).unwrap_or(&present[0]).0
}
