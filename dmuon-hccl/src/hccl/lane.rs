//! HCCL as a lane: collectives of a group as transfers of its communicator.

use super::{
    order::Order,
    passage::Passage,
    safe::{Channel, Comm, Device, Settings, Sum, Transfer},
};
use crate::{
    LibraryError,
    control::{Board, GroupId},
    device::{Lane, Turn, Turns},
    processes::Division,
};
use dmuon_core::{Call, DeviceTransfer, Element, Op, reduce::tree_sum};
use std::{convert::Infallible, sync::Arc};

/// A barrier is a sum of nothing. So is HCCL's own, which some versions have lost to whoever loads
/// them at run time.
const BARRIER: [u8; size_of::<f32>()] = 0.0_f32.to_ne_bytes();

/// What all lanes of a process share.
#[derive(Debug)]
pub(super) struct Ground {
    pub(super) device: Arc<Device>,
    /// The communicator that all others are parts of; none in a world of one.
    pub(super) world: Option<Arc<Comm>>,
    pub(super) board: Board,
    pub(super) settings: Settings,
}

/// A group's lane.
#[derive(Debug)]
pub(super) struct HcclLane {
    ground: Arc<Ground>,
    order: Order,
    /// None in a group of one, which needs no library.
    passage: Option<Passage>,
    /// What a group of one has brought, which is what it gets.
    brought: Vec<u8>,
}

/// A lane that is not there yet.
#[derive(Debug)]
pub(super) struct Forming {
    ground: Arc<Ground>,
    order: Order,
    /// The turn in which the communicator is made, and those that follow; none in a group of one.
    turns: Option<(Turns, Turn)>,
}

impl HcclLane {
    /// The lane of all ranks.
    pub(super) fn of_world(ground: Ground, order: Order) -> Result<Self, LibraryError> {
        let ground = Arc::new(ground);
        ground.device.enter()?;
        let passage = match &ground.world {
            Some(world) => {
                let turns = Turns::new(ground.board.clone(), GroupId::WORLD, order.size());
                Some(Passage::new(Channel::new(world.clone())?, turns, &order))
            }
            None => None,
        };
        Ok(Self { ground, order, passage, brought: Vec::new() })
    }

    /// The transfer that carries a call.
    fn transfer(&self, call: &Call) -> Transfer {
        let (part_bytes, part_elems) = (call.part_bytes(), call.num_elems);
        let root = call.op.root().map_or(0, |root| self.order.comm_rank_of(root));
        if sums_doubles(call) {
            let brought = call.input_bytes(self.rank(), self.size()).unwrap_or(0);
            return Transfer::AllGather { part_bytes: brought };
        }
        match call.op {
            Op::Broadcast { .. } => Transfer::Broadcast { root, num_bytes: part_bytes },
            Op::Reduce { .. } => Transfer::Sum(Sum::Reduce { root, num_elems: part_elems }),
            Op::AllReduce => Transfer::Sum(Sum::AllReduce { num_elems: part_elems }),
            Op::AllGather => Transfer::AllGather { part_bytes },
            Op::ReduceScatter => Transfer::Sum(Sum::ReduceScatter { part_elems }),
            Op::AllToAll => Transfer::AllToAll { part_bytes },
            Op::Barrier => Transfer::Sum(Sum::AllReduce { num_elems: 1 }),
        }
    }

    /// Copies what has come from every rank to `output`, in the group's order.
    fn collect_parts(&self, passage: &Passage, output: &mut [u8]) -> Result<(), LibraryError> {
        if self.order.is_straight() {
            return passage.receive(0, output);
        }
        let part_bytes = output.len() / self.size();
        for (place, part) in output.chunks_mut(part_bytes).enumerate() {
            passage.receive(self.order.comm_rank_of(place) * part_bytes, part)?;
        }
        Ok(())
    }

