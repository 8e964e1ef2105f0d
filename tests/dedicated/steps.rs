//! Whole steps: modes, seeds and worlds against each other, and updates against oracles.

use crate::support::*;
use burn::module::{Module, Param};
use burn::nn::{Linear, LinearConfig};
use burn::optim::{AdamWConfig, GradientsParams, ModuleOptimizer, MuonConfig as BurnMuonConfig};
use burn::tensor::{Tensor, TensorData};
use dmuon::newton_schulz::{Coefficients, Form, Precision};
use dmuon::{AdamW, Arithmetic, Hooked, Mode, MuonConfig, Rank, Rates, Result, UpdateScale, World};

const STEPS: usize = 10;

/// Trains and returns every loss, and all whole weights from rank 0.
fn train(
    num_ranks: usize,
    mode: Mode,
    prefetch: usize,
    input: impl Fn(usize, usize) -> Tensor<3> + Sync,
) -> (Vec<Vec<f32>>, Named) {
    train_with(&MuonConfig::new(), num_ranks, (mode, prefetch), input)
}

fn train_with(
    config: &MuonConfig,
    num_ranks: usize,
    (mode, prefetch): (Mode, usize),
    input: impl Fn(usize, usize) -> Tensor<3> + Sync,
) -> (Vec<Vec<f32>>, Named) {
    let net = seeded(1, |device| Net::new(3, device));
    let mut ranks = on_ranks(num_ranks, |world| {
        let (mut net, dedicated) = dedicate(&world, &net, |d| d.mode(mode).prefetch(prefetch))?;
        let mut muon = config.init(&dedicated)?;
        let mut losses = Vec::new();
        for step in 0..STEPS {
            let loss = loss(net.forward(input(step, world.rank().0)));
            losses.push(loss.clone().into_scalar::<f32>());
            let gradients = GradientsParams::from_grads(loss.backward(), &net);
            net = muon.step(0.02, net, gradients)?;
            assert_eq!(muon.report().missing, Vec::<String>::new());
            assert!(muon.report().updates.iter().all(|update| !update.too_large));
        }
        let full = dedicated.full_model(&net, Rank(0))?;
        Ok((losses, full.map(|full| values(&full))))
    })
    .unwrap();
    let weights = ranks[0].1.take().unwrap();
    (ranks.into_iter().map(|(losses, _)| losses).collect(), weights)
}

fn assert_same_run(a: &(Vec<Vec<f32>>, Named), b: &(Vec<Vec<f32>>, Named), what: &str) {
    for (rank, (a, b)) in a.0.iter().zip(&b.0).enumerate() {
        assert_same_bits(a, b, &format!("{what}: losses of rank {rank}"));
    }
    assert!(a.1.keys().eq(b.1.keys()));
    for (name, weight) in &a.1 {
        assert_same_bits(weight, &b.1[name], &format!("{what}: {name}"));
    }
}

#[test]
fn z2_and_z3_and_every_prefetch_depth_are_the_same_to_the_bit() {
    for num_ranks in [2, 3] {
        let first = train(num_ranks, Mode::Z2, 0, batch);
        assert!(first.0[0][STEPS - 1] < first.0[0][0], "it learns");
        for (mode, prefetch) in [(Mode::Z2, 1), (Mode::Z3, 0), (Mode::Z3, 1), (Mode::Z3, 9)] {
            let other = train(num_ranks, mode, prefetch, batch);
            assert_same_run(&first, &other, &format!("{mode} prefetch {prefetch}"));
        }
    }
}

#[test]
fn one_seed_gives_one_result() {
    assert_same_run(
        &train(4, Mode::Z3, 1, batch),
        &train(4, Mode::Z3, 1, batch),
        "the same run again",
    );
}

/// Averaging N gradients and taking the gradient of one N-fold batch round differently, by about
/// 1e-7 of the gradient. Newton-Schulz amplifies what rounding does to small singular values (by up
/// to a thousand in the Gram form, so this takes the direct one), and each step passes the difference
/// on. One step moves an element by up to 0.02: this is a two-hundredth of a single wrong step.
const CONCATENATED_TOLERANCE: f32 = 1e-4;

