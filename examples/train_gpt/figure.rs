//! Draws the loss of each run over its steps.

use std::ops::Range;
use std::path::Path;

use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::cli::{Args, Optimizer};
use crate::common::error::Error;
use crate::common::style::{self, BLUE, DrawResult, FAINT, FONT, GREY, INK, ORANGE};

const SIZE: (u32, u32) = (1600, 960);

/// The smoothed line looks this part of the run ahead and as far back.
const SMOOTHING: usize = 30;

/// One run.
#[derive(Debug)]
pub(crate) struct Curve {
    pub(crate) optimizer: Optimizer,
    /// Of each step, nats a byte.
    pub(crate) losses: Vec<f64>,
    /// On held-out text, at the end.
    pub(crate) val_loss: f64,
}

/// All runs in one picture.
#[derive(Debug)]
pub(crate) struct Figure<'a> {
    pub(crate) curves: &'a [Curve],
    /// The loss of guessing by frequency.
    pub(crate) baseline: f64,
    pub(crate) args: &'a Args,
}

type Chart<'a, 'b> =
    ChartContext<'a, BitMapBackend<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

impl Figure<'_> {
    /// Writes a PNG to `path`.
    pub(crate) fn draw(&self, path: &Path) -> Result<(), Error> {
        self.try_draw(path)
            .map_err(|cause| Error::Figure { path: path.into(), cause: cause.to_string() })
    }

    fn try_draw(&self, path: &Path) -> DrawResult {
        style::register()?;
        let root = BitMapBackend::new(path, SIZE).into_drawing_area();
        root.fill(&WHITE)?;
        let (title, plot) = root.split_vertically(120);
        self.draw_title(&title)?;
        let steps = self.args.steps as f64;
        let mut chart = ChartBuilder::on(&plot)
            .margin_right(48)
            .margin_bottom(28)
            .margin_left(28)
            .x_label_area_size(76)
            .y_label_area_size(92)
            .build_cartesian_2d(0.0..steps, self.range())?;
        self.draw_axes(&mut chart)?;
        self.draw_baseline(&mut chart)?;
        for curve in self.curves {
            draw_curve(&mut chart, curve)?;
        }
        draw_legend(&mut chart)?;
        root.present()?;
        Ok(())
    }

    /// From a round number below every loss to just above the highest.
    fn range(&self) -> Range<f64> {
        let losses = self.curves.iter().flat_map(|c| c.losses.iter().chain([&c.val_loss]));
        let (low, high) = losses.fold((self.baseline, self.baseline), |(low, high), &loss| {
            (low.min(loss), high.max(loss))
        });
        ((low * 2.0).floor() / 2.0).max(0.0)..high + 0.1
    }

    fn draw_title(&self, area: &DrawingArea<BitMapBackend, plotters::coord::Shift>) -> DrawResult {
        let Args { layers, width, seq_len, .. } = self.args;
        let ranks = self.args.num_ranks();
        let names: Vec<_> = self.curves.iter().map(|curve| curve.optimizer.title()).collect();
        let title = format!("{} on {ranks} ranks", names.join(" and "));
        let detail = format!(
            "byte-level GPT, {layers} layers of width {width}; {} × {seq_len} bytes a step",
            self.args.tokens_per_step() / seq_len
        );
        area.draw(&Text::new(title, (120, 32), (FONT, 40).into_font().color(&INK)))?;
        area.draw(&Text::new(detail, (120, 82), (FONT, 26).into_font().color(&GREY)))?;
        Ok(())
    }

    fn draw_axes(&self, chart: &mut Chart) -> DrawResult {
        chart
            .configure_mesh()
            .disable_x_mesh()
            .bold_line_style(FAINT.stroke_width(2))
            .light_line_style(TRANSPARENT)
            .axis_style(GREY.stroke_width(2))
            .label_style((FONT, 25).into_font().color(&INK))
            .axis_desc_style((FONT, 28).into_font().color(&INK))
            .x_desc("step")
            .y_desc("loss, nats per byte")
            .x_label_formatter(&|step| format!("{step:.0}"))
            .y_label_formatter(&|loss| format!("{loss:.1}"))
            .draw()?;
        Ok(())
    }

    fn draw_baseline(&self, chart: &mut Chart) -> DrawResult {
        let (steps, loss) = (self.args.steps as f64, self.baseline);
        let line = [(0.0, loss), (steps, loss)];
        chart.draw_series(DashedLineSeries::new(line, 12, 10, GREY.stroke_width(3)))?;
        let style = TextStyle::from((FONT, 25).into_font())
            .color(&GREY)
            .pos(Pos::new(HPos::Right, VPos::Bottom));
        let label = format!("unigram baseline {loss:.2}: no context read");
        let text = EmptyElement::at((steps, loss)) + Text::new(label, (-6, -8), style);
        chart.draw_series([text])?;
        Ok(())
    }
}

/// Each step as a faint line, the trend as a strong one, the held-out loss as a ring at its end.
fn draw_curve(chart: &mut Chart, curve: &Curve) -> DrawResult {
    let color = match curve.optimizer {
        Optimizer::Muon => BLUE,
        Optimizer::Adamw => ORANGE,
    };
    let points = |losses: &[f64]| -> Vec<(f64, f64)> {
        losses.iter().enumerate().map(|(i, &loss)| (i as f64 + 1.0, loss)).collect()
    };
    chart.draw_series(LineSeries::new(points(&curve.losses), color.mix(0.28).stroke_width(2)))?;
    let end = (curve.losses.len() as f64, curve.val_loss);
    let label = format!("{}: held-out loss {:.2}", curve.optimizer.title(), curve.val_loss);
    chart
        .draw_series(LineSeries::new(points(&smooth(&curve.losses)), color.stroke_width(4)))?
        .label(label)
        .legend(move |(x, y)| PathElement::new([(x, y), (x + 36, y)], color.stroke_width(5)));
    chart
        .draw_series([Circle::new(end, 10, WHITE.filled()), Circle::new(end, 7, color.filled())])?;
    Ok(())
}

fn draw_legend<'a, 'b: 'a>(chart: &mut Chart<'a, 'b>) -> DrawResult {
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .legend_area_size(48)
        .margin(24)
        .label_font((FONT, 28).into_font().color(&INK))
        .background_style(WHITE.mix(0.9))
        .draw()?;
    Ok(())
}

/// Mean over a window around each step, which does not lag behind; it is narrow at the steep start
/// and one-sided at the end.
fn smooth(losses: &[f64]) -> Vec<f64> {
    let reach = losses.len() / SMOOTHING;
    let mean = |i: usize| {
        let end = (i + reach.min(i) + 1).min(losses.len());
        let window = &losses[i - reach.min(i)..end];
        window.iter().sum::<f64>() / window.len() as f64
    };
    (0..losses.len()).map(mean).collect()
}
