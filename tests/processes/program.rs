//! The program that the tests start: trains a small model for a few steps, with one fault on one
//! rank if it is told so.

use crate::run::{FOLDER, SCENARIO};
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::GradientsParams;
use burn::tensor::activation::relu;
use burn::tensor::{Device, Tensor, TensorData};
use dmuon::prelude::*;
use dmuon::runtime::{Call, Element, Op};
use dmuon::{EngineOptions, Error, EventKind, Result};
use sha2::{Digest, Sha256};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio, exit};
use std::time::Duration;
use std::{env, fs, thread};

pub(crate) const NUM_RANKS: usize = 4;

/// Who does wrong: neither the host nor anybody's first neighbour.
pub(crate) const CULPRIT: usize = 2;

/// Of every wait.
pub(crate) const DEADLINE: Duration = Duration::from_secs(4);

const STEPS: usize = 6;
const FAULTY_STEP: usize = 3;
const WIDTH: usize = 192;
const LAYERS: usize = 4;

#[derive(Module, Debug)]
struct Net {
    layers: Vec<Hooked<Linear>>,
    head: Linear,
}

impl Net {
    fn new(widths: &[usize], device: &Device) -> Self {
        device.seed(5);
        let layer = |pair: &[usize]| Hooked::new(LinearConfig::new(pair[0], pair[1]).init(device));
        let layers = widths.windows(2).map(layer).collect();
        let net = Self { layers, head: LinearConfig::new(WIDTH, 3).init(device) };
        dmuon::initialize(&net);
        net
    }

    fn forward(&self, x: Tensor<2>, skipped: Option<usize>) -> Tensor<2> {
        let layers = self.layers.iter().enumerate().filter(|(index, _)| Some(*index) != skipped);
        let x = layers
            .fold(x, |x, (_, layer)| layer.run(x, |linear, x| relu(linear.forward(x.clone())) + x));
        self.head.forward(x)
    }
}

#[test]
#[ignore = "the program that the other tests start"]
fn rank_of_a_program() {
    let (Ok(scenario), Some(folder)) = (env::var(SCENARIO), env::var_os(FOLDER)) else {
        panic!("run by the other tests, under mpiexec");
    };
    let (scenario, folder) = (scenario.as_str(), PathBuf::from(folder));
    if scenario == "never joins" && env::var("PMI_RANK").is_ok_and(|rank| rank == "2") {
        mark(&folder);
        exit(3);
    }
    let options = EngineOptions::default().with_deadline(DEADLINE);
    // Drawn once, before ranks that are threads share the generator.
    let net = Net::new(&[WIDTH; LAYERS + 1], &Device::flex().autodiff());
    let rank_main = |world| train(world, &net, scenario, &folder);
    let ranks = dmuon::launch_with(NUM_RANKS, &options, rank_main);
    match ranks {
        Ok(hashes) => {
            if let Some(hash) = hashes.into_iter().flatten().next() {
                println!("weights {hash}");
                fs::write(folder.join("output"), hash).unwrap();
            }
            exit(0)
        }
        Err(error) => {
            eprintln!("error: {error}");
            exit(1)
        }
    }
}

/// The hash of all weights, on rank 0.
fn train(world: World, net: &Net, scenario: &str, folder: &Path) -> Result<Option<String>> {
    let device = Device::flex().autodiff();
    let is_culprit = world.rank().0 == CULPRIT;
    let wrong = |what: &str| is_culprit && scenario == what;
    let mesh = if scenario.ends_with("flat") { (1, 4) } else { (2, 2) };
    let mesh = Mesh::hsdp(&world, mesh.0, mesh.1)?;
    let mut net = net.clone();
    if wrong("other model") {
        mark(folder);
        net = Net::new(&[WIDTH, WIDTH, WIDTH, WIDTH, WIDTH / 2], &device);
    }
    let (mut net, dedicated) = Dedicate::new(&mesh).mode(Mode::Z3).apply(net.fork(&device))?;
    let mut muon = MuonConfig::new().init(&dedicated)?;
    let killer = if is_culprit { Killer::of(scenario) } else { None };
    for step in 0..STEPS {
        let faulty = step == FAULTY_STEP;
        if let Some(killer) = killer.as_ref().filter(|_| faulty) {
            killer.watch(&world, folder);
        }
        if faulty && wrong("returns early") {
            mark(folder);
            return Ok(None);
        }
        if faulty {
            misbehave(&world, scenario, folder)?;
        }
        let skipped = (faulty && wrong("skips a boundary")).then_some(1);
        let loss = net.forward(batch(step, world.rank().0, &device), skipped).square().mean();
        let gradients = GradientsParams::from_grads(loss.backward(), &net);
        net = muon.step(0.01, net, gradients)?;
    }
    let full = dedicated.full_model(&net, Rank(0))?;
    Ok(full.map(|net| hash(&net)))
}