    /// Sums what has come from every rank here, since HCCL does not sum `f64` on most products.
    fn sum_doubles(
        &self,
        passage: &Passage,
        call: &Call,
        output: &mut [u8],
    ) -> Result<(), LibraryError> {
        let brought = call.input_bytes(self.rank(), self.size()).unwrap_or(0) / size_of::<f64>();
        let mut all = vec![0.0; self.size() * brought];
        self.collect_parts(passage, bytemuck::cast_slice_mut(&mut all))?;
        let first = if call.op == Op::ReduceScatter { self.rank() * call.num_elems } else { 0 };
        let own = first..first + call.num_elems;
        let inputs: Vec<&[f64]> = all.chunks(brought).map(|input| &input[own.clone()]).collect();
        tree_sum(&inputs, bytemuck::cast_slice_mut(output));
        Ok(())
    }
}

impl Lane for HcclLane {
    type Forming = Forming;
    type Fence = Infallible;

    const NATIVE_AVERAGE: bool = false;

    fn rank(&self) -> usize {
        self.order.place()
    }

    fn size(&self) -> usize {
        self.order.size()
    }

    fn issue(&mut self, call: &Call, input: Option<&[u8]>) -> Result<(), LibraryError> {
        let transfer = self.transfer(call);
        let input = match call.op {
            Op::Barrier => &BARRIER,
            _ => input.unwrap_or_default(),
        };
        let Some(passage) = &mut self.passage else {
            self.brought = input.to_vec();
            return Ok(());
        };
        let goes_by_rank = matches!(call.op, Op::AllToAll | Op::ReduceScatter)
            && !sums_doubles(call)
            && !self.order.is_straight();
        if !goes_by_rank {
            return passage.start(transfer, (!input.is_empty()).then_some((0, input)));
        }
        let parts = input.chunks(call.part_bytes()).enumerate();
        let placed = |(place, part)| (self.order.comm_rank_of(place) * call.part_bytes(), part);
        passage.start(transfer, parts.map(placed))
    }

    fn issue_on_device(
        &mut self,
        _: &Call,
        _: DeviceTransfer,
        fence: Infallible,
    ) -> Result<(), LibraryError> {
        match fence {}
    }

    fn poll(&mut self) -> Result<bool, LibraryError> {
        self.passage.as_mut().map_or(Ok(true), Passage::poll)
    }

    fn collect(&mut self, call: &Call, output: &mut [u8]) -> Result<(), LibraryError> {
        let Some(passage) = &self.passage else {
            output.copy_from_slice(&self.brought);
            return Ok(());
        };
        if sums_doubles(call) {
            return self.sum_doubles(passage, call, output);
        }
        match call.op {
            Op::AllGather | Op::AllToAll => self.collect_parts(passage, output),
            _ => passage.receive(0, output),
        }
    }

    fn split(&mut self, division: &Division) -> Result<Forming, LibraryError> {
        let (ground, order) = (self.ground.clone(), self.order.of_division(division));
        let mut turns = Turns::new(ground.board.clone(), division.id, order.size());
        let turns = (order.size() > 1).then(|| {
            let turn = turns.ask();
            (turns, turn)
        });
        Ok(Forming { ground, order, turns })
    }

    fn formed(forming: &mut Forming) -> Result<Option<Self>, LibraryError> {
        let (ground, order, brought) = (forming.ground.clone(), forming.order.clone(), Vec::new());
        let (Some(world), Some((turns, turn))) = (&ground.world, forming.turns.take()) else {
            return Ok(Some(Self { ground, order, passage: None, brought }));
        };
        if !turn.is_here() {
            forming.turns = Some((turns, turn));
            return Ok(None);
        }
        ground.device.enter()?;
        let (members, rank) = (order.members(), order.comm_rank());
        let part = Comm::part(world, &members, rank, (turns.group().number(), ground.settings));
        turn.pass();
        let passage = Some(Passage::new(Channel::new(Arc::new(part?))?, turns, &order));
        Ok(Some(Self { ground, order, passage, brought }))
    }

    fn abort(&mut self) {
        self.passage.iter_mut().for_each(Passage::abort);
    }
}

/// Whether a call sums elements that HCCL does not sum on most products.
fn sums_doubles(call: &Call) -> bool {
    let sums = matches!(call.op, Op::Reduce { .. } | Op::AllReduce | Op::ReduceScatter);
    sums && call.element == Element::F64
}
