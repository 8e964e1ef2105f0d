//! Unusual forwards and backwards: averaged gradients equal plain Burn's bit for bit all the same.

use crate::support::*;
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::GradientsParams;
use burn::tensor::{Device, Int, Tensor, TensorData};
use dmuon::{Dedicate, Dedicated, Hooked, Mesh, Mode};
use std::collections::BTreeSet;

pub(crate) const MODES: [(Mode, usize); 4] =
    [(Mode::Z2, 0), (Mode::Z2, 1), (Mode::Z3, 0), (Mode::Z3, 1)];

/// A model whose averaged gradients are compared with plain Burn's.
pub(crate) struct Case<'a, M> {
    model: &'a M,
    plain: &'a M,
    device: Device,
    num_ranks: &'a [usize],
    zeros: bool,
}

impl<'a, M: Module + Sync> Case<'a, M> {
    pub(crate) fn new(model: &'a M) -> Self {
        Self { model, plain: model, device: device(), num_ranks: &[2, 3], zeros: false }
    }

    /// Compares with this model, which holds the same values.
    pub(crate) fn against(mut self, plain: &'a M) -> Self {
        self.plain = plain;
        self
    }

    pub(crate) fn on(mut self, device: Device) -> Self {
        self.device = device;
        self
    }

    pub(crate) fn ranks(mut self, num_ranks: &'a [usize]) -> Self {
        self.num_ranks = num_ranks;
        self
    }

    /// Zeros may be registered where plain Burn registers nothing.
    pub(crate) fn allow_zeros(mut self) -> Self {
        self.zeros = true;
        self
    }

    /// One backward of the loss of a model on a rank.
    pub(crate) fn check(&self, loss: impl Fn(&M, usize) -> Tensor<1> + Sync) {
        self.check_each(|model, rank, _| vec![backward(model, loss(model, rank))]);
    }

    /// Several backwards, compared one by one; the runtime is given where the model is dedicated.
    fn check_each(
        &self,
        run: impl Fn(&M, usize, Option<&Dedicated>) -> Vec<GradientsParams> + Sync,
    ) {
        let plain = |rank| {
            let model = self.plain.clone().fork(&self.device);
            named(&model, run(&model, rank, None))
        };
        for &num_ranks in self.num_ranks {
            let plain: Vec<Vec<Named>> = (0..num_ranks).map(plain).collect();
            for (mode, prefetch) in MODES {
                let what = format!("{num_ranks} ranks, {mode}, prefetch {prefetch}");
                let found = on_ranks(num_ranks, |world| {
                    let model = self.model.clone().fork(&self.device);
                    let dedicate = Dedicate::new(&Mesh::new(&world)?);
                    let (mut model, dedicated) =
                        dedicate.mode(mode).prefetch(prefetch).apply(model)?;
                    let mut passes = Vec::new();
                    // Backward broadcasts of the second pass are planned from the first one's.
                    for _ in 0..2 {
                        let gradients = run(&model, world.rank().0, Some(&dedicated));
                        passes.push(named(&model, gradients));
                        model = dedicated.publish(model)?;
                    }
                    Ok((passes, dedicated))
                });
                let found = found.unwrap_or_else(|error| panic!("{what}: {error}"));
                for (rank, (passes, dedicated)) in found.iter().enumerate() {
                    for found in passes {
                        self.compare(&plain, found, rank, dedicated, &what);
                    }
                }
            }
        }
    }

    fn compare(
        &self,
        plain: &[Vec<Named>],
        found: &[Named],
        rank: usize,
        dedicated: &Dedicated,
        what: &str,
    ) {
        for (backward, found) in found.iter().enumerate() {
            let ranks: Vec<&Named> = plain.iter().map(|plain| &plain[backward]).collect();
            let routes = &dedicated.routes().entries;
            let held = routes.iter().filter(|entry| entry.owner.is_none_or(|owner| owner == rank));
            let held: BTreeSet<&String> = held.map(|entry| &entry.name).collect();
            let expected = mean(&ranks);
            for (name, gradient) in found {
                let what = format!("{what}: backward {backward}, rank {rank}, {name}");
                assert!(held.contains(name), "{what} is not held");
                match expected.get(name) {
                    Some(expected) => assert_same_bits(gradient, expected, &what),
                    None => assert!(self.zeros && gradient.iter().all(|&g| g == 0.0), "{what}"),
                }
            }
            let lost =
                expected.keys().find(|name| held.contains(name) && !found.contains_key(*name));
            assert_eq!(lost, None, "{what}: backward {backward}, rank {rank}");
        }
    }
}

