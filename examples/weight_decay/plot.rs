//! One panel of a figure: lines over the steps, in the house's style.

use plotters::coord::Shift;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::common::style::{DrawResult, FAINT, FONT, GREY, INK};

pub(crate) type Area<'a> = DrawingArea<BitMapBackend<'a>, Shift>;
type Chart<'a, 'b> =
    ChartContext<'a, BitMapBackend<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

/// How a line looks.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Stroke {
    Strong,
    /// One of several that a strong one sums up.
    Faint,
    /// A bound.
    Dashed,
    /// A prediction.
    Dotted,
}

/// Points from left to right.
#[derive(Debug, Clone)]
pub(crate) struct Line {
    pub(crate) points: Vec<(f64, f64)>,
    pub(crate) color: RGBColor,
    pub(crate) stroke: Stroke,
}

/// A chart with its title.
#[derive(Debug)]
pub(crate) struct Panel {
    pub(crate) title: String,
    pub(crate) y_label: String,
    pub(crate) lines: Vec<Line>,
    pub(crate) steps: f64,
    /// The largest value shown; bounds above it are not.
    pub(crate) top: f64,
    /// Of labels on the vertical axis.
    pub(crate) decimals: usize,
}

impl Panel {
    /// Draws it over all of `area`.
    pub(crate) fn draw(&self, area: &Area) -> DrawResult {
        area.draw(&Text::new(self.title.as_str(), (34, 6), text(28, &INK)))?;
        let mut chart = ChartBuilder::on(area)
            .margin_top(58)
            .margin_right(36)
            .margin_bottom(18)
            .margin_left(18)
            .x_label_area_size(70)
            .y_label_area_size(100)
            .build_cartesian_2d(0.0..self.steps, 0.0..self.top)?;
        self.draw_axes(&mut chart)?;
        for line in &self.lines {
            self.draw_line(&mut chart, line)?;
        }
        Ok(())
    }

    fn draw_axes(&self, chart: &mut Chart) -> DrawResult {
        chart
            .configure_mesh()
            .disable_x_mesh()
            .x_labels(7)
            .y_labels(7)
            .bold_line_style(FAINT.stroke_width(2))
            .light_line_style(TRANSPARENT)
            .axis_style(GREY.stroke_width(2))
            .label_style(text(23, &INK))
            .axis_desc_style(text(25, &INK))
            .x_desc("step")
            .y_desc(self.y_label.as_str())
            .x_label_formatter(&|step| format!("{step:.0}"))
            .y_label_formatter(&|value| format!("{value:.*}", self.decimals))
            .draw()?;
        Ok(())
    }

    fn draw_line(&self, chart: &mut Chart, line: &Line) -> DrawResult {
        let Line { points, color, stroke } = line.clone();
        match stroke {
            Stroke::Strong => {
                chart.draw_series(LineSeries::new(points, color.stroke_width(4)))?;
            }
            Stroke::Faint => {
                chart.draw_series(LineSeries::new(points, color.mix(0.3).stroke_width(2)))?;
            }
            Stroke::Dashed | Stroke::Dotted => {
                let [dash, gap] = if matches!(stroke, Stroke::Dashed) { [14, 9] } else { [3, 8] };
                let points: Vec<_> =
                    points.into_iter().filter(|&(_, value)| value <= self.top).collect();
                let style = color.stroke_width(3);
                chart.draw_series(DashedLineSeries::new(points, dash, gap, style))?;
            }
        }
        Ok(())
    }
}

/// A sample of a line and what it stands for, from `x` on; returns where the next may begin.
pub(crate) fn draw_key(
    area: &Area,
    (x, y): (i32, i32),
    (color, stroke): (RGBColor, Stroke),
    label: &str,
) -> Result<i32, Box<dyn std::error::Error>> {
    let dashes: Vec<(i32, i32)> = match stroke {
        Stroke::Strong | Stroke::Faint => vec![(0, 40)],
        Stroke::Dashed => vec![(0, 10), (15, 25), (30, 40)],
        Stroke::Dotted => (0..6).map(|i| (i * 8, i * 8 + 3)).collect(),
    };
    let width = if matches!(stroke, Stroke::Strong) { 5 } else { 3 };
    let shade = if matches!(stroke, Stroke::Faint) { 0.3 } else { 1.0 };
    for (from, to) in dashes {
        let style = color.mix(shade).stroke_width(width);
        area.draw(&PathElement::new([(x + from, y), (x + to, y)], style))?;
    }
    let style = text(25, &INK).pos(Pos::new(HPos::Left, VPos::Center));
    area.draw(&Text::new(label, (x + 52, y), style.clone()))?;
    let (label_width, _) = area.estimate_text_size(label, &style)?;
    Ok(x + 52 + label_width as i32 + 40)
}

/// The font in this size and color.
pub(crate) fn text<'a>(size: u32, color: &'a RGBColor) -> TextStyle<'a> {
    (FONT, size).into_font().color(color)
}
