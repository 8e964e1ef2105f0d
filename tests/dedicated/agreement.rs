//! Ranks that step otherwise than each other, edits behind dmuon's back, and ranks that sit one out.

use crate::support::*;
use burn::module::Module;
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig};
use burn::optim::decay::WeightDecayConfig;
use burn::optim::{GradientsParams, SgdConfig};
use burn::tensor::{Tensor, TensorData};
use dmuon::{AdamW, Dedicated, Hooked, Muon, MuonConfig, Rank, Rates, Result, World};

/// One training step of each rank; `step` gets the averaged gradients.
fn stepping(
    config: impl Fn(usize) -> MuonConfig + Sync,
    step: impl Fn(usize, &mut Muon, &Dedicated, Net, GradientsParams) -> Result<Net> + Sync,
) -> Result<Vec<Net>> {
    let net = seeded(1, |device| Net::new(2, device));
    on_ranks(2, |world: World| {
        let rank = world.rank().0;
        let (net, dedicated) = dedicate(&world, &net, |d| d)?;
        let mut muon = config(rank).init(&dedicated)?;
        let backward = loss(net.forward(batch(0, rank))).backward();
        let gradients = GradientsParams::from_grads(backward, &net);
        step(rank, &mut muon, &dedicated, net, gradients)
    })
}

fn assert_fails(outcome: Result<Vec<Net>>, parts: &[&str]) {
    let message = outcome.map(|_| ()).unwrap_err().to_string();
    parts.iter().for_each(|part| assert!(message.contains(part), "{part:?} in {message}"));
}

#[test]
fn rates_that_differ_between_ranks_are_named() {
    let outcome = stepping(
        |_| MuonConfig::new(),
        |rank, muon, _, net, gradients| {
            let rates = Rates { muon: 0.1, adamw: 0.1 * (1 + rank) as f64 };
            muon.step(rates, net, gradients)
        },
    );
    assert_fails(outcome, &["rank 1", "adamw learning rate of 0.2", "rank 0 has", "of 0.1"]);
}

#[test]
fn settings_that_differ_between_ranks_are_refused() {
    let config = |rank: usize| {
        let beta_1 = if rank == 1 { 0.8 } else { 0.9 };
        MuonConfig::new().with_adamw(AdamW { beta_1, ..AdamW::default() })
    };
    let outcome = stepping(config, |_, muon, _, net, gradients| muon.step(0.1, net, gradients));
    assert_fails(outcome, &["rank 1", "optimizer settings"]);
}

#[test]
fn gradients_dropped_on_one_rank_are_noticed() {
    let outcome = stepping(
        |_| MuonConfig::new(),
        |rank, muon, _, net, gradients| {
            let gradients = if rank == 1 { GradientsParams::new() } else { gradients };
            muon.step(0.1, net, gradients)
        },
    );
    assert_fails(outcome, &["rank 1", "no gradient of \"stem.weight\""]);
}

#[test]
fn burns_optimizers_must_leave_replicas_alike() {
    let outcome = stepping(
        |_| MuonConfig::new(),
        |rank, _, dedicated, net, gradients| {
            let decay = WeightDecayConfig::new(0.1 * (1 + rank) as f32);
            let mut sgd = SgdConfig::new().with_weight_decay(Some(decay)).init();
            dedicated.step_with(&mut sgd, 0.1, net, gradients)
        },
    );
    assert_fails(outcome, &["rank 1", "values of replicated parameters"]);
}

/// The stem's bias, doubled in place.
fn edited(mut net: Net) -> Net {
    let double = |bias: Tensor<1>| Tensor::from_inner(bias.inner() * 2.0).require_grad();
    net.stem.bias = net.stem.bias.map(|bias| bias.map(double));
    net
}

#[test]
fn an_edit_behind_dmuons_back_is_an_error_and_publishing_it_is_not() {
    let between = stepping(
        |_| MuonConfig::new(),
        |_, muon, _, net, gradients| muon.step(0.1, edited(net), gradients),
    );
    assert_fails(between, &["stem.bias", "Dedicated::publish"]);
    let before = stepping(
        |_| MuonConfig::new(),
        |rank, muon, _, net, _| {
            let net = edited(net);
            let backward = loss(net.forward(batch(0, rank))).backward();
            muon.step(0.1, net.clone(), GradientsParams::from_grads(backward, &net))
        },
    );
    assert_fails(before, &["stem.bias", "Dedicated::publish"]);
    let published = stepping(
        |_| MuonConfig::new(),
        |rank, muon, dedicated, net, _| {
            let net = dedicated.publish(edited(net))?;
            let backward = loss(net.forward(batch(0, rank))).backward();
            muon.step(0.0, net.clone(), GradientsParams::from_grads(backward, &net))
        },
    );
    let original = values(&seeded(1, |device| Net::new(2, device)))["stem.bias"].clone();
    for net in published.unwrap() {
        let doubled: Vec<f32> = original.iter().map(|value| value * 2.0).collect();
        assert_same_bits(&values(&net)["stem.bias"], &doubled, "stem.bias");
    }
}

