//! Packed buffers of a model on a device with memory of its own.
//!
//! Gradients are packed where backward leaves them, so that a pack leaves the device at once. Where the
//! world's engine takes that device's memory, packs travel by their address; else the host copies them
//! off, and what it receives goes up when a tensor asks for it.

use super::lend::{is_taken, lend};
use super::residents::Residents;
use super::{AnyDevice, HostSlice, PackStorage, Transport, dtype};
use crate::error::Error;
use burn::backend::ops::FloatTensorOps;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Cube, DispatchDevice, TensorMetadata, read_sync};
use burn::tensor::{Bytes, DType, FloatDType, Slice, TensorData};
use burn_cubecl::CubeDevice;
use dmuon_core::{
    Buffer, Call, DeviceTransfer, Element, FloatType, Group, Holding, HostMemory, InFlight,
    PackMemory, PackView, Piece, Result, SharedBuffer, Work, World,
};
use std::mem;
use std::ops::Range;
use std::time::Duration;

/// Packed buffers of a model.
#[derive(Clone, Debug)]
pub(crate) struct Packs {
    host: HostMemory<PackStorage>,
    /// Where the model is, if that is a device whose memory the world's engine takes.
    device: Option<CubeDevice>,
}

/// One parameter's gradient, in `f32`.
#[derive(Debug)]
pub(crate) enum Gradient {
    Host(HostSlice),
    Device(FloatTensor<Cube>),
}

/// A pack of gradients that is being filled.
#[derive(Debug)]
pub(crate) enum Filling {
    /// Nothing yet, of so many elements: unless packs travel by address, the first gradient tells
    /// where the pack is to be.
    Empty(usize),
    Host(Buffer),
    /// Zero where nothing was put.
    Device(FloatTensor<Cube>),
}

/// A pack of gradients.
#[derive(Debug)]
pub(crate) enum Sums {
    Host(SharedBuffer),
    Device(FloatTensor<Cube>),
}

impl Packs {
    /// The memory of a rank of `world`, for a model on `device`.
    pub(crate) fn new(world: &World, device: Option<&AnyDevice>) -> Self {
        let device = device.and_then(cube).filter(|device| is_taken(device, &*world.group()));
        Self { host: HostMemory::new(world), device }
    }

    /// A tensor's elements as a host buffer.
    fn download(&self, tensor: FloatTensor<Cube>) -> Result<SharedBuffer> {
        let data = read_sync(Cube::float_into_data(tensor));
        // A copy: the data itself would pin a staging buffer that the device has mapped.
        match data {
            Ok(data) => Ok(self.host.pool().take_copy(data.as_bytes()).freeze()),
            Err(error) => Err(Error::Readback { cause: error.to_string() }.into()),
        }
    }

    fn on_host(&self, sums: Sums) -> Result<SharedBuffer> {
        match sums {
            Sums::Host(buffer) => Ok(buffer),
            Sums::Device(tensor) => self.download(tensor),
        }
    }
}

impl PackMemory for Packs {
    type Pack = PackStorage;
    type Gradient = Gradient;
    type Filling = Filling;
    type Sums = Sums;

    fn hold(&self, holding: Holding, buffer: &SharedBuffer, float: FloatType) -> PackStorage {
        let pack = self.host.hold(holding, buffer, float);
        if let Some(device) = &self.device {
            // It is to travel from there, and its tensors are parts of it.
            whole(&pack, device);
        }
        pack
    }

    fn is_unique(&self, pack: &PackStorage) -> bool {
        pack.is_unique()
    }

    fn send(
        &self,
        group: &dyn Group,
        call: Call,
        pack: Option<&PackStorage>,
    ) -> Result<InFlight<PackStorage>> {
        let Some(device) = &self.device else {
            return self.host.send(group, call, pack);
        };
        let whole = pack.map(|pack| whole(pack, device));
        let (work, landing) = start_there(device, group, call, whole)?;
        Ok(InFlight::on_device(work, landing.map(PackStorage::on_device)))
    }

    fn receive(
        &self,
        in_flight: InFlight<PackStorage>,
        deadline: Duration,
        holding: Holding,
        float: FloatType,
    ) -> Result<Option<PackStorage>> {
        let pack = self.host.receive(in_flight, deadline, holding, float)?;
        Ok(pack.inspect(|pack| pack.count(self.host.ledger(), holding)))
    }

