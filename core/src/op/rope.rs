//! ROPE: rotary position embedding (Su et al., 2021) with YaRN scaling (Peng et al., 2023).

use super::*;

/// Which elements form a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeMode {
    /// Neighbours: (0, 1), (2, 3), ...
    Normal,
    /// Halves: (0, n/2), (1, n/2 + 1), ... as in GPT-NeoX.
    Neox,
}

/// Rotates pairs of the first `n_dims` elements of each row by `pos * freq_base^(-2 i / n_dims)`; the others stay.
/// Sources: x F32 `[d, n_head, n_tokens]` with dense rows, pos I32 `[n_tokens]`, freq_factors (optional) F32 of at least `n_dims / 2`
/// elements that divide the frequencies. Result: F32 of x's shape.
///
/// YaRN: with `ext_factor` not 0, frequencies are interpolated (`freq_scale`) below the ramp that `beta_slow`, `beta_fast` and
/// `n_ctx_orig` give and left alone above; the amplitude is `attn_factor * (1 + 0.1 ln(1 / freq_scale))`. Without it, the
/// angle is multiplied by `freq_scale` and the amplitude by `attn_factor`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rope {
    /// Pairing.
    pub mode: RopeMode,
    /// Elements that are rotated, even, at most d.
    pub n_dims: usize,
    /// Context length that the model was trained with (YaRN).
    pub n_ctx_orig: usize,
    /// Base of the frequencies, for instance 10000.
    pub freq_base: f32,
    /// Factor of the angle (1 / scaling factor).
    pub freq_scale: f32,
    /// YaRN mix, 0 for none.
    pub ext_factor: f32,
    /// Factor of the amplitude.
    pub attn_factor: f32,
    /// YaRN ramp, usually 32.
    pub beta_fast: f32,
    /// YaRN ramp, usually 1.
    pub beta_slow: f32,
}

impl Rope {
    /// Plain RoPE over `n_dims` elements.
    pub fn plain(mode: RopeMode, n_dims: usize, freq_base: f32) -> Rope {
        Rope {
            mode,
            n_dims,
            n_ctx_orig: 0,
            freq_base,
            freq_scale: 1.0,
            ext_factor: 0.0,
            attn_factor: 1.0,
            beta_fast: 32.0,
            beta_slow: 1.0,
        }
    }

    /// Factor of the rotated elements.
    pub fn amplitude(&self) -> f32 {
        let stretched = if self.ext_factor == 0.0 { 1.0 } else { 1.0 + 0.1 * (1.0 / f64::from(self.freq_scale)).ln() };
        (f64::from(self.attn_factor) * stretched) as f32
    }

    /// Radians of a position for each pair, without factors of frequencies (YaRN: section 3 of its paper).
    pub fn rates(&self) -> Vec<f32> {
        let (base, n_dims, scale) = (f64::from(self.freq_base), self.n_dims as f64, f64::from(self.freq_scale));
        let full = |pair: usize| base.powf(-2.0 * pair as f64 / n_dims);
        let pairs = 0..self.n_dims / 2;
        if self.ext_factor == 0.0 {
            return pairs.map(|pair| (scale * full(pair)) as f32).collect();
        }
        // The pair that makes `turns` rotations over the original context.
        let pair_of =
            |turns: f64| n_dims * (self.n_ctx_orig as f64 / (turns * std::f64::consts::TAU)).ln() / (2.0 * base.ln());
        let low = pair_of(f64::from(self.beta_fast)).floor().max(0.0);
        let high = pair_of(f64::from(self.beta_slow)).ceil().min(n_dims - 1.0);
        let rate = |pair: usize| {
            let ramp = 1.0 - ((pair as f64 - low) / (high - low).max(0.001)).clamp(0.0, 1.0);
            let mix = ramp * f64::from(self.ext_factor);
            (full(pair) * (scale * (1.0 - mix) + mix)) as f32
        };
        pairs.map(rate).collect()
    }
}

impl OpSpec for Rope {
    const NAMES: &'static [&'static str] = &["ROPE"];

    fn name(&self) -> &'static str {
        "ROPE"
    }

    fn attrs(&self, attrs: &mut Attrs) {
        attrs
            .int("neox", usize::from(self.mode == RopeMode::Neox))
            .int("n_dims", self.n_dims)
            .int("n_ctx_orig", self.n_ctx_orig)
            .float("freq_base", self.freq_base)
            .float("freq_scale", self.freq_scale)
            .float("ext_factor", self.ext_factor)
            .float("attn_factor", self.attn_factor)
            .float("beta_fast", self.beta_fast)
            .float("beta_slow", self.beta_slow);
    }

    fn from_attrs(_: &str, attrs: &mut AttrReader) -> Result<Self, String> {
        Ok(Rope {
            mode: match attrs.int("neox")? {
                0 => RopeMode::Normal,
                1 => RopeMode::Neox,
                other => return Err(format!("neox must be 0 or 1, not {other}")),
            },
            n_dims: attrs.int("n_dims")?,
            n_ctx_orig: attrs.int("n_ctx_orig")?,
            freq_base: attrs.float("freq_base")?,
            freq_scale: attrs.float("freq_scale")?,
            ext_factor: attrs.float("ext_factor")?,
            attn_factor: attrs.float("attn_factor")?,
            beta_fast: attrs.float("beta_fast")?,
            beta_slow: attrs.float("beta_slow")?,
        })
    }

    fn infer(&self, srcs: &Srcs) -> Result<Inferred, String> {
        srcs.count(2, 3)?;
        let x = srcs.f32_rows(0, "x")?;
        let pos = srcs.typed(1, "pos", DType::I32)?;
        let [d, _, n_tokens, x3] = x.ne();
        let even = self.n_dims > 0 && self.n_dims % 2 == 0 && self.n_dims <= d;
        check(even, || format!("n_dims must be even and at most {d}, not {}", self.n_dims))?;
        check(self.freq_base > 0.0, || format!("freq_base must be positive, not {}", self.freq_base))?;
        check(x3 == 1, || format!("x must have three dimensions, not {x}"))?;
        check(pos.ne() == [n_tokens, 1, 1, 1], || format!("pos {pos} does not suit x {x}"))?;
        if srcs.opt(2).is_some() {
            let factors = srcs.f32_rows(2, "freq_factors")?;
            let enough = factors.ne()[0] >= self.n_dims / 2 && factors.rows() == 1;
            check(enough, || format!("freq_factors {factors} must be {} elements", self.n_dims / 2))?;
        }
        Inferred::new(DType::F32, x.ne())
    }

    fn in_place(&self) -> &'static [usize] {
        &[0]
    }

    fn flops(&self, _: &Srcs, out: &Layout) -> u64 {
        6 * out.elements() as u64
    }
}
