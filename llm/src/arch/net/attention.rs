//! Causal self-attention over the cache of a sequence.

use super::*;
use crate::arch::layer::{Attention, HeadNorms};
use outboard_core::op::Rope;

impl Net<'_> {
    /// Attention of layer `il` over x `[n_embd, n_tokens]`: q, k, v, norms and rotary embedding of their heads, the cache, the output.
    pub(super) fn attention(&mut self, il: usize, attention: &Attention, x: TensorId) -> Result<TensorId> {
        let (h, n) = (self.hparams, self.shape.n_tokens);
        let prefix = format!("blk.{il}");
        let [q, k, v] = self.queries_keys_values(&prefix, x)?;
        let q = self.query_or_key(il, attention, q, "attn_q_norm", h.n_head)?;
        let k = self.query_or_key(il, attention, k, "attn_k_norm", h.n_head_kv)?;
        let v = self.heads(v, h.head_dim_v, h.n_head_kv)?;
        let [dtype_k, dtype_v] = self.shape.cache.dtypes;
        let cache_rows = self.column(Column::CacheRow)?;
        let keys = self.cached(State::Keys(il), dtype_k, k, cache_rows)?;
        let values = self.cached(State::Values(il), dtype_v, v, cache_rows)?;
        let q = self.g.push(op::Permute { axes: [0, 2, 1, 3] }, &[q])?;
        let sinks = attention.sinks.map(|name| self.weight(&format!("{prefix}.{name}.weight"))).transpose()?;
        let &Attention { scale, window, softcap, .. } = attention;
        let (positions, slots) = (self.column(Column::Position)?, self.column(Column::Slot)?);
        let table = self.block_table(&prefix)?;
        let srcs = [Some(q), Some(keys), Some(values), None, Some(positions), sinks, Some(table), Some(slots)];
        let y = self.g.push_opt(op::FlashAttn { scale, window, softcap, block: op::BLOCK_ROWS }, &srcs)?;
        self.g.name(y, &format!("{prefix}.attn"));
        let y = self.reshape(y, [h.head_dim_v * h.n_head, n, 1, 1])?;
        self.linear(y, &format!("{prefix}.attn_output"))
    }

    /// Rows of queries, keys and values, `[head_dim * heads, n_tokens]` each, of three products or of one.
    fn queries_keys_values(&mut self, prefix: &str, x: TensorId) -> Result<[TensorId; 3]> {
        let (h, fused) = (self.hparams, format!("{prefix}.attn_qkv"));
        if self.weights.layout(&format!("{fused}.weight")).is_none() {
            let [q, k, v] = ["attn_q", "attn_k", "attn_v"].map(|name| self.linear(x, &format!("{prefix}.{name}")));
            return Ok([q?, k?, v?]);
        }
        let [q, k, v] = [h.head_dim_k * h.n_head, h.head_dim_k * h.n_head_kv, h.head_dim_v * h.n_head_kv];
        let y = self.linear(x, &fused)?;
        let rows = self.g.ne(y)[0];
        if rows != q + k + v {
            return Err(Error::Model(format!(
                "tensor {fused}.weight has {rows} rows, and heads of queries, keys and values have {q}, {k} and {v}"
            )));
        }
        Ok([self.part(y, 0, q)?, self.part(y, q, k)?, self.part(y, q + k, v)?])
    }

    /// Queries or keys as attention takes them, `[head_dim, heads, n_tokens]`.
    fn query_or_key(
        &mut self,
        il: usize,
        attention: &Attention,
        rows: TensorId,
        norm: &str,
        heads: usize,
    ) -> Result<TensorId> {
        let (head_dim, norm) = (self.hparams.head_dim_k, format!("blk.{il}.{norm}"));
        let heads = match attention.head_norms {
            HeadNorms::None => self.heads(rows, head_dim, heads)?,
            HeadNorms::Each => {
                let heads = self.heads(rows, head_dim, heads)?;
                self.rms_norm(heads, &norm)?
            }
            HeadNorms::Together => {
                let normed = self.rms_norm(rows, &norm)?;
                self.heads(normed, head_dim, heads)?
            }
        };
        attention.rope.map_or(Ok(heads), |rope| self.rotated(il, rope, heads))
    }

    /// Rows `[head_dim * heads, n_tokens]`, which may be parts of longer ones, as `[head_dim, heads, n_tokens]`.
    fn heads(&mut self, rows: TensorId, head_dim: usize, heads: usize) -> Result<TensorId> {
        let n = self.shape.n_tokens;
        match self.g.tensor(rows).map(|rows| *rows.layout()) {
            Some(part) if !part.is_contiguous() => {
                let (head, row) = (4 * head_dim, part.nb()[1]);
                let nb = [4, head, row, row * n];
                Ok(self.g.push(op::View { ne: [head_dim, heads, n, 1], nb, offset: 0 }, &[rows])?)
            }
            _ => self.reshape(rows, [head_dim, heads, n, 1]),
        }
    }

    /// Rotary embedding of layer `il`'s heads, `[head_dim, heads, n_tokens]`.
    fn rotated(&mut self, il: usize, rope: Rope, heads: TensorId) -> Result<TensorId> {
        let factors = match self.factors_name()? {
            Some(name) => Some(self.weight_for(&format!("blk.{il}"), name)?),
            None => None,
        };
        let positions = self.column(Column::Position)?;
        let srcs = [Some(heads), Some(positions), factors];
        Ok(self.g.push_opt(rope, &srcs[..if factors.is_some() { 3 } else { 2 }])?)
    }

    /// The tensor that divides the frequencies, if the file has one. LongRoPE has one for contexts up to that before scaling, and one for
    /// longer ones.
    fn factors_name(&self) -> Result<Option<&'static str>> {
        const ONE: &str = "rope_freqs.weight";
        const SHORT: &str = "rope_factors_short.weight";
        const LONG: &str = "rope_factors_long.weight";
        let has = |name: &str| self.weights.layout(name).is_some();
        match (has(ONE), has(SHORT), has(LONG)) {
            (true, ..) => Ok(Some(ONE)),
            (false, true, true) if self.shape.cache.n_ctx > self.hparams.n_ctx_orig => Ok(Some(LONG)),
            (false, true, true) => Ok(Some(SHORT)),
            (false, false, false) => Ok(None),
            (false, short, _) => {
                let missing = if short { LONG } else { SHORT };
                Err(Error::Model(format!("tensor {missing} is missing, its counterpart is there")))
            }
        }
    }

    /// Writes x `[head_dim, n_head_kv, n_tokens]` into rows of a cache and gives all of it, `[head_dim, rows, n_head_kv]`: the rows of a head
    /// lie behind one another, because attention reads one head after the other.
    fn cached(&mut self, state: State, dtype: DType, x: TensorId, cache_rows: TensorId) -> Result<TensorId> {
        let [head_dim, heads, ..] = self.g.ne(x);
        let cache = self.state(state, None, dtype, &[head_dim, self.shape.cache.rows(), heads])?;
        let rows = self.g.push(op::Permute { axes: [0, 2, 1, 3] }, &[x])?;
        let written = self.g.push(op::SetRows, &[cache, rows, cache_rows])?;
        Ok(self.g.name(written, &format!("{state}.written")))
    }
}