/// The mean over ranks; a rank without a gradient contributes zero.
fn mean(ranks: &[&Named]) -> Named {
    let names: BTreeSet<&String> = ranks.iter().flat_map(|named| named.keys()).collect();
    let mean = |name: &String| {
        let len = ranks.iter().find_map(|named| named.get(name)).map_or(0, Vec::len);
        let part = |named: &&Named| named.get(name).cloned().unwrap_or_else(|| vec![0.0; len]);
        tree_mean(&ranks.iter().map(part).collect::<Vec<_>>())
    };
    names.into_iter().map(|name| (name.clone(), mean(name))).collect()
}

pub(crate) fn backward<M: Module>(model: &M, loss: Tensor<1>) -> GradientsParams {
    GradientsParams::from_grads(loss.backward(), model)
}

fn named<M: Module>(model: &M, all: Vec<GradientsParams>) -> Vec<Named> {
    all.iter().map(|one| gradients(model, one)).collect()
}

fn net() -> Net {
    seeded(11, |device| Net::new(3, device))
}

/// The model's own forward without the boundaries that `skips` names.
fn skipping(net: &Net, x: Tensor<3>, skips: impl Fn(usize) -> bool) -> Tensor<3> {
    let layers = net.layers.iter().enumerate().filter(|(index, _)| !skips(*index));
    let x = layers.fold(net.stem.forward(x), |x, (_, layer)| layer.run(x, |b, x| b.forward(x)));
    net.head.forward(x)
}

fn without_matrices(net: &Net, x: Tensor<3>, layer: usize) -> Tensor<3> {
    let layers = net.layers.iter().enumerate();
    let x = layers.fold(net.stem.forward(x), |x, (index, hooked)| {
        hooked.run(x, |block, x| match index == layer {
            true => x.clone() + block.norm.forward(x),
            false => block.forward(x),
        })
    });
    net.head.forward(x)
}

#[test]
fn a_matrix_unused_on_one_rank_counts_as_zero_there() {
    let net = net();
    for unused in 0..3 {
        for on in 0..2 {
            Case::new(&net).check(|net, rank| match rank == on {
                true => loss(without_matrices(net, batch(0, rank), unused)),
                false => loss(net.forward(batch(0, rank))),
            });
        }
    }
}

#[test]
fn a_matrix_unused_everywhere_has_no_gradient() {
    let net = net();
    for unused in 0..3 {
        Case::new(&net).check(|net, rank| loss(without_matrices(net, batch(0, rank), unused)));
    }
}

#[test]
fn a_boundary_that_one_rank_never_enters_is_still_served() {
    let net = net();
    for skipped in 0..3 {
        for on in 0..2 {
            Case::new(&net).check(|net, rank| {
                loss(skipping(net, batch(0, rank), |layer| rank == on && layer == skipped))
            });
        }
    }
    Case::new(&net).check(|net, rank| loss(skipping(net, batch(0, rank), |_| rank == 1)));
    Case::new(&net).check(|net, rank| loss(skipping(net, batch(0, rank), |l| l == rank)));
}

#[test]
fn a_boundary_that_nobody_enters_is_left_alone() {
    let net = net();
    for skipped in 0..3 {
        Case::new(&net)
            .check(|net, rank| loss(skipping(net, batch(0, rank), |layer| layer == skipped)));
    }
}