/// The same for losses, which are of order 1 and smooth out differences of single elements.
const LOSS_TOLERANCE: f32 = 1e-4;

/// Keeps AdamW from turning the rounding of an element near zero into a whole step.
const LARGE_EPS: f64 = 1e-3;

#[test]
fn ranks_match_one_process_on_the_concatenated_batch() {
    for num_ranks in [2, 3, 4] {
        let adamw = AdamW { eps: LARGE_EPS, weight_decay: 0.1, ..AdamW::default() };
        let config = MuonConfig::new().with_adamw(adamw).with_form(Form::Direct);
        let (losses, ranks) = train_with(&config, num_ranks, (Mode::Z2, 1), batch);
        let whole = |step: usize, _: usize| {
            Tensor::cat((0..num_ranks).map(|rank| batch(step, rank)).collect(), 0)
        };
        let (whole_losses, one) = train_with(&config, 1, (Mode::Z2, 1), whole);
        for (step, whole) in whole_losses[0].iter().enumerate() {
            let mean = losses.iter().map(|losses| losses[step]).sum::<f32>() / num_ranks as f32;
            assert!((mean - whole).abs() < LOSS_TOLERANCE, "{num_ranks} step {step}");
        }
        for (name, weight) in &ranks {
            for (ours, theirs) in weight.iter().zip(&one[name]) {
                let difference = (ours - theirs).abs();
                assert!(difference < CONCATENATED_TOLERANCE, "{num_ranks} {name}: {difference:e}");
            }
        }
    }
}

#[test]
fn every_rank_steps_replicated_parameters_to_the_same_bits() {
    let net = seeded(1, |device| Net::new(2, device));
    let ranks = on_ranks(3, |world| {
        let (mut net, dedicated) = dedicate(&world, &net, |d| d)?;
        let mut muon = MuonConfig::new().init(&dedicated)?;
        for step in 0..3 {
            let loss = loss(net.forward(batch(step, world.rank().0)));
            let gradients = GradientsParams::from_grads(loss.backward(), &net);
            net = muon.step(0.02, net, gradients)?;
        }
        let replicated = dedicated.routes().entries.iter().filter(|e| e.owner.is_none());
        let names: Vec<String> = replicated.map(|entry| entry.name.clone()).collect();
        Ok((values(&net), names))
    })
    .unwrap();
    let (first, names) = &ranks[0];
    for (other, _) in &ranks[1..] {
        names.iter().for_each(|name| assert_same_bits(&first[name], &other[name], name));
    }
}

/// One square linear layer as the only matrix, bias beside it.
#[derive(Module, Debug)]
struct Square {
    layers: Vec<Hooked<Linear>>,
}

const SIDE: usize = 6;

fn square() -> Square {
    seeded(7, |device| Square {
        layers: vec![Hooked::new(LinearConfig::new(SIDE, SIDE).init(device))],
    })
}

fn square_loss(model: &Square, step: usize) -> Tensor<1> {
    let data: Vec<f32> = (0..4 * SIDE).map(|i| ((i * 31 + step * 17) % 23) as f32 / 23.0).collect();
    let x = Tensor::<2>::from_data(TensorData::new(data, [4, SIDE]), &device());
    let y = model.layers[0].run(x, |linear, x| linear.forward(x));
    (y - 0.3).square().mean()
}

/// Trains on a world of one.
fn alone(config: &MuonConfig, rates: Rates) -> Result<Named> {
    let mut out = on_ranks(1, |world: World| {
        let (mut model, dedicated) = dedicate(&world, &square(), |d| d)?;
        let mut muon = config.init(&dedicated)?;
        for step in 0..STEPS {
            let backward = square_loss(&model, step).backward();
            let gradients = GradientsParams::from_grads(backward, &model);
            model = muon.step(rates, model, gradients)?;
        }
        Ok(values(&model))
    })?;
    Ok(out.remove(0))
}

