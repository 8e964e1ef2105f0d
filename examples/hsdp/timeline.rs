//! Draws a recording: what each rank computes, borrows, reduces, updates and publishes, on one clock.

use dmuon::runtime::Event;
use dmuon::{EventKind, OpKind};
use epaint_default_fonts::UBUNTU_LIGHT;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{FontStyle, register_font};
use std::fs;
use std::path::Path;

const FONT: &str = "sans-serif";
const INK: RGBColor = RGBColor(0x26, 0x2b, 0x33);
const GREY: RGBColor = RGBColor(0x6b, 0x72, 0x80);
const FAINT: RGBColor = RGBColor(0xe6, 0xe8, 0xec);
const LEFT: i32 = 250;
const RIGHT: i32 = 1560;
const TOP: i32 = 110;
const LANE: i32 = 26;
const GAP: i32 = 34;

/// A row of the picture under each rank.
const LANES: [(&str, RGBColor); 6] = [
    ("forward", RGBColor(0x1d, 0x5f, 0xc4)),
    ("backward", RGBColor(0x6d, 0x4a, 0xb8)),
    ("shard broadcasts", RGBColor(0x4f, 0xa3, 0xd9)),
    ("reduces, both axes", RGBColor(0x2f, 0x8f, 0x5b)),
    ("owner step", RGBColor(0xb8, 0x3a, 0x4b)),
    ("publishes", RGBColor(0xd9, 0x69, 0x15)),
];

/// Something that lasted, in seconds.
struct Span {
    lane: usize,
    from: f64,
    to: f64,
}

/// Writes a PNG of all ranks' events to `path`.
pub(crate) fn draw(path: &Path, ranks: &[Vec<Event>]) -> Result<(), Box<dyn std::error::Error>> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    register_font(FONT, FontStyle::Normal, UBUNTU_LIGHT).map_err(|_| "the font is not valid")?;
    let spans: Vec<Vec<Span>> = ranks.iter().map(|events| spans(events)).collect();
    let all = || spans.iter().flatten();
    let start = all().map(|span| span.from).fold(f64::INFINITY, f64::min);
    let end = all().map(|span| span.to).fold(start, f64::max);
    let rank_height = LANE * LANES.len() as i32 + GAP;
    let height = TOP + rank_height * ranks.len() as i32 + 70;
    let root = BitMapBackend::new(path, (1600, height as u32)).into_drawing_area();
    root.fill(&WHITE)?;
    let text = |size: u32, color: &RGBColor| (FONT, size).into_font().color(color);
    root.draw(&Text::new("One step and the next forward, 2 x 2 ranks", (40, 24), text(34, &INK)))?;
    let detail =
        "a slow link between replicas; publishes are awaited where the next forward needs them";
    root.draw(&Text::new(detail, (40, 66), text(22, &GREY)))?;
    let x = |at: f64| LEFT + ((at - start) / (end - start) * f64::from(RIGHT - LEFT)) as i32;
    for (rank, spans) in spans.iter().enumerate() {
        let top = TOP + rank_height * rank as i32;
        let middle = top + LANE * LANES.len() as i32 / 2;
        let centred = text(24, &INK).pos(Pos::new(HPos::Left, VPos::Center));
        root.draw(&Text::new(format!("rank {rank}"), (20, middle), centred))?;
        for (lane, (name, _)) in LANES.iter().enumerate() {
            let y = top + LANE * lane as i32;
            let right = text(17, &GREY).pos(Pos::new(HPos::Right, VPos::Center));
            root.draw(&Text::new(*name, (LEFT - 12, y + LANE / 2), right))?;
            root.draw(&Rectangle::new([(LEFT, y + 2), (RIGHT, y + LANE - 2)], FAINT.filled()))?;
        }
        for Span { lane, from, to } in spans {
            let y = top + LANE * *lane as i32;
            let bar = [(x(*from), y + 4), (x(*to).max(x(*from) + 2), y + LANE - 4)];
            root.draw(&Rectangle::new(bar, LANES[*lane].1.filled()))?;
        }
    }
    for tick in 0..=5 {
        let at = start + (end - start) * f64::from(tick) / 5.0;
        let label = format!("{:.0} ms", (at - start) * 1e3);
        let below = text(20, &GREY).pos(Pos::new(HPos::Center, VPos::Top));
        root.draw(&Text::new(label, (x(at), height - 62), below))?;
    }
    root.present()?;
    Ok(())
}

fn spans(events: &[Event]) -> Vec<Span> {
    let mut spans = Vec::new();
    for (index, event) in events.iter().enumerate() {
        let later = &events[index + 1..];
        let until = |end: &dyn Fn(&Event) -> bool| later.iter().find(|event| end(event));
        let same = |kind: EventKind| {
            until(&move |other: &Event| {
                other.kind == kind
                    && other.label == event.label
                    && other.group == event.group
                    && other.sequence == event.sequence
            })
        };
        let group = event.group.as_deref().unwrap_or_default();
        let (lane, end) = match event.kind {
            EventKind::ForwardEnter => (0, same(EventKind::ForwardLeave)),
            EventKind::BackwardEnter => (1, same(EventKind::BackwardLeave)),
            EventKind::Issued(op) => {
                let lane = match (op, group) {
                    (OpKind::Broadcast, "shard/weights") => 2,
                    (OpKind::Reduce, _) => 3,
                    (OpKind::Broadcast, "replicate/weights") => 5,
                    _ => continue,
                };
                (lane, same(EventKind::Completed(op)))
            }
            EventKind::OwnerStep => (4, until(&|other: &Event| other.kind == EventKind::Publish)),
            _ => continue,
        };
        if let Some(end) = end {
            spans.push(Span { lane, from: event.at.as_secs_f64(), to: end.at.as_secs_f64() });
        }
    }
    spans
}
