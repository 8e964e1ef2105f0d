//! The figures: what becomes of weights and outputs, what bf16 makes of them, and the loss.

use std::path::Path;

use plotters::prelude::*;

use crate::cli::Args;
use crate::common::error::Error;
use crate::common::style::{self, BLUE, DrawResult, GREY, INK, ORANGE};
use crate::plot::{Area, Line, Panel, Stroke, draw_key, text};
use crate::report::{Record, mean_rms};
use crate::run::Run;
use crate::theory;
use crate::train::{WARM_UP, lr_share};

const SIZE: (u32, u32) = (1600, 860);
const HEADER: i32 = 176;

/// Room above the highest line.
const HEADROOM: f64 = 1.08;

/// Draws all figures into `--out`.
pub(crate) fn draw_all(args: &Args, runs: &[Run], unigram: f64) -> Result<(), Error> {
    let story = Story { args, runs };
    story.rms().draw(args)?;
    story.bf16().draw(args)?;
    story.loss(unigram).draw(args)
}

/// A picture of two panels.
struct Figure<'a> {
    file: &'static str,
    title: &'static str,
    detail: String,
    /// What lines mean besides the color of each decay.
    strokes: Vec<(Stroke, &'static str)>,
    panels: [Panel; 2],
    runs: &'a [Run],
}

impl Figure<'_> {
    fn draw(&self, args: &Args) -> Result<(), Error> {
        let path = args.out.join(self.file);
        self.try_draw(&path)
            .map_err(|cause| Error::Figure { path: path.clone(), cause: cause.to_string() })
    }

    fn try_draw(&self, path: &Path) -> DrawResult {
        style::register()?;
        let root = BitMapBackend::new(path, SIZE).into_drawing_area();
        root.fill(&WHITE)?;
        let (header, body) = root.split_vertically(HEADER);
        self.draw_header(&header)?;
        let (left, right) = body.split_horizontally(SIZE.0 as i32 / 2);
        self.panels[0].draw(&left)?;
        self.panels[1].draw(&right)?;
        root.present()?;
        Ok(())
    }

    fn draw_header(&self, area: &Area) -> DrawResult {
        area.draw(&Text::new(self.title, (34, 24), text(38, &INK)))?;
        area.draw(&Text::new(self.detail.as_str(), (34, 74), text(24, &GREY)))?;
        let (mut x, y) = (34, 136);
        for (index, run) in self.runs.iter().enumerate() {
            let label = match run.decay > 0.0 {
                true => format!("decay {}", run.decay),
                false => "no decay".to_owned(),
            };
            x = draw_key(area, (x, y), (color(self.runs, index), Stroke::Strong), &label)?;
        }
        for &(stroke, label) in &self.strokes {
            x = draw_key(area, (x, y), (GREY, stroke), label)?;
        }
        Ok(())
    }
}

/// Everything there is to draw.
#[derive(Clone, Copy)]
struct Story<'a> {
    args: &'a Args,
    runs: &'a [Run],
}