/// Faults that need nothing of the training.
fn misbehave(world: &World, scenario: &str, folder: &Path) -> Result<()> {
    let is_culprit = world.rank().0 == CULPRIT;
    let wrong = |what: &str| is_culprit && scenario.starts_with(what);
    if wrong("panics") {
        mark(folder);
        panic!("out of luck");
    }
    if wrong("fails") {
        mark(folder);
        return Err(Error::from(dmuon::runtime::Error::message("the disk is full")));
    }
    if wrong("sleeps") {
        mark(folder);
        thread::sleep(DEADLINE + Duration::from_secs(3));
    }
    if scenario == "skips a call" {
        if is_culprit {
            mark(folder);
        } else {
            sum(world, "the call that rank 2 skips", Element::F32, 8)?;
        }
        sum(world, "the next call", Element::F32, 8)?;
    }
    if scenario == "other dtype" {
        if is_culprit {
            mark(folder);
            sum(world, "norms", Element::F64, 8)?;
        } else {
            sum(world, "norms", Element::F32, 8)?;
        }
    }
    if scenario == "other order" {
        let mut labels = ["first", "second"];
        if is_culprit {
            mark(folder);
            labels.reverse();
        }
        labels.into_iter().try_for_each(|label| sum(world, label, Element::F32, 8))?;
    }
    Ok(())
}

fn sum(world: &World, label: &str, element: Element, num_elems: usize) -> Result<()> {
    let own = dmuon::runtime::Buffer::zeroed(num_elems * element.num_bytes()).freeze();
    let call = Call::new(Op::AllReduce, label, element, num_elems);
    world.group().start(call, Some(own))?.wait(world.deadline())?;
    Ok(())
}

/// Notes that the fault happens now.
fn mark(folder: &Path) {
    fs::write(folder.join("fault"), "now").unwrap();
}

fn batch(step: usize, rank: usize, device: &Device) -> Tensor<2> {
    let elem = |i: usize| ((i * 7919 + rank * 104_729 + step * 1_299_709) % 2003) as f32 / 2003.0;
    let data: Vec<f32> = (0..32 * WIDTH).map(elem).collect();
    Tensor::from_data(TensorData::new(data, [32, WIDTH]), device)
}

fn hash(net: &Net) -> String {
    let mut hash = Sha256::new();
    let linears = net.layers.iter().map(|layer| &**layer).chain([&net.head]);
    for linear in linears {
        for value in linear.weight.val().into_data().iter::<f32>() {
            hash.update(value.to_le_bytes());
        }
    }
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Kills or stops this process as soon as its recorder has seen a phase: a child waits with the
/// signal in its hand.
struct Killer {
    phase: EventKind,
    child: std::sync::Mutex<Option<Child>>,
}

impl Killer {
    fn of(scenario: &str) -> Option<Self> {
        let (how, phase) = scenario.split_once(" in ")?;
        let phase = match phase {
            "forward" => EventKind::ForwardEnter,
            "backward" => EventKind::BackwardEnter,
            "step" => EventKind::OwnerStep,
            "publish" => EventKind::Publish,
            other => panic!("no phase is called {other}"),
        };
        let script = match how {
            "killed" => "read now && kill -9 $0",
            // It must end some day, or nobody would know that all others have.
            "stopped" => "read now && kill -STOP $0 && sleep 8 && kill -9 $0",
            other => panic!("nothing is called {other}"),
        };
        let mut child = Command::new("sh");
        child.args(["-c", script, &std::process::id().to_string()]);
        let child = child.stdin(Stdio::piped()).spawn().unwrap();
        Some(Self { phase, child: std::sync::Mutex::new(Some(child)) })
    }

    fn watch(&self, world: &World, folder: &Path) {
        let (recorder, phase, folder) = (world.recorder().clone(), self.phase, folder.to_owned());
        let mut child = self.child.lock().unwrap().take().unwrap();
        let count = move || recorder.events().iter().filter(|event| event.kind == phase).count();
        let before = count();
        thread::spawn(move || {
            while count() == before {
                thread::sleep(Duration::from_micros(100));
            }
            mark(&folder);
            child.stdin.take().unwrap().write_all(b"now\n").unwrap();
            child.wait().unwrap();
        });
    }
}