#[test]
fn a_boundary_may_be_entered_by_one_rank_after_a_step_in_which_nobody_did() {
    let net = net();
    for (mode, prefetch) in MODES {
        for layer in 0..3 {
            let enters = |step: usize, rank: usize| step == 2 || (step == 1 && rank == 0);
            let forward = |net: &Net, step: usize, rank: usize| {
                loss(skipping(net, batch(step, rank), |l| l == layer && !enters(step, rank)))
            };
            let plain: Vec<Vec<Named>> = (0..3)
                .map(|step| {
                    (0..2)
                        .map(|rank| plain_gradients(&net, |net| forward(net, step, rank)))
                        .collect()
                })
                .collect();
            let found = on_ranks(2, |world| {
                let (mut net, dedicated) =
                    dedicate(&world, &net, |d| d.mode(mode).prefetch(prefetch))?;
                let mut steps = Vec::new();
                for step in 0..3 {
                    let backward = backward(&net, forward(&net, step, world.rank().0));
                    steps.push(gradients(&net, &backward));
                    net = dedicated.publish(net)?;
                }
                Ok(steps)
            });
            let found =
                found.unwrap_or_else(|e| panic!("{mode} prefetch {prefetch}, {layer}: {e}"));
            for step in 0..3 {
                let expected = mean(&plain[step].iter().collect::<Vec<_>>());
                for (name, gradient) in found.iter().flat_map(|steps| &steps[step]) {
                    assert_same_bits(gradient, &expected[name], &format!("step {step}: {name}"));
                }
            }
        }
    }
}

#[test]
fn one_field_may_be_used_twice_in_a_boundary() {
    let net = net();
    Case::new(&net).check(|net, rank| {
        let x = net.stem.forward(batch(0, rank));
        let twice = |x, layer: &Hooked<Block>| layer.run(x, |b, x| b.forward(b.forward(x)));
        loss(net.head.forward(net.layers.iter().fold(x, twice)))
    });
}

#[test]
fn the_head_may_use_a_blocks_weight() {
    let net = net();
    for tied in 0..3 {
        Case::new(&net).check(|net, rank| {
            let y = net.layers.iter().fold(net.stem.forward(batch(0, rank)), |x, layer| {
                layer.run(x, |block, x| block.forward(x))
            });
            loss(net.layers[tied].up.forward(y))
        });
    }
}

#[test]
fn a_block_may_be_looped_before_one_backward() {
    let net = net();
    let run = |x, layer: &Hooked<Block>| layer.run(x, |block, x| block.forward(x));
    Case::new(&net).check(|net, rank| {
        let looped = net.layers.iter().chain(&net.layers);
        loss(net.head.forward(looped.fold(net.stem.forward(batch(0, rank)), run)))
    });
    Case::new(&net).check(|net, rank| {
        let looped = net.layers.iter().flat_map(|layer| [layer; 2]);
        loss(net.head.forward(looped.fold(net.stem.forward(batch(0, rank)), run)))
    });
}

#[test]
fn two_forwards_may_be_alive_at_once() {
    let net = net();
    for first in [0, 1] {
        Case::new(&net).check_each(|net, rank, _| {
            let mut losses = [0, 1].map(|step| Some(loss(net.forward(batch(step, rank)))));
            let order = [first, 1 - first];
            order.iter().map(|&n| backward(net, losses[n].take().unwrap())).collect()
        });
    }
    // In several micro-batches one after the other, too.
    Case::new(&net).check_each(|net, rank, _| {
        (0..3).map(|step| backward(net, loss(net.forward(batch(step, rank))))).collect()
    });
}

#[test]
fn frozen_weights_are_used_but_have_no_gradient() {
    for layer in 0..3 {
        let mut matrix = net();
        let up = matrix.layers[layer].up.clone().no_grad();
        matrix.layers[layer].up = up;
        Case::new(&matrix).check(|net, rank| loss(net.forward(batch(0, rank))));
        let mut block = net();
        let frozen = block.layers[layer].clone().no_grad();
        block.layers[layer] = frozen;
        Case::new(&block).check(|net, rank| loss(net.forward(batch(0, rank))));
        block.stem = block.stem.no_grad();
        Case::new(&block).check(|net, rank| loss(net.forward(batch(0, rank))));
    }
}

#[test]
fn a_boundary_may_take_an_input_that_needs_no_gradient() {
    let mut net = net();
    let raw = |net: &Net, rank| {
        let run = |x, layer: &Hooked<Block>| layer.run(x, |block: &Block, x| block.forward(x));
        loss(net.head.forward(net.layers.iter().fold(batch(0, rank), run)))
    };
    Case::new(&net).check(raw);
    net.stem = net.stem.no_grad();
    Case::new(&net).check(|net, rank| loss(net.forward(batch(0, rank))));
}