impl<'a> Story<'a> {
    fn rms(self) -> Figure<'a> {
        let weights = |record: &Record| mean_rms(&record.sizes.weight_rms);
        let outputs = |record: &Record| mean_rms(&record.sizes.output_rms);
        let each_output = |record: &Record| record.sizes.output_rms.clone();
        let mut left = self.panel("weights of the blocks", "RMS", weights, 2);
        left.lines.extend(self.bounds());
        let mut right = self.panel("what leaves the blocks", "RMS on held-out text", outputs, 0);
        right.top = self.top(|record| each_output(record).into_iter().fold(0.0, f64::max));
        right.lines.splice(0..0, self.layers(each_output));
        Figure {
            file: "rms.png",
            title: "How large weights and outputs become, by weight decay",
            detail: self.detail(),
            strokes: vec![
                (Stroke::Dashed, "0.2 / decay: the ceiling"),
                (Stroke::Dotted, "predicted for noise"),
            ],
            panels: [left, right],
            runs: self.runs,
        }
    }

    fn bf16(self) -> Figure<'a> {
        let error = |record: &Record| mean_rms(&record.sizes.bf16.output_error);
        // While rates rise updates are small for another reason.
        let is_warm = |record: &Record| record.step >= WARM_UP;
        let lost =
            |record: &Record| if is_warm(record) { record.lost_updates * 100.0 } else { f64::NAN };
        let decimals = if self.top(error) < 2.0 { 2 } else { 1 };
        let left = "error of the blocks' outputs in bf16";
        let right = "updates that weights in bf16 would lose";
        Figure {
            file: "bf16.png",
            title: "The larger the numbers, the coarser bf16",
            detail: self.detail(),
            strokes: Vec::new(),
            panels: [
                self.panel(left, "RMS of the difference to f32", error, decimals),
                self.panel(right, "% of the weights of the blocks", lost, 0),
            ],
            runs: self.runs,
        }
    }

    fn loss(self, unigram: f64) -> Figure<'a> {
        let train = |record: &Record| record.train_loss;
        let held_out = |record: &Record| record.sizes.held_out_loss;
        let mut panels = [
            self.panel("the slice, read over and over", "loss, nats per byte", train, 1),
            self.panel("text held out", "loss, nats per byte", held_out, 1),
        ];
        let line = vec![(0.0, unigram), (self.args.steps as f64, unigram)];
        for panel in &mut panels {
            let line = line.clone();
            panel.lines.insert(0, Line { points: line, color: GREY, stroke: Stroke::Dashed });
        }
        Figure {
            file: "loss.png",
            title: "Training goes on past the point of use",
            detail: self.detail(),
            strokes: vec![(Stroke::Dashed, "unigram baseline")],
            panels,
            runs: self.runs,
        }
    }

    fn detail(self) -> String {
        let Args { layers, width, slice, steps, muon_lr, .. } = self.args;
        format!(
            "byte-level GPT, {layers} layers of width {width}, Muon at {muon_lr}; \
             {slice} bytes of text read {:.0} times in {steps} steps",
            self.args.epochs(*steps)
        )
    }

    /// One strong line for each run; what is not finite is left out.
    fn panel(
        self,
        title: &str,
        y_label: &str,
        value: impl Fn(&Record) -> f64,
        decimals: usize,
    ) -> Panel {
        let line = |(index, run): (usize, &Run)| {
            let points = run.records.iter().map(|r| (r.step as f64, value(r)));
            let points = points.filter(|(_, value)| value.is_finite()).collect();
            Line { points, color: color(self.runs, index), stroke: Stroke::Strong }
        };
        Panel {
            title: title.into(),
            y_label: y_label.into(),
            lines: self.runs.iter().enumerate().map(line).collect(),
            steps: self.args.steps as f64,
            top: self.top(value),
            decimals,
        }
    }

    /// A faint line for each layer of each run.
    fn layers(self, values: impl Fn(&Record) -> Vec<f64>) -> Vec<Line> {
        let mut lines = Vec::new();
        for (index, run) in self.runs.iter().enumerate() {
            for layer in 0..self.args.layers {
                let points = run.records.iter().map(|r| (r.step as f64, values(r)[layer]));
                let (points, color) = (points.collect(), color(self.runs, index));
                lines.push(Line { points, color, stroke: Stroke::Faint });
            }
        }
        lines
    }

    /// The ceiling of each run, which rises where there is no decay, and what noise would make of it.
    fn bounds(self) -> Vec<Line> {
        let mut lines = Vec::new();
        for (index, run) in self.runs.iter().enumerate() {
            let color = color(self.runs, index);
            let Some(first) = run.records.first() else { continue };
            let start = mean_rms(&first.sizes.weight_rms);
            let rate = |step| self.args.muon_lr * lr_share(step);
            let aligned = |step| match run.decay > 0.0 {
                true => run.ceiling,
                false => start + theory::UPDATE_RMS * rate(step) * step as f64,
            };
            let ceiling = (0..=self.args.steps).map(aligned).collect();
            let rates = (1..=self.args.steps).map(rate);
            let noise = [start].into_iter().chain(theory::noise(rates, run.decay, start)).collect();
            let line = |values, stroke| Line { points: by_step(values), color, stroke };
            lines.extend([line(ceiling, Stroke::Dashed), line(noise, Stroke::Dotted)]);
        }
        lines
    }

    /// A little more than the largest value.
    fn top(self, value: impl Fn(&Record) -> f64) -> f64 {
        let records = self.runs.iter().flat_map(|run| &run.records);
        records.map(value).fold(0.0, f64::max) * HEADROOM
    }
}

/// Values of the steps from 0 on.
fn by_step(values: Vec<f64>) -> Vec<(f64, f64)> {
    values.into_iter().enumerate().map(|(step, value)| (step as f64, value)).collect()
}

/// Orange without decay; with it blues, the darker the stronger.
fn color(runs: &[Run], index: usize) -> RGBColor {
    const LIGHT: RGBColor = RGBColor(0x8a, 0xbc, 0xea);
    const DARK: RGBColor = RGBColor(0x10, 0x2f, 0x70);
    let decay = runs[index].decay;
    let decayed = || runs.iter().filter(|run| run.decay > 0.0);
    let weaker = decayed().filter(|run| run.decay < decay).count();
    match decayed().count() {
        _ if decay == 0.0 => ORANGE,
        1 => BLUE,
        count => {
            let share = weaker as f64 / (count - 1) as f64;
            let mix = |light: u8, dark: u8| {
                (f64::from(light) + (f64::from(dark) - f64::from(light)) * share) as u8
            };
            RGBColor(mix(LIGHT.0, DARK.0), mix(LIGHT.1, DARK.1), mix(LIGHT.2, DARK.2))
        }
    }
}
