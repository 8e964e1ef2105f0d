//! The averaged gradients that this rank steps with, out of Burn's container and checked.

use crate::error::{Error, Result};
use crate::groups::Groups;
use crate::ops::Place;
use crate::runtime::Runtime;
use crate::step::{Findings, Stance};
use crate::transport::{HostSlice, is_view};
use crate::values::all_seen;
use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::{Device, Tensor};
use dmuon_core::update::rms;

/// The averaged gradients of the parameters this rank holds, on the host.
pub(crate) struct HeldGradients {
    /// By parameter.
    slices: Vec<Option<HostSlice>>,
    device: Option<Device>,
    /// By parameter.
    requires_grad: Vec<bool>,
}

impl HeldGradients {
    pub(crate) fn take<M: Module>(
        runtime: &Runtime,
        model: &M,
        gradients: GradientsParams,
    ) -> Result<Self> {
        let num_parameters = runtime.parameters().len();
        let slices = (0..num_parameters).map(|_| None).collect();
        let held = Self { slices, device: None, requires_grad: vec![false; num_parameters] };
        let seen = vec![false; num_parameters];
        let averages = runtime.take_averages();
        let mut visitor = TakeHeld { runtime, gradients, averages, held, seen, failure: None };
        model.visit(&mut visitor);
        all_seen(runtime, &visitor.seen)?;
        let TakeHeld { mut held, failure, .. } = visitor;
        if let Some(error) = failure {
            return Err(error);
        }
        // This rank's loss may not have touched the model at all; others still need it.
        for (parameter, Place { storage, slot }) in runtime.catch_up()? {
            held.slices[parameter].get_or_insert_with(|| storage.to_host(&slot));
        }
        Ok(held)
    }

    /// Parameters this rank should update but has no gradient for.
    pub(crate) fn missing(&self, runtime: &Runtime) -> Vec<String> {
        let missing = |&index: &usize| runtime.trains(index) && self.slices[index].is_none();
        (0..self.slices.len()).filter(missing).map(|index| runtime.name(index)).collect()
    }

    pub(crate) fn get(&self, parameter: usize) -> Option<&[f32]> {
        self.slices[parameter].as_ref().map(HostSlice::as_slice)
    }

    /// Where the parameters live.
    pub(crate) fn device(&self) -> &Device {
        self.device.as_ref().unwrap_or_else(|| unreachable!("a gradient was taken from a device"))
    }

    /// Looks at every gradient once: is it finite, and how large is it.
    pub(crate) fn examine(&self, runtime: &Runtime, groups: &Groups) -> Findings {
        let sums_of_squares = vec![0.0; groups.max_norms.len()];
        let mut findings = Findings { sums_of_squares, ..Findings::default() };
        for index in 0..self.slices.len() {
            let Some(gradient) = self.get(index) else { continue };
            let mean_square = rms(gradient).powi(2);
            if !mean_square.is_finite() {
                findings.non_finite.get_or_insert(index);
            }
            if runtime.counts(index) {
                let norm = groups.settings[index].norm;
                findings.sums_of_squares[norm] += mean_square * gradient.len() as f64;
            }
        }
        let stance = |(index, &trains): (usize, &bool)| {
            let holds = runtime.trains(index);
            Stance { gradient: holds.then(|| self.slices[index].is_some()), trains }
        };
        findings.stances = self.requires_grad.iter().enumerate().map(stance).collect();
        findings
    }
}

/// How this rank is about to step every parameter with an optimizer of Burn's.
pub(crate) fn survey<M: Module>(
    runtime: &Runtime,
    model: &M,
    gradients: &GradientsParams,
) -> Vec<Stance> {
    struct Survey<'a> {
        runtime: &'a Runtime,
        gradients: &'a GradientsParams,
        stances: Vec<Stance>,
    }
    impl ModuleVisitor for Survey<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let Some(index) = self.runtime.find(param.id) else { return };
            let holds = self.runtime.trains(index);
            let has = || self.gradients.get::<D>(param.id).is_some();
            let trains = param.base().is_require_grad();
            self.stances[index] = Stance { gradient: holds.then(has), trains };
        }
    }
    let stances = vec![Stance::default(); runtime.parameters().len()];
    let mut survey = Survey { runtime, gradients, stances };
    model.visit(&mut survey);
    survey.stances
}

