//! How large an orthogonalized update is made, from the layer's fans; never from storage order.

/// Outputs and inputs of a layer, as the layer means them.
///
/// Storage differs: PyTorch keeps a linear weight as `[d_out, d_in]`, Burn as `[d_in, d_out]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fans {
    /// Outputs of the layer.
    pub fan_out: usize,
    /// Inputs of the layer, times the kernel's size.
    pub fan_in: usize,
}

impl Fans {
    /// Fans of a weight stored `[out, in, kernel..]`: a convolution `[o, i, kh, kw]` counts as
    /// `o × (i·kh·kw)`. `None` below two dimensions.
    pub fn out_first(shape: &[usize]) -> Option<Self> {
        match shape {
            [fan_out, rest @ ..] if !rest.is_empty() => {
                Some(Self { fan_out: *fan_out, fan_in: rest.iter().product() })
            }
            _ => None,
        }
    }

    /// Fans of a weight stored `[in, out]`, as Burn's `Linear` does. `None` for other ranks.
    pub fn in_first(shape: &[usize]) -> Option<Self> {
        match *shape {
            [fan_in, fan_out] => Some(Self { fan_out, fan_in }),
            _ => None,
        }
    }
}

/// The factor between an orthogonalized direction and the update, before the learning rate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum UpdateScale {
    /// `0.2·√max(fan_out, fan_in)`: an update RMS near AdamW's, so that its learning rate and
    /// decay carry over. Source: Moonlight, arXiv 2502.16982, equation 4.
    #[default]
    MatchRmsAdamW,
    /// `√max(1, fan_out / fan_in)`. Source: Keller Jordan's Muon.
    Original,
    /// `√(fan_out / fan_in)`: the spectral condition for feature learning.
    Spectral,
    /// 1.
    None,
}

impl UpdateScale {
    /// The factor for a layer. A fan of 0 counts as 1: such a weight has no elements to scale.
    ///
    /// ```
    /// use dmuon_core::update::UpdateScale;
    /// assert_eq!(UpdateScale::MatchRmsAdamW.factor(1024, 512), 6.4);
    /// assert_eq!(UpdateScale::Original.factor(512, 1024), 1.0);
    /// ```
    pub fn factor(self, fan_out: usize, fan_in: usize) -> f64 {
        let (fan_out, fan_in) = (fan_out.max(1) as f64, fan_in.max(1) as f64);
        match self {
            Self::MatchRmsAdamW => 0.2 * fan_out.max(fan_in).sqrt(),
            Self::Original => (fan_out / fan_in).max(1.0).sqrt(),
            Self::Spectral => (fan_out / fan_in).sqrt(),
            Self::None => 1.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A few roundings of `f64`.
    const ROUNDING: f64 = 1e-14;

    #[test]
    fn factors_match_the_stated_values() {
        use UpdateScale::*;
        let cases = [
            (1024, 512, [(Original, 2f64.sqrt()), (MatchRmsAdamW, 6.4), (Spectral, 2f64.sqrt())]),
            (512, 1024, [(Original, 1.0), (MatchRmsAdamW, 6.4), (Spectral, 0.5f64.sqrt())]),
        ];
        for (fan_out, fan_in, expected) in cases {
            for (scale, value) in expected {
                let factor = scale.factor(fan_out, fan_in);
                assert!(
                    (factor - value).abs() < ROUNDING,
                    "{scale:?} {fan_out}x{fan_in}: {factor}"
                );
            }
            assert_eq!(None.factor(fan_out, fan_in), 1.0);
        }
    }

    #[test]
    fn fans_follow_the_layer_and_not_the_storage() {
        let fans = Fans { fan_out: 1024, fan_in: 512 };
        assert_eq!(Fans::out_first(&[1024, 512]), Some(fans));
        assert_eq!(Fans::in_first(&[512, 1024]), Some(fans));
        assert_eq!(Fans::out_first(&[64, 3, 5, 7]), Some(Fans { fan_out: 64, fan_in: 105 }));
        assert_eq!(Fans::out_first(&[64]), None);
        assert_eq!(Fans::in_first(&[64, 3, 5]), None);
    }
}
