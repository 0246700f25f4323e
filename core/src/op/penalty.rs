//! PENALTY: makes tokens less probable that were used a short while ago.

use super::*;
use std::ops::Range;

/// Sources: logits F32 `[n, rows]` with dense rows, history I32 `[count]` (the token at each position), step I32 `[rows]` (the
/// last position that counts). Result: F32 of the shape of logits.
///
/// A token that is in `history[max(0, step + 1 - last_n)..=step]` c times gets, as in llama.cpp, a positive logit divided by `repeat`, any
/// other multiplied with it (Keskar et al., 2019), then `c * frequency + presence` is taken away. A step outside the history, or a
/// token outside `0..n` in that part of it, fails the node.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Penalty {
    /// Tokens that count.
    pub last_n: usize,
    /// 1 for none; positive.
    pub repeat: f32,
    /// 0 for none.
    pub frequency: f32,
    /// 0 for none.
    pub presence: f32,
}

impl OpSpec for Penalty {
    const NAMES: &'static [&'static str] = &["PENALTY"];

    fn name(&self) -> &'static str {
        "PENALTY"
    }

    fn attrs(&self, attrs: &mut Attrs) {
        attrs
            .int("last_n", self.last_n)
            .float("repeat", self.repeat)
            .float("frequency", self.frequency)
            .float("presence", self.presence);
    }

    fn from_attrs(_: &str, attrs: &mut AttrReader) -> Result<Self, String> {
        Ok(Penalty {
            last_n: attrs.int("last_n")?,
            repeat: attrs.float("repeat")?,
            frequency: attrs.float("frequency")?,
            presence: attrs.float("presence")?,
        })
    }

    fn infer(&self, srcs: &Srcs) -> Result<Inferred, String> {
        srcs.count(3, 3)?;
        let x = srcs.f32_rows(0, "logits")?;
        let history = srcs.typed(1, "history", DType::I32)?;
        let step = srcs.typed(2, "step", DType::I32)?;
        let [n, rows, x2, x3] = x.ne();
        check(n > 0 && x2 == 1 && x3 == 1, || format!("logits must be a matrix with columns, not {x}"))?;
        check(history.ne()[1..] == [1, 1, 1], || format!("history must be one row, not {history}"))?;
        check(step.ne() == [rows, 1, 1, 1], || format!("step {step} does not suit logits {x}"))?;
        check(self.repeat > 0.0 && self.repeat.is_finite(), || format!("repeat {} must be positive", self.repeat))?;
        let finite = self.frequency.is_finite() && self.presence.is_finite();
        check(finite, || format!("frequency {} and presence {} must be numbers", self.frequency, self.presence))?;
        Inferred::new(DType::F32, x.ne())
    }

    fn flops(&self, srcs: &Srcs, _: &Layout) -> u64 {
        srcs.opt(0).map_or(0, |x| x.elements() as u64)
    }
}

impl Penalty {
    /// The part of a history of `count` tokens that counts at `step`.
    pub fn window(&self, step: i32, count: usize) -> Result<Range<usize>, String> {
        let last = usize::try_from(step).ok().filter(|&s| s < count);
        let end = last.ok_or_else(|| format!("step {step} is outside 0..{count}"))? + 1;
        Ok(end.saturating_sub(self.last_n)..end)
    }

    /// The logit of a token that comes `count` times in the window, more than 0.
    pub fn apply(&self, logit: f32, count: usize) -> f32 {
        let scaled = if logit > 0.0 { logit / self.repeat } else { logit * self.repeat };
        scaled - (count as f32 * self.frequency + self.presence)
    }
}