/// Trains plainly with Burn's optimizers: `matrix` for the weight, `rest` for the bias.
fn plainly(mut matrix: ModuleOptimizer, mut rest: ModuleOptimizer, rates: Rates) -> Named {
    let mut model = square();
    for step in 0..STEPS {
        let mut backward = square_loss(&model, step).backward();
        let layer = &model.layers[0];
        let ids =
            [layer.weight.id, layer.bias.as_ref().map(|bias: &Param<Tensor<1>>| bias.id).unwrap()];
        let of =
            |id, grads: &mut _, model: &Square| GradientsParams::from_params(grads, model, &[id]);
        let weight = of(ids[0], &mut backward, &model);
        let bias = of(ids[1], &mut backward, &model);
        model = matrix.step(rates.muon, model, weight);
        model = rest.step(rates.adamw, model, bias);
    }
    values(&model)
}

/// Two f32 implementations of one formula, ten steps on values of order 1.
const SAME_FORMULA: f32 = 2e-5;

fn assert_close(ours: &Named, theirs: &Named, tolerance: f32) {
    for (name, weight) in ours {
        for (a, b) in weight.iter().zip(&theirs[name]) {
            assert!((a - b).abs() < tolerance, "{name}: {a} is not {b}");
        }
    }
}

#[test]
fn jordan_muon_and_adamw_equal_burns_own_on_a_square_matrix() {
    // On a square matrix Burn's adjustment, computed from the storage order, is 1 as it should be.
    let rates = Rates { muon: 0.02, adamw: 0.005 };
    let config = MuonConfig::new()
        .with_coefficients(Coefficients::Jordan)
        .with_scale(UpdateScale::Original)
        .with_weight_decay(0.1)
        .with_adamw(AdamW { beta_1: 0.9, beta_2: 0.999, eps: 1e-8, weight_decay: 0.01, lr: 0.0 });
    let ours = alone(&config, rates).unwrap();
    let adamw = AdamWConfig::new().with_beta_2(0.999).with_epsilon(1e-8).with_weight_decay(0.01);
    let muon = BurnMuonConfig::new()
        .with_weight_decay(Some(burn::optim::decay::WeightDecayConfig::new(0.1)));
    assert_close(&ours, &plainly(muon.init(), adamw.init(), rates), SAME_FORMULA);
}

#[test]
fn the_number_of_steps_and_the_scale_are_honoured() {
    let rates = Rates { muon: 0.02, adamw: 0.0 };
    let weight = |config: MuonConfig| alone(&config, rates).unwrap()["layers.0.weight"].clone();
    let base = MuonConfig::new().with_weight_decay(0.0);
    let five = weight(base.clone());
    for ns_steps in 1..5 {
        assert_ne!(weight(base.clone().with_ns_steps(ns_steps)), five, "{ns_steps}");
    }
    assert_eq!(weight(base.clone().with_eps(1e-3)), five, "eps is accepted for parity only");
    // On a 6x6 layer MatchRmsAdamW is 0.2·√6 and the others are 1.
    let none = weight(base.clone().with_scale(UpdateScale::None));
    assert_eq!(weight(base.clone().with_scale(UpdateScale::Spectral)), none);
    assert_ne!(none, five);
}

#[test]
fn the_report_tells_how_newton_schulz_ran_rather_than_what_was_asked() {
    let net = seeded(1, |device| Net::new(1, device));
    for (arithmetic, on_host) in [(Arithmetic::Host, true), (Arithmetic::Tensors, false)] {
        on_ranks(1, |world| {
            let (net, dedicated) = dedicate(&world, &net, |d| d)?;
            let config = MuonConfig::new().with_precision(Precision::Bf16Products);
            let mut muon = config.with_arithmetic(arithmetic).init(&dedicated)?;
            let backward = loss(net.forward(batch(0, 0))).backward();
            let gradients = GradientsParams::from_grads(backward, &net);
            muon.step(0.02, net, gradients)?;
            let methods: Vec<_> =
                muon.report().updates.iter().map(|update| update.method).collect();
            assert!(!methods.is_empty());
            for method in methods {
                assert_ne!(method.form, Form::Auto);
                assert_eq!(method.kernel.is_some(), on_host);
                // Hosts have no bf16 kernel for matrices as small as these.
                assert!(!on_host || method.precision == Precision::F32, "{method:?}");
            }
            Ok(())
        })
        .unwrap();
    }
}
