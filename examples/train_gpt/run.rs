//! The whole story: text, training, judgement, records, figure and a few lines by the model.

use std::path::PathBuf;

use burn::module::Module;
use burn::tensor::Device;

use crate::cli::{Args, Optimizer};
use crate::common::data::{Batch, Corpus};
use crate::common::model::Gpt;
use crate::common::records;
use crate::device::DeviceName;
use crate::error::Error;
use crate::figure::{Curve, Figure};
use crate::report::Summary;
use crate::sample::Sampling;
use crate::traffic::megabytes;
use crate::train::{self, Trained};

/// Held-out sequences that a model is judged by.
const VALIDATION_SEQUENCES: usize = 64;

/// Held-out sequences in one forward.
const VALIDATION_BATCH: usize = 16;

/// The training loss is summed up as the mean of so many last steps.
const LAST_STEPS: usize = 10;

const PROMPT: &str = "/// Returns the number of ";
const SAMPLE_BYTES: usize = 300;
const TEMPERATURE: f64 = 0.7;

/// Runs the example as asked.
pub(crate) fn run(args: &Args) -> Result<(), Error> {
    let device = args.device.open()?;
    let corpus = Corpus::load(args.data.as_deref(), args.seq_len)?;
    let baseline = corpus.unigram_baseline();
    if dmuon::is_first_process()? {
        announce(args, &device, &corpus, baseline);
    }
    let mut curves = Vec::new();
    for optimizer in args.optimizers() {
        let folder = folder(args, optimizer);
        let Some(trained) = train::train(args, optimizer, &device, &corpus, &folder)? else {
            // Another process has rank 0, which tells the rest of the story.
            continue;
        };
        let model = trained.model.valid();
        let val_loss = validate(&model, args, &corpus, &device);
        let summary = summarize(args, optimizer, &corpus, &trained, [val_loss, baseline]);
        summary.write(&folder)?;
        tell(&summary);
        if !args.no_sample {
            println!("\nThe model, after \"{PROMPT}\":\n\n{}\n", sample(&model, args, &device));
        }
        let losses = trained.steps.iter().map(|step| step.loss).collect();
        curves.push(Curve { optimizer, losses, val_loss });
    }
    if curves.is_empty() {
        return Ok(());
    }
    let path = args.out.join("loss.png");
    Figure { curves: &curves, baseline, args }.draw(&path)?;
    println!("figure and records: {}", args.out.display());
    Ok(())
}

/// Where the records of one optimizer go.
fn folder(args: &Args, optimizer: Optimizer) -> PathBuf {
    match args.compare {
        true => args.out.join(optimizer.title().to_lowercase()),
        false => args.out.clone(),
    }
}

fn announce(args: &Args, device: &Device, corpus: &Corpus, baseline: f64) {
    let (train, valid) = (corpus.train.len(), corpus.valid.len());
    let model = args.model();
    if args.device != DeviceName::Flex {
        println!("device    {device:?}");
    }
    println!("text      {}", corpus.source);
    println!("          {train} bytes to learn, {valid} held out");
    println!("baseline  {baseline:.3} nats a byte for a model that reads no context (unigram)");
    println!(
        "model     {} layers of width {}, {} heads, {} bytes of context",
        model.layers, model.width, model.heads, model.seq_len
    );
    println!(
        "run       {} ranks with {} x {} sequences a step each, {} steps, seed {}",
        args.num_ranks(),
        args.accumulate,
        args.batch,
        args.steps,
        args.seed
    );
}

/// Mean loss over held-out sequences, nats a byte.
fn validate(model: &Gpt, args: &Args, corpus: &Corpus, device: &Device) -> f64 {
    let sequences = corpus.validation(VALIDATION_SEQUENCES, args.seq_len);
    let total: f64 = sequences
        .chunks(VALIDATION_BATCH)
        .map(|chunk| {
            let batch = Batch::new(chunk, device);
            let mean: f64 = model.loss(batch.inputs, batch.targets).into_scalar();
            mean * chunk.len() as f64
        })
        .sum();
    total / sequences.len() as f64
}

fn summarize(
    args: &Args,
    optimizer: Optimizer,
    corpus: &Corpus,
    trained: &Trained,
    [val_loss, unigram_baseline]: [f64; 2],
) -> Summary {
    let steps = &trained.steps;
    let last = &steps[steps.len().saturating_sub(LAST_STEPS)..];
    let elapsed_s = steps.last().map_or(0.0, |step| step.elapsed_s);
    let tokens = args.tokens_per_step() * args.steps;
    Summary {
        optimizer,
        mode: args.mode,
        rest: args.rest,
        compute: args.compute,
        mesh: trained.mesh,
        routes: trained.routes.clone(),
        seed: args.seed,
        steps: args.steps,
        skipped_steps: steps.iter().filter(|step| step.skipped).count(),
        accumulate: args.accumulate,
        parameters: Module::num_params(&trained.model),
        final_loss: last.iter().map(|step| step.loss).sum::<f64>() / last.len() as f64,
        val_loss,
        unigram_baseline,
        data: corpus.source.clone(),
        data_sha256: corpus.sha256.clone(),
        weights_sha256: records::weights_sha256(&trained.model),
        ns_calls: steps.iter().map(|step| step.ns_calls).sum(),
        bytes_moved: steps.iter().map(|step| step.bytes_moved).sum(),
        bytes_predicted: trained.bytes_predicted,
        peak_weight_bytes: trained.peak_weight_bytes.clone(),
        elapsed_s,
        tokens_per_s: tokens as f64 / elapsed_s,
    }
}

fn tell(summary: &Summary) {
    let Summary { final_loss, val_loss, unigram_baseline, elapsed_s, .. } = summary;
    println!(
        "{:9} loss {final_loss:.3}, on held-out text {val_loss:.3} \
         (unigram {unigram_baseline:.3}); {elapsed_s:.0} s, {:.0} tokens/s",
        summary.optimizer.title(),
        summary.tokens_per_s
    );
    let [moved, predicted] = [summary.bytes_moved, summary.bytes_predicted];
    match moved == predicted {
        true => println!("moved     {} MB, to the byte as predicted", megabytes(moved)),
        false => println!("moved     {moved} bytes where {predicted} were predicted"),
    }
    if summary.skipped_steps > 0 {
        let Summary { skipped_steps, steps, .. } = summary;
        println!("skipped   {skipped_steps} of {steps} steps: their gradients overflowed");
    }
    let peaks: Vec<_> = summary.peak_weight_bytes.iter().copied().map(megabytes).collect();
    println!("memory    at most {} MB of weights on ranks 0, 1, ..", peaks.join(", "));
    println!("weights   sha256 {}", summary.weights_sha256);
}

fn sample(model: &Gpt, args: &Args, device: &Device) -> String {
    let sampling = Sampling {
        prompt: PROMPT,
        bytes: SAMPLE_BYTES,
        temperature: TEMPERATURE,
        seed: args.seed,
        seq_len: args.seq_len,
    };
    sampling.write(model, device)
}