struct TakeHeld<'a> {
    runtime: &'a Runtime,
    gradients: GradientsParams,
    /// By parameter: where its gradient was averaged, as far as that is known.
    averages: Vec<Option<Place>>,
    held: HeldGradients,
    seen: Vec<bool>,
    /// The first thing wrong with the model or its gradients.
    failure: Option<Error>,
}

impl ModuleVisitor for TakeHeld<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let Some(index) = self.runtime.find(param.id) else { return };
        self.seen[index] = true;
        self.held.device.get_or_insert_with(|| param.lazy_device());
        self.held.requires_grad[index] = param.base().is_require_grad();
        if !self.runtime.trains(index) {
            return;
        }
        let place = self.runtime.published_place(index);
        if place.is_some_and(|place| !is_view(param.base(), &place.storage, &place.slot)) {
            let (rank, parameter) = (self.runtime.rank(), self.runtime.name(index));
            self.failure.get_or_insert(Error::StaleWeight { rank, parameter });
        }
        let Some(gradient) = self.gradients.remove::<D>(param.id) else { return };
        let expected = self.runtime.held_slot(index).map_or(0, |slot| slot.num_elems);
        let found = gradient.shape().num_elements();
        if found != expected {
            let parameter = self.runtime.name(index);
            self.failure.get_or_insert(Error::GradientShape { parameter, expected, found });
        }
        let average = self.averages[index].take().map(|Place { storage, slot }| (storage, slot));
        self.held.slices[index] = Some(HostSlice::of_gradient(gradient, average));
    }
}

#[cfg(test)]
#[cfg(all(feature = "wgpu", not(feature = "fusion")))]
mod tests {
    use super::*;
    use crate::Dedicate;
    use burn::nn::{Linear, LinearConfig};
    use burn::tensor::DeviceKind;
    use dmuon_core::Mesh;

    #[derive(Module, Debug)]
    struct Net {
        layers: Vec<Linear>,
    }

    #[test]
    fn averages_that_the_host_has_are_not_read_back_unless_they_were_changed() {
        let device = Device::wgpu(DeviceKind::DefaultDevice).autodiff();
        dmuon_core::launch::<_, Error, _>(2, |world| {
            let net = Net { layers: vec![LinearConfig::new(6, 6).init(&device)] };
            let (net, handle) = Dedicate::new(&Mesh::new(&world)?).apply(net)?;
            let y = net.layers[0].forward(Tensor::<2>::ones([3, 6], &device));
            let gradients = y.square().mean().backward();
            let mut gradients = GradientsParams::from_grads(gradients, &net);
            let bias = net.layers[0].bias.as_ref().expect("linear layers have one").id;
            let average = gradients.remove::<1>(bias).expect("everyone holds it");
            let expected = average.clone().mul_scalar(2.0).into_data().try_to_vec::<f32>();
            gradients.register(bias, average.mul_scalar(2.0));
            let held = HeldGradients::take(&handle.runtime, &net, gradients)?;
            let (mut num_held, bias) = (0, handle.runtime.find(bias));
            for (index, slice) in held.slices.iter().enumerate() {
                let Some(slice) = slice else { continue };
                num_held += 1;
                let is_packed = matches!(slice, HostSlice::Packed(..));
                assert_eq!(is_packed, bias != Some(index), "{}", handle.runtime.name(index));
                if !is_packed {
                    assert_eq!(Some(slice.as_slice()), expected.as_deref().ok());
                }
            }
            let owns_the_weight = handle.runtime.held_packs().count() == 2;
            assert_eq!(num_held, if owns_the_weight { 2 } else { 1 });
            Ok(())
        })
        .unwrap();
    }
}