    fn fill(&self, num_elems: usize) -> Filling {
        match &self.device {
            Some(device) => Filling::Device(zeros(num_elems, device)),
            None => Filling::Empty(num_elems),
        }
    }

    fn put(&self, filling: &mut Filling, gradient: &Gradient, piece: Piece, first: bool) {
        if let Filling::Empty(num_elems) = *filling {
            *filling = match gradient {
                Gradient::Host(_) => Filling::Host(self.host.fill(num_elems)),
                Gradient::Device(tensor) => Filling::Device(zeros(num_elems, &tensor.device())),
            };
        }
        *filling = match mem::replace(filling, Filling::Empty(0)) {
            Filling::Device(pack) => {
                let value = narrow(gradient.on(&pack.device()), piece.of_gradient);
                let value = match first {
                    true => value,
                    false => Cube::float_add(narrow(pack.clone(), piece.at.clone()), value),
                };
                Filling::Device(assign(pack, piece.at, value))
            }
            Filling::Host(mut buffer) => {
                match gradient {
                    Gradient::Host(slice) => {
                        self.host.put(&mut buffer, slice.as_slice(), piece, first);
                    }
                    Gradient::Device(tensor) => {
                        let slice = Cube::to_host(tensor.clone());
                        self.host.put(&mut buffer, slice.as_slice(), piece, first);
                    }
                }
                Filling::Host(buffer)
            }
            Filling::Empty(_) => unreachable!("it was begun above"),
        };
    }

    fn complete(
        &self,
        filling: Filling,
        gaps: &[Range<usize>],
        lanes: &[Range<usize>],
        presence: &[f32],
    ) -> Result<Sums> {
        let on_host = |buffer| self.host.complete(buffer, gaps, lanes, presence).map(Sums::Host);
        match filling {
            Filling::Empty(num_elems) => on_host(self.host.fill(num_elems)),
            Filling::Host(buffer) => on_host(buffer),
            Filling::Device(pack) => {
                let data = TensorData::new(presence.to_vec(), [presence.len()]);
                let presence = Cube::float_from_data(data, &pack.device());
                let set = |pack, lanes: &Range<_>| assign(pack, lanes.clone(), presence.clone());
                Ok(Sums::Device(lanes.iter().fold(pack, set)))
            }
        }
    }

    fn start_sum(&self, group: &dyn Group, call: Call, sums: Sums) -> Result<InFlight<Sums>> {
        match (&self.device, sums) {
            (Some(device), Sums::Device(sums)) => {
                let sums = call.sums_widened().map_or(sums.clone(), |float| round(sums, float));
                let (work, landing) = start_there(device, group, call, Some(sums))?;
                Ok(InFlight::on_device(work, landing.map(Sums::Device)))
            }
            (_, sums) => {
                let sums = self.on_host(sums)?;
                Ok(self.host.start_sum(group, call, sums)?.map(Sums::Host))
            }
        }
    }

    fn wait_sum(
        &self,
        in_flight: InFlight<Sums>,
        deadline: Duration,
        float: FloatType,
    ) -> Result<Option<Sums>> {
        let widen = |sums| Sums::Host(float.widen(sums, self.host.pool()));
        let sums = in_flight.wait(deadline, widen)?;
        Ok(sums.map(|sums| match sums {
            Sums::Device(sums) => Sums::Device(round(sums, float)),
            on_host => on_host,
        }))
    }

    fn add(&self, kept: Sums, more: Sums) -> Result<Sums> {
        match (kept, more) {
            (Sums::Device(kept), Sums::Device(more)) => {
                Ok(Sums::Device(Cube::float_add(kept, more)))
            }
            (kept, more) => self.host.add(self.on_host(kept)?, self.on_host(more)?).map(Sums::Host),
        }
    }

    fn average(
        &self,
        sums: Sums,
        lanes: Range<usize>,
        divisor: f32,
        scale: f32,
    ) -> Result<(PackStorage, Vec<f32>)> {
        match sums {
            Sums::Host(sums) => self.host.average(sums, lanes, divisor, scale),
            Sums::Device(sums) => {
                let presence = self.download(narrow(sums.clone(), lanes))?;
                // The lanes are divided, too; nobody looks at them again.
                let average = Cube::float_div_scalar(sums, divisor.into());
                let average = match scale {
                    1.0 => average,
                    scale => Cube::float_mul_scalar(average, scale.into()),
                };
                let pack = PackStorage::on_device(average);
                pack.count(self.host.ledger(), Holding::Gradients);
                Ok((pack, presence.as_f32().to_vec()))
            }
        }
    }
}

