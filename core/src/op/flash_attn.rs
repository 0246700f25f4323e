//! FLASH_ATTN_EXT: scaled dot-product attention in one op (Dao et al., "FlashAttention", 2022).
//!
//! Which keys a query sees comes from a mask or from positions. Positions keep the graph of a growing context the same:
//! the cache's whole extent is the shape, and only the rows up to the position are read.

use super::*;

/// Rows of a block of a paged cache are a multiple of this, so that no tile of a kernel lies in two blocks.
pub const BLOCK_ROWS: usize = 128;

/// `out[.., h, i] = sum_j softmax_j(scale * q[i, h] . k[j, h / g] + mask[j, i]) * v[j, h / g]`.
///
/// Sources: q F32 `[d, n_tokens, n_head]`, k `[d, n_kv, n_head_kv]`, v `[dv, n_kv, n_head_kv]` (F32, F16, BF16 or Q8_0; dense rows;
/// n_head_kv divides n_head), mask (optional) F32 or F16 `[n_kv, n_tokens]`, pos (optional) I32 `[n_tokens]`: query i sees keys
/// `j <= pos[i]`, and with a window only `j > pos[i] - window`; positions outside `0..n_kv` fail the node. Sinks (optional) F32
/// `[n_head]`: a logit per head that takes part in the softmax and has no value. A query that sees nothing gives zeros.
/// Result: F32 `[dv, n_head, n_tokens]`.
///
/// With `block`, the cache is paged (Kwon et al., "PagedAttention", 2023): k and v are blocks of so many rows, which sequences use in any order.
/// Further sources are then table I32 `[n_blocks, n_seqs]`, the blocks of each sequence in the order of its positions, and seqs I32 `[n_tokens]`,
/// the sequence of each query. Key j of a query lies in row `table[j / block, seq] * block + j % block`. A position outside
/// `0..n_blocks * block`, a sequence outside the table, and a block outside the cache that a query would see fail the node.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FlashAttn {
    /// Factor of q . k.
    pub scale: f32,
    /// Keys that a query sees back from its position, itself included; 0: all. Needs pos.
    pub window: usize,
    /// If not 0: logits become `softcap * tanh(logit / softcap)` before the mask.
    pub softcap: f32,
    /// Rows of a block, a multiple of [`BLOCK_ROWS`]; 0: the cache has one sequence, whose positions are rows.
    pub block: usize,
}

impl OpSpec for FlashAttn {
    const NAMES: &'static [&'static str] = &["FLASH_ATTN_EXT"];

    fn name(&self) -> &'static str {
        "FLASH_ATTN_EXT"
    }

    fn attrs(&self, attrs: &mut Attrs) {
        attrs
            .float("scale", self.scale)
            .int("window", self.window)
            .float("softcap", self.softcap)
            .int("block", self.block);
    }

    fn from_attrs(_: &str, attrs: &mut AttrReader) -> Result<Self, String> {
        let (scale, window) = (attrs.float("scale")?, attrs.int("window")?);
        Ok(FlashAttn { scale, window, softcap: attrs.float("softcap")?, block: attrs.int("block")? })
    }

    fn infer(&self, srcs: &Srcs) -> Result<Inferred, String> {
        srcs.count(3, 8)?;
        let q = srcs.f32_rows(0, "q")?;
        let (k, v) = (srcs.get(1, "k")?, srcs.get(2, "v")?);
        for (name, t) in [("k", k), ("v", v)] {
            let typed = t.dtype().is_float() || t.dtype() == DType::Q8_0;
            check(typed && t.has_dense_rows(), || format!("{name} must be floats or Q8_0 with dense rows, not {t}"))?;
        }
        let [d, n_tokens, n_head, q3] = q.ne();
        let [kd, n_kv, n_head_kv, k3] = k.ne();
        let [dv, vn, vh, v3] = v.ne();
        check(q3 == 1 && k3 == 1 && v3 == 1, || format!("q {q}, k {k}, v {v} must have three dimensions"))?;
        check(kd == d, || format!("rows of q {q} and k {k} differ in length"))?;
        check(vn == n_kv && vh == n_head_kv, || format!("k {k} and v {v} differ in rows or heads"))?;
        let groups = n_head_kv > 0 && n_head % n_head_kv == 0;
        check(groups, || format!("heads of k {k} do not divide those of q {q}"))?;
        if let Some(mask) = srcs.opt(3) {
            let typed = matches!(mask.dtype(), DType::F32 | DType::F16) && mask.has_dense_rows();
            check(typed && mask.ne() == [n_kv, n_tokens, 1, 1], || {
                format!("mask {mask} does not suit q {q} and k {k}")
            })?;
        }
        if srcs.opt(4).is_some() {
            let pos = srcs.typed(4, "pos", DType::I32)?;
            check(pos.ne() == [n_tokens, 1, 1, 1], || format!("pos {pos} does not suit q {q}"))?;
        }
        check(self.window == 0 || srcs.opt(4).is_some(), || "a window needs positions".into())?;
        if srcs.opt(5).is_some() {
            let sinks = srcs.f32_rows(5, "sinks")?;
            check(sinks.ne() == [n_head, 1, 1, 1], || format!("sinks {sinks} do not suit q {q}"))?;
        }
        self.check_paging(srcs, n_kv, n_tokens)?;
        Inferred::new(DType::F32, [dv, n_head, n_tokens, 1])
    }

    fn flops(&self, srcs: &Srcs, out: &Layout) -> u64 {
        4 * srcs.opt(1).map_or(0, |k| k.ne()[1] as u64) * out.elements() as u64
    }
}

impl FlashAttn {
    fn check_paging(&self, srcs: &Srcs, n_kv: usize, n_tokens: usize) -> Result<(), String> {
        let given = [srcs.opt(6), srcs.opt(7)];
        if self.block == 0 {
            return check(given == [None, None], || "a table and sequences need blocks".into());
        }
        check_table(srcs, 6, n_tokens)?;
        let whole = self.block.is_multiple_of(BLOCK_ROWS) && n_kv.is_multiple_of(self.block);
        check(whole, || format!("{n_kv} rows are not blocks of {}, a multiple of {BLOCK_ROWS}", self.block))?;
        check(srcs.opt(4).is_some() && srcs.opt(3).is_none(), || "blocks need positions, and no mask".into())
    }
}

/// Checks the table of blocks, source `i`, and behind it the sequences of so many rows.
pub(super) fn check_table(srcs: &Srcs, i: usize, rows: usize) -> Result<(), String> {
    let (table, seqs) = (srcs.typed(i, "table", DType::I32)?, srcs.typed(i + 1, "seqs", DType::I32)?);
    check(table.ne()[2..] == [1, 1] && table.has_dense_rows(), || format!("table {table} must be a dense matrix"))?;
    check(seqs.ne() == [rows, 1, 1, 1], || format!("seqs {seqs} do not suit {rows} rows"))
}