#[test]
fn a_rank_whose_loss_leaves_the_model_out_steps_with_the_others() {
    let net = seeded(1, |device| Net::new(3, device));
    for mode in [dmuon::Mode::Z2, dmuon::Mode::Z3] {
        let plain = plain_gradients(&net, |net| loss(net.forward(batch(0, 0))));
        let ranks = on_ranks(2, |world| {
            let (mut net, dedicated) = dedicate(&world, &net, |d| d.mode(mode))?;
            let config = MuonConfig::new().with_adamw(AdamW { eps: 1e3, ..AdamW::default() });
            let mut muon = config.init(&dedicated)?;
            let gradients = match world.rank() {
                Rank(0) => {
                    let backward = loss(net.forward(batch(0, 0))).backward();
                    GradientsParams::from_grads(backward, &net)
                }
                _ => GradientsParams::new(),
            };
            net = muon.step(0.1, net, gradients)?;
            assert!(muon.report().missing.is_empty());
            let norm = muon.report().gradient_norm;
            let _ = loss(net.forward(batch(1, world.rank().0))).backward();
            Ok(norm)
        })
        .unwrap();
        let squares = plain.values().flatten().map(|g| f64::from(g / 2.0).powi(2)).sum::<f64>();
        assert!((ranks[0] - squares.sqrt()).abs() < 1e-6 * squares.sqrt());
    }
}

#[test]
fn burns_optimizers_step_a_rank_whose_loss_leaves_the_model_out() {
    let net = seeded(1, |device| Net::new(2, device));
    let mut sgd = SgdConfig::new().init();
    let mut plain = net.clone().fork(&device());
    let backward = (loss(plain.forward(batch(0, 0))) / 2.0).backward();
    let gradients = GradientsParams::from_grads(backward, &plain);
    plain = sgd.step(0.5, plain, gradients);
    let full = on_ranks(2, |world| {
        let (net, dedicated) = dedicate(&world, &net, |d| d)?;
        let mut sgd = SgdConfig::new().init();
        let gradients = match world.rank() {
            Rank(0) => {
                let backward = loss(net.forward(batch(0, 0))).backward();
                GradientsParams::from_grads(backward, &net)
            }
            _ => GradientsParams::new(),
        };
        let net = dedicated.step_with(&mut sgd, 0.5, net, gradients)?;
        Ok(dedicated.full_model(&net, Rank(0))?.map(|net| values(&net)))
    })
    .unwrap();
    for (name, value) in full[0].as_ref().unwrap() {
        // Halving is exact, so the halved loss and the mean of one gradient and zero agree.
        assert_same_bits(value, &values(&plain)[name], name);
    }
}

#[test]
fn a_full_model_for_a_rank_that_is_not_there_is_refused() {
    let outcome = stepping(
        |_| MuonConfig::new(),
        |_, _, dedicated, net, _| Ok(dedicated.full_model(&net, Rank(9))?.unwrap_or(net)),
    );
    assert_fails(outcome, &["rank 9", "2 ranks"]);
}

#[test]
fn a_model_that_trains_nothing_gets_no_muon() {
    let net = seeded(1, |device| Net::new(2, device)).no_grad();
    let outcome = on_ranks(1, |world| {
        let (_net, dedicated) = dedicate(&world, &net, |d| d)?;
        MuonConfig::new().init(&dedicated).map(drop)
    });
    assert!(outcome.unwrap_err().to_string().contains("being trained"));
}

#[derive(Module, Debug)]
struct Normed {
    layers: Vec<Hooked<Linear>>,
    norm: BatchNorm,
}

impl Normed {
    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        let x = self.layers.iter().fold(x, |x, layer| layer.run(x, |l, x| l.forward(x)));
        self.norm.forward(x)
    }
}

#[test]
fn running_statistics_survive_steps() {
    let net = seeded(3, |device| Normed {
        layers: vec![Hooked::new(LinearConfig::new(WIDTH, WIDTH).init(device))],
        norm: BatchNormConfig::new(WIDTH).init(device),
    });
    let input = |step: usize| {
        let data: Vec<f32> = (0..6 * WIDTH).map(|i| ((i * 31 + step * 7) % 17) as f32).collect();
        Tensor::<2>::from_data(TensorData::new(data, [6, WIDTH]), &device())
    };
    let means = |net: &Normed| values(net)["norm.running_mean"].clone();
    // With a rate of 0 the weights stay, and the statistics must be plain Burn's.
    let mut plain = net.clone().fork(&device());
    let mut sgd = SgdConfig::new().init();
    for step in 0..3 {
        let backward = plain.forward(input(step)).square().mean().backward();
        let gradients = GradientsParams::from_grads(backward, &plain);
        plain = sgd.step(0.0, plain, gradients);
    }
    let ranks = on_ranks(2, |world| {
        let (mut net, dedicated) = dedicate(&world, &net, |d| d)?;
        let mut muon = MuonConfig::new().init(&dedicated)?;
        for step in 0..3 {
            let backward = net.forward(input(step)).square().mean().backward();
            let gradients = GradientsParams::from_grads(backward, &net);
            net = muon.step(0.0, net, gradients)?;
        }
        Ok(means(&net))
    })
    .unwrap();
    assert!(means(&plain).iter().any(|mean| *mean != 0.0));
    for mean in &ranks {
        assert_same_bits(mean, &means(&plain), "running mean");
    }
}