impl Gradient {
    /// Its elements, in row-major order, on `device`.
    fn on(&self, device: &CubeDevice) -> FloatTensor<Cube> {
        match self {
            Self::Device(tensor) if tensor.device() == *device => flat(tensor.clone()),
            Self::Device(tensor) => Cube::float_to_device(flat(tensor.clone()), device),
            Self::Host(slice) => {
                let elems = slice.as_slice();
                Cube::float_from_data(TensorData::new(elems.to_vec(), [elems.len()]), device)
            }
        }
    }
}

impl PackStorage {
    /// One-dimensional elements that only their device has.
    fn on_device(whole: FloatTensor<Cube>) -> Self {
        let float = match whole.dtype() {
            DType::F16 => FloatType::F16,
            DType::BF16 => FloatType::Bf16,
            _ => FloatType::F32,
        };
        Self::of_residents(float, Residents::of(whole))
    }
}

/// A device with memory of its own.
fn cube(device: &AnyDevice) -> Option<CubeDevice> {
    match device.clone().without_autodiff().as_dispatch() {
        DispatchDevice::Cube(device) => Some(device.clone()),
        _ => None,
    }
}

/// All of a pack, on `device`.
fn whole(pack: &PackStorage, device: &CubeDevice) -> FloatTensor<Cube> {
    pack.residents.whole(device, || {
        // They share the buffer, which stays as long as the device's thread has them.
        let bytes = Bytes::clone(pack.bytes());
        let num_elems = bytes.len() / pack.float.num_bytes();
        let data = TensorData::from_bytes(bytes, [num_elems], dtype(pack.float));
        Cube::float_from_data(data, device)
    })
}

/// Starts a collective on a device; returns where its result will be, if this rank gets one.
fn start_there(
    device: &CubeDevice,
    group: &dyn Group,
    call: Call,
    input: Option<FloatTensor<Cube>>,
) -> Result<(Work, Option<FloatTensor<Cube>>)> {
    let carried_out = call.carried_out();
    let (rank, size) = (group.rank(), group.size());
    let dtype = match carried_out.element {
        Element::F16 => FloatDType::F16,
        Element::Bf16 => FloatDType::BF16,
        _ => FloatDType::F32,
    };
    let num_bytes = carried_out.output_bytes(rank, size);
    let room = num_bytes.filter(|_| !call.returns_input(rank, size)).map(|num_bytes| {
        let num_elems = num_bytes / carried_out.element.num_bytes();
        Cube::float_empty([num_elems].into(), device, dtype)
    });
    let lend = |tensor: &FloatTensor<Cube>| {
        lend(tensor, device).map_err(|cause| {
            let boundary = call.label.to_string();
            dmuon_core::Error::from(Error::Lend { boundary, cause })
        })
    };
    let transfer = DeviceTransfer {
        input: input.as_ref().map(lend).transpose()?,
        output: room.as_ref().map(lend).transpose()?,
    };
    let landing = if size == 1 { input } else { room };
    Ok((group.start_on_device(call, transfer)?, landing))
}

/// Elements of a one-dimensional tensor.
pub(super) fn narrow(tensor: FloatTensor<Cube>, range: Range<usize>) -> FloatTensor<Cube> {
    match range == (0..tensor.shape().num_elements()) {
        true => tensor,
        false => Cube::float_slice(tensor, &[Slice::from(range)]),
    }
}

fn flat(tensor: FloatTensor<Cube>) -> FloatTensor<Cube> {
    let num_elems = tensor.shape().num_elements();
    Cube::float_reshape(tensor, [num_elems].into())
}

fn zeros(num_elems: usize, device: &CubeDevice) -> FloatTensor<Cube> {
    Cube::float_zeros([num_elems].into(), device, FloatDType::F32)
}

fn assign(
    tensor: FloatTensor<Cube>,
    range: Range<usize>,
    value: FloatTensor<Cube>,
) -> FloatTensor<Cube> {
    Cube::float_slice_assign(tensor, &[Slice::from(range)], value)
}

/// Elements in `f32`, rounded to `float`.
fn round(tensor: FloatTensor<Cube>, float: FloatType) -> FloatTensor<Cube> {
    Cube::single(Cube::rounded(tensor, float))
}
