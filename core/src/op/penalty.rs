//! PENALTY: makes tokens less probable that were used a short while ago.

use super::flash_attn::check_table;
use super::*;
use std::ops::Range;

/// Sources: logits F32 `[n, rows]` with dense rows, history I32 `[count]` (the token at each position), step I32 `[rows]` (the last position
/// that counts), params F32 `[4, rows]`, as [`Penalties::params`] gives them. Result: F32 of the shape of logits.
///
/// A token that is in `history[max(0, step + 1 - last_n)..=step]` c times gets, as in llama.cpp, a positive logit divided by `repeat`, any
/// other multiplied with it (Keskar et al., 2019), then `c * frequency + presence` is taken away. A step outside the history, or a
/// token outside `0..n` in that part of it, fails the node.
///
/// With `block`, the history is paged as a cache is ([`FlashAttn`]): further sources are table I32 `[n_blocks, n_seqs]` and seqs I32 `[rows]`, and
/// position j of a sequence lies at `table[j / block, seq] * block + j % block`. A sequence outside the table fails the node, and so does a block
/// outside the history in the part that counts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Penalty {
    /// Tokens of a block; 0: the history is that of one sequence.
    pub block: usize,
}

/// What makes tokens less probable that were used a short while ago.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Penalties {
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
        attrs.int("block", self.block);
    }

    fn from_attrs(_: &str, attrs: &mut AttrReader) -> Result<Self, String> {
        Ok(Penalty { block: attrs.int("block")? })
    }

    fn infer(&self, srcs: &Srcs) -> Result<Inferred, String> {
        srcs.count(4, 6)?;
        let x = srcs.f32_rows(0, "logits")?;
        let (history, step) = (srcs.typed(1, "history", DType::I32)?, srcs.typed(2, "step", DType::I32)?);
        let params = srcs.typed(3, "params", DType::F32)?;
        let [n, rows, x2, x3] = x.ne();
        check(n > 0 && x2 == 1 && x3 == 1, || format!("logits must be a matrix with columns, not {x}"))?;
        check(history.ne()[1..] == [1, 1, 1], || format!("history must be one row, not {history}"))?;
        check(step.ne() == [rows, 1, 1, 1], || format!("step {step} does not suit logits {x}"))?;
        let suits = params.ne() == [4, rows, 1, 1] && params.has_dense_rows();
        check(suits, || format!("params {params} do not suit logits {x}"))?;
        if self.block == 0 {
            check(srcs.opt(4).is_none() && srcs.opt(5).is_none(), || "a table and sequences need blocks".into())?;
        } else {
            check_table(srcs, 4, rows)?;
            let count = history.ne()[0];
            check(count.is_multiple_of(self.block), || format!("{count} tokens are not blocks of {}", self.block))?;
        }
        Inferred::new(DType::F32, x.ne())
    }

    fn flops(&self, srcs: &Srcs, _: &Layout) -> u64 {
        srcs.opt(0).map_or(0, |x| x.elements() as u64)
    }
}

impl Penalties {
    /// Changes nothing.
    pub const NONE: Penalties = Penalties { last_n: 0, repeat: 1.0, frequency: 0.0, presence: 0.0 };

    /// What the op takes of it: last_n, repeat, frequency, presence.
    pub fn params(&self) -> [f32; 4] {
        [self.last_n as f32, self.repeat, self.frequency, self.presence]
    }

    /// The penalties of a row. A `repeat` that is not positive, or infinite, is 1; others that are not finite are 0, and so is a negative `last_n`.
    pub fn read([last_n, repeat, frequency, presence]: [f32; 4]) -> Penalties {
        let finite = |v: f32| if v.is_finite() { v } else { 0.0 };
        Penalties {
            // NaN becomes 0.
            last_n: last_n as usize,
            repeat: if repeat > 0.0 && repeat.is_finite() { repeat } else { 1.0 },
            frequency: finite(frequency),
            presence: finite(presence),
        }
    }

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
