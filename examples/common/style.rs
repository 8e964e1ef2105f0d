//! How figures look: colors and a font of their own, so that none need be installed.

use epaint_default_fonts::UBUNTU_LIGHT;
use plotters::prelude::*;
use plotters::style::{FontStyle, register_font};

/// The name under which [`register`] makes the font known.
pub(crate) const FONT: &str = "sans-serif";

pub(crate) const INK: RGBColor = RGBColor(0x26, 0x2b, 0x33);
pub(crate) const FAINT: RGBColor = RGBColor(0xe6, 0xe8, 0xec);
pub(crate) const GREY: RGBColor = RGBColor(0x6b, 0x72, 0x80);
pub(crate) const BLUE: RGBColor = RGBColor(0x1d, 0x5f, 0xc4);
pub(crate) const ORANGE: RGBColor = RGBColor(0xd9, 0x69, 0x15);

/// What drawing returns.
pub(crate) type DrawResult = Result<(), Box<dyn std::error::Error>>;

/// Makes the font known to plotters; as often as one likes.
pub(crate) fn register() -> DrawResult {
    register_font(FONT, FontStyle::Normal, UBUNTU_LIGHT).map_err(|_| "the font is not valid".into())
}