#[test]
fn a_boundary_may_ignore_its_input() {
    let net = net();
    let ignoring = |net: &Net, rank: usize, layer: usize, keep: bool| {
        let layers = net.layers.iter().enumerate();
        let x = layers.fold(net.stem.forward(batch(0, rank)), |x, (index, hooked)| {
            let own = batch(1, rank);
            match index == layer {
                true if keep => hooked.run(x.clone(), |block, _| block.forward(own)) + x,
                true => hooked.run(x, |block, _| block.forward(own)),
                false => hooked.run(x, |block, x| block.forward(x)),
            }
        });
        loss(net.head.forward(x))
    };
    for layer in 0..3 {
        Case::new(&net).check(|net, rank| ignoring(net, rank, layer, true));
        // What came before the boundary is on the tape for its order alone.
        Case::new(&net).allow_zeros().check(|net, rank| ignoring(net, rank, layer, false));
    }
}

/// `memory[index] + block(x)` and something for the loss to leave out.
fn mixed(
    block: &Block,
    (x, memory, index): (Tensor<3>, Tensor<3>, Tensor<1, Int>),
) -> (Tensor<3>, Tensor<3>) {
    let y = block.forward(x.clone());
    (y + memory.select(1, index), x.exp())
}

#[test]
fn a_boundary_takes_and_returns_several_tensors() {
    let net = net();
    let index = || Tensor::<1, Int>::from_data(TensorData::from([4, 3, 2, 1, 0]), &device());
    Case::new(&net).check(|net, rank| {
        let memory = net.stem.forward(batch(1, rank));
        let x = net.layers.iter().fold(net.stem.forward(batch(0, rank)), |x, layer| {
            layer.run((x, memory.clone(), index()), mixed).0
        });
        loss(net.head.forward(x))
    });
    // The hooked input is ignored, the other one is deeper in the tape.
    Case::new(&net).allow_zeros().check(|net, rank| {
        let memory = net.stem.forward(batch(1, rank));
        let x = net.layers.iter().fold(memory.clone() * 2.0, |x, layer| {
            layer.run((memory.clone(), x), |block, (_, x)| block.forward(x))
        });
        loss(net.head.forward(x))
    });
}

#[derive(Module, Debug)]
struct Open {
    layers: Vec<Block>,
    head: Linear,
}

#[test]
fn a_boundary_may_be_run_by_name() {
    let open = seeded(12, |device| Open {
        layers: (0..3).map(|_| Block::new(WIDTH, device)).collect(),
        head: LinearConfig::new(WIDTH, 3).init(device),
    });
    Case::new(&open).check_each(|open, rank, dedicated| {
        let layers = open.layers.iter().enumerate();
        let x = layers.fold(batch(0, rank), |x, (index, block)| match dedicated {
            None => block.forward(x),
            Some(dedicated) => {
                let boundary = dedicated.boundary(&format!("layers.{index}")).unwrap();
                boundary.run(x, |x| block.forward(x))
            }
        });
        vec![backward(open, loss(open.head.forward(x)))]
    });
}

#[test]
fn a_block_without_a_boundary_may_stand_among_blocks_with_one() {
    #[derive(Module, Debug)]
    struct Half {
        layers: Vec<Block>,
        blocks: Vec<Hooked<Block>>,
    }
    let half = seeded(13, |device| Half {
        layers: (0..2).map(|_| Block::new(WIDTH, device)).collect(),
        blocks: (0..2).map(|_| Hooked::new(Block::new(WIDTH, device))).collect(),
    });
    Case::new(&half).check(|half, rank| {
        let [first, second] = [0, 1].map(|index| (&half.layers[index], &half.blocks[index]));
        let pair = |x, (open, hooked): (&Block, &Hooked<Block>)| {
            hooked.run(open.forward(x), |block, x| block.forward(x))
        };
        loss(pair(pair(batch(0, rank), first), second))
    });
}

#[test]
fn worlds_of_one_and_of_more_ranks_than_matrices() {
    let net = seeded(14, |device| Net::new(1, device));
    Case::new(&net).ranks(&[1, 5]).check(|net, rank| loss(net.forward(batch(0, rank))));
}

#[test]
fn a_device_may_checkpoint_gradients() {
    let device = || device().gradient_checkpointing();
    let net = net();
    Case::new(&net)
        .on(device())
        .check(|net, rank| loss(net.forward(batch(0, rank).to_device(&device()))));
    let closed = seeded(15, |device| Closed::new(2, device));
    Case::new(&closed)
        .on(device())
        .check(|closed, rank| loss(closed.forward(batch(0, rank).to_device(&device()))));
}
