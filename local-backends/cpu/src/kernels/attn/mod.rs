//! Attention of queries to the keys and values of one head, in one pass over them.
//!
//! Keys are taken in tiles; the softmax is kept as a running maximum and sum (Milakov and Gimelshein, 2018), so that scores of
//! one tile are all that is stored. Queries that share keys (the heads of a group, neighbouring tokens) go together: each tile
//! is read from memory once for all of them. Those of one token meet keys and values as they lie (`decode`); those of several
//! tokens lie in the lanes of vectors themselves (`prefill`).
//!
//! Tiles begin at multiples of their size, whatever the queries see, so that what a query gets does not depend on those beside it, as long
//! as values are finite: those that only its neighbours see count zero times.

mod decode;
mod prefill;

use super::Isa;
use super::isa::per_isa;
use super::mul_mat::{Rows, Scratch};
use super::rows;
pub use crate::paging::Table;
use half::f16;
use outboard_core::DType;
use outboard_core::op::BLOCK_ROWS;
use outboard_core::quant::dequantize_row;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

/// Calls a function that is generic over the type of floats.
macro_rules! by_type {
    ($dtype:expr, $f:ident($($arg:expr),*)) => {
        match $dtype {
            outboard_core::DType::F32 => $f::<f32>($($arg),*),
            outboard_core::DType::F16 => $f::<$crate::kernels::simd::F16>($($arg),*),
            _ => $f::<$crate::kernels::simd::Bf16>($($arg),*),
        }
    };
}
use by_type;

/// Keys of a tile.
const TILE: usize = 128;
const _: () = assert!(BLOCK_ROWS.is_multiple_of(TILE));
/// Most queries that a tile is prepared for once.
pub const QUERIES: usize = 512;
/// Queries of a group, which are worked on together.
const GROUP: usize = 48;
/// Elements of the longest vector.
const MAX_LANES: usize = 16;

/// A mask's row: what is added to the scores of one query, by key.
#[derive(Clone, Copy, Debug)]
pub enum MaskRow {
    /// In F32.
    F32(*const f32),
    /// In F16.
    F16(*const f16),
}

impl MaskRow {
    /// What is added from key `from` on, as much as `tile` has; that is where it is if it has to be converted.
    ///
    /// # Safety
    /// The mask has it.
    unsafe fn from(self, from: usize, tile: &mut [f32]) -> &[f32] {
        match self {
            // SAFETY: the caller's.
            MaskRow::F32(p) => unsafe { std::slice::from_raw_parts(p.add(from), tile.len()) },
            MaskRow::F16(p) => {
                // SAFETY: the caller's.
                rows::from_f16(unsafe { std::slice::from_raw_parts(p.add(from), tile.len()) }, tile);
                tile
            }
        }
    }
}

/// One query and what it sees.
#[derive(Clone, Debug)]
pub struct Query {
    /// Its elements.
    pub q: *const f32,
    /// Where the result goes.
    pub out: *mut f32,
    /// Keys that it sees.
    pub keys: Range<usize>,
    /// Added to its scores.
    pub mask: Option<MaskRow>,
    /// A score without a value.
    pub sink: Option<f32>,
}

/// Which queries go together. Sums are rounded in another order in each, and in the same for all queries of one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// Those of one token.
    Decode,
    /// Those of several tokens.
    Prefill,
}

/// What all queries have in common.
#[derive(Clone, Copy, Debug)]
pub struct Heads<'a> {
    /// Keys: rows of `k.k` elements (F32, F16, BF16, Q8_0).
    pub k: Rows,
    /// Values, one per key.
    pub v: Rows,
    /// Factor of the scores.
    pub scale: f32,
    /// If not 0: scores become `softcap * tanh(score / softcap)`.
    pub softcap: f32,
    /// Whose queries they are.
    pub phase: Phase,
    /// Where keys and values lie; without it, at their positions. No tile lies in two blocks.
    pub table: Option<&'a Table>,
    /// When it is set, results do not matter any more. It is looked at for every tile of keys.
    pub abort: &'a AtomicBool,
}

impl Heads<'_> {
    /// Whether to end here.
    fn aborted(&self) -> bool {
        self.abort.load(Ordering::Relaxed)
    }

    /// The row of the key at a position.
    fn row(&self, position: usize) -> usize {
        self.table.map_or(position, |table| table.row(position))
    }

    /// The rows of the keys at positions of one tile.
    fn rows(&self, positions: &Range<usize>) -> Range<usize> {
        let start = self.row(positions.start);
        start..start + positions.len()
    }
}

#[inline(always)]
fn softcap_body(s: &mut [f32], cap: f32) {
    // tanh u = 1 - 2 / (e^2u + 1); what is lost by the difference is far below the scale of scores.
    for s in s {
        let e = rows::exp(*s * (2.0 / cap));
        *s = cap * (1.0 - 2.0 / (e + 1.0));
    }
}

per_isa! {
    fn softcap(s: &mut [f32], cap: f32) = softcap_body
}

impl Phase {
    /// Most queries that go through the keys together.
    fn max_queries(self) -> usize {
        match self {
            Phase::Decode => GROUP,
            Phase::Prefill => QUERIES,
        }
    }
}

/// Floats of scratch memory with which [`attention`] works: keys of `d` elements, values of `dv`, up to so many queries.
pub fn scratch_floats(phase: Phase, d: usize, dv: usize, queries: usize) -> usize {
    let queries = queries.min(phase.max_queries());
    match phase {
        Phase::Decode => decode::scratch_floats(d, dv, queries),
        Phase::Prefill => prefill::scratch_floats(d, dv, queries),
    }
}

/// Attends `queries` to the head.
///
/// # Panics
/// If keys or values are of another type than said, or scratch memory is short.
///
/// # Safety
/// Every key from the first to the last that queries see must be valid in k and v (aligned to its elements), and those that a query sees
/// in its mask; `q` must hold `k.k` floats; `out` must be valid for `v.k` floats, and nobody else's.
pub unsafe fn attention(isa: Isa, heads: &Heads<'_>, queries: &[Query], scratch: &mut Scratch<'_>) {
    for queries in queries.chunks(heads.phase.max_queries()) {
        // SAFETY: the caller's.
        unsafe {
            match heads.phase {
                Phase::Decode => decode::attention(isa, heads, queries, scratch),
                Phase::Prefill => prefill::attention(isa, heads, queries, scratch),
            }
        }
    }
}

/// The softmax of a query after some tiles.
#[derive(Clone, Copy)]
struct Running {
    max: f32,
    sum: f32,
}

impl Running {
    /// Before the first tile.
    const NEW: Running = Running { max: f32::NEG_INFINITY, sum: 0.0 };

    /// What the sum of values is to be multiplied by in the end, given the score that has no value.
    fn normalizer(mut self, sink: Option<f32>) -> f32 {
        let mut factor = 1.0;
        if let Some(sink) = sink {
            let max = self.max.max(sink);
            factor = if self.max == f32::NEG_INFINITY { 0.0 } else { (self.max - max).exp() };
            self.sum = self.sum * factor + (sink - max).exp();
        }
        // Nothing seen gives zeros; a sum that is no number must not become one.
        if self.sum == 0.0 { 0.0 } else { factor / self.sum }
    }
}

/// Scratch memory that is handed out from the front.
struct Floats<'m>(&'m mut [f32]);

impl<'m> Floats<'m> {
    /// The next `n`, of any content.
    fn take(&mut self, n: usize) -> &'m mut [f32] {
        let (taken, rest) = std::mem::take(&mut self.0).split_at_mut(n);
        self.0 = rest;
        taken
    }

    /// All that is left.
    fn rest(self) -> &'m mut [f32] {
        self.0
    }
}

/// From the first to the last key that one of the queries sees.
fn seen(queries: &[Query]) -> Range<usize> {
    let some = queries.iter().map(|q| &q.keys).filter(|keys| !keys.is_empty());
    let start = some.clone().map(|keys| keys.start).min().unwrap_or(0);
    start..some.map(|keys| keys.end).max().unwrap_or(0)
}

/// The rows `keys` as they are if they are floats, else converted into `tile`.
///
/// # Safety
/// The rows are valid.
unsafe fn as_floats(r: Rows, keys: &Range<usize>, tile: &mut [f32]) -> Rows {
    // SAFETY: the caller's row.
    let row = |i: usize| unsafe { r.data.add(i * r.stride) };
    if r.dtype.is_float() {
        return r.behind(keys.start);
    }
    assert_eq!(r.dtype, DType::Q8_0, "attention to keys or values of {}", r.dtype);
    let bytes = r.bytes();
    for (to, i) in tile.chunks_exact_mut(r.k.max(1)).zip(keys.clone()) {
        // SAFETY: the caller's row.
        let done = dequantize_row(r.dtype, unsafe { std::slice::from_raw_parts(row(i), bytes) }, to);
        debug_assert!(done.is_ok());
    }
    Rows { data: tile.as_ptr().cast(), stride: r.k * 4, dtype: DType::F32, k: r.k }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::format::tests::{noise, weights};
    use crate::kernels::mul_mat::Line;

    static NEVER: AtomicBool = AtomicBool::new(false);

    /// With no more scratch memory than it is said to need.
    ///
    /// # Safety
    /// See [`attention`].
    unsafe fn attend(isa: Isa, heads: &Heads<'_>, queries: &[Query]) {
        let mut room = Line::room(scratch_floats(heads.phase, heads.k.k, heads.v.k, queries.len()));
        // SAFETY: the caller's.
        unsafe { attention(isa, heads, queries, &mut Scratch::new(&mut room)) };
    }

    /// By the definition, in f64.
    fn reference(
        h: &Heads<'_>,
        k: &[f32],
        v: &[f32],
        q: &[f32],
        keys: Range<usize>,
        mask: &[f32],
        sink: Option<f32>,
    ) -> Vec<f64> {
        let (d, dv) = (h.k.k, h.v.k);
        let score = |j: usize| {
            let s: f64 = (0..d).map(|i| f64::from(q[i]) * f64::from(k[j * d + i])).sum::<f64>() * f64::from(h.scale);
            let cap = f64::from(h.softcap);
            f64::from(mask[j]) + if cap == 0.0 { s } else { cap * (s / cap).tanh() }
        };
        let e: Vec<f64> = keys.clone().map(|j| score(j).exp()).collect();
        let total = e.iter().sum::<f64>() + sink.map_or(0.0, |s| f64::from(s).exp());
        (0..dv)
            .map(|c| keys.clone().zip(&e).map(|(j, e)| e * f64::from(v[j * dv + c])).sum::<f64>() / total.max(1e-300))
            .collect()
    }

    fn isas_and_phases() -> impl Iterator<Item = (Isa, Phase)> {
        Isa::available().into_iter().flat_map(|isa| [Phase::Decode, Phase::Prefill].map(|phase| (isa, phase)))
    }

    #[test]
    fn attention_is_softmax_times_values() {
        let cases = [
            (64, 64, 300, 7, DType::F16, 0.0),
            (64, 96, 129, 40, DType::F32, 0.0),
            (80, 72, 260, 3, DType::BF16, 20.0),
            (64, 64, 200, 5, DType::Q8_0, 0.0),
            (36, 19, 5, 2, DType::F16, 0.0),
        ];
        for (d, dv, n_kv, n, dtype, softcap) in cases {
            let float = |w: &[u8], n: usize| {
                let mut y = vec![0.0; n];
                dequantize_row(dtype, w, &mut y).unwrap();
                y
            };
            let (kb, vb) = (weights(dtype, d * n_kv, 1), weights(dtype, dv * n_kv, 2));
            let aligned = |b: &[u8]| {
                let mut a = vec![0u32; b.len() / 4 + 1];
                // SAFETY: the bytes fit, and any bytes are a u32.
                unsafe { std::ptr::copy_nonoverlapping(b.as_ptr(), a.as_mut_ptr().cast(), b.len()) };
                a
            };
            let (ka, va) = (aligned(&kb), aligned(&vb));
            let (k, v) = (float(&kb, d * n_kv), float(&vb, dv * n_kv));
            let rows = |a: &[u32], k| Rows { data: a.as_ptr().cast(), stride: dtype.row_bytes(k).unwrap(), dtype, k };
            let heads = Heads {
                k: rows(&ka, d),
                v: rows(&va, dv),
                scale: 0.3,
                softcap,
                phase: Phase::Decode,
                table: None,
                abort: &NEVER,
            };
            let q = noise(d * n, 3);
            let mask: Vec<f32> = noise(n_kv, 4);
            let mask16: Vec<f16> = mask.iter().map(|&v| f16::from_f32(v)).collect();
            let zeros = vec![0.0; n_kv];
            for (isa, phase) in isas_and_phases() {
                let heads = Heads { phase, ..heads };
                let mut out = vec![f32::NAN; dv * n];
                let mut queries = Vec::new();
                for i in 0..n {
                    let keys = match i % 5 {
                        0 => 0..n_kv,
                        1 => n_kv / 3..n_kv / 3 + 1,
                        2 => n_kv / 2..n_kv,
                        3 => 0..0,
                        _ => 1..n_kv - 1,
                    };
                    let mask = match i % 3 {
                        0 => None,
                        1 => Some(MaskRow::F32(mask.as_ptr())),
                        _ => Some(MaskRow::F16(mask16.as_ptr())),
                    };
                    let sink = (i % 2 == 1).then_some(0.7);
                    let (q, out) = (q[i * d..].as_ptr(), out[i * dv..].as_mut_ptr());
                    queries.push(Query { q, out, keys, mask, sink });
                }
                // SAFETY: everything is as large as said above.
                unsafe { attend(isa, &heads, &queries) };
                let together = out.clone();
                // SAFETY: as above.
                queries.chunks(1).for_each(|q| unsafe { attend(isa, &heads, q) });
                let bits = |v: &[f32]| v.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
                assert_eq!(bits(&out), bits(&together), "{} {dtype} {phase:?}: alone and together", isa.name());
                for (i, query) in queries.iter().enumerate() {
                    let m16: Vec<f32> = mask16.iter().map(|v| v.to_f32()).collect();
                    let m = [&zeros, &mask, &m16][i % 3];
                    let want = reference(&heads, &k, &v, &q[i * d..], query.keys.clone(), m, query.sink);
                    for (c, want) in want.iter().enumerate() {
                        let got = f64::from(out[i * dv + c]);
                        assert!(
                            (got - want).abs() < 2e-5,
                            "{} {dtype} {phase:?} query {i} element {c}: {got}, not {want}",
                            isa.name()
                        );
                    }
                }
            }
        }
    }

    /// More queries than are worked on together, and than a tile is prepared for once; some see nothing, and some keys nobody sees.
    #[test]
    fn many_queries_get_what_each_gets_alone() {
        let (d, n_kv) = (16, 700);
        let float = |seed: u32| noise(d * n_kv, seed);
        let (k, v) = (float(1), float(2));
        let rows = |a: &[f32]| Rows { data: a.as_ptr().cast(), stride: 4 * d, dtype: DType::F32, k: d };
        let causal = |i: usize| 0..i / 3 + 7;
        let window = |i: usize| (i + 1).saturating_sub(130)..i + 1;
        let hole = |i: usize| if (48..96).contains(&i) { 0..0 } else { causal(i) };
        let gap = |i: usize| if i < 48 { 0..5 } else { 400..410 + i / 8 };
        type Keys<'a> = &'a dyn Fn(usize) -> Range<usize>;
        let cases: [(usize, Keys<'_>); 4] = [(49, &causal), (600, &window), (200, &hole), (97, &gap)];
        for (isa, phase) in isas_and_phases() {
            for (case, (n, keys)) in cases.iter().enumerate() {
                let heads =
                    Heads { k: rows(&k), v: rows(&v), scale: 0.5, softcap: 0.0, phase, table: None, abort: &NEVER };
                let q = noise(d * n, 3);
                let run = |size: usize| {
                    let mut out = vec![f32::NAN; d * n];
                    let queries: Vec<Query> = (0..*n)
                        .map(|i| {
                            let (q, out) = (q[i * d..].as_ptr(), out[i * d..].as_mut_ptr());
                            Query { q, out, keys: keys(i), mask: None, sink: None }
                        })
                        .collect();
                    for queries in queries.chunks(size) {
                        // SAFETY: everything is as large as said above.
                        unsafe { attend(isa, &heads, queries) };
                    }
                    out
                };
                let together = run(*n);
                for (i, (got, alone)) in together.chunks(d).zip(run(1).chunks(d)).enumerate() {
                    let want = reference(&heads, &k, &v, &q[i * d..], keys(i), &[0.0; 700], None);
                    for (c, want) in want.iter().enumerate() {
                        let what = format!("{} {phase:?} case {case} query {i} element {c}", isa.name());
                        assert_eq!(got[c].to_bits(), alone[c].to_bits(), "{what}: alone and together");
                        assert!((f64::from(got[c]) - want).abs() < 2e-5, "{what}: {}, not {want}", got[c]);
                    }
                }
            }
        }
    }

    /// One that is no number, and one that a mask lets see nothing, leave those beside them as they are.
    #[test]
    fn what_is_no_number_stays_with_its_query() {
        let (d, n_kv, n) = (20, 150, 5);
        let kv = noise(d * n_kv, 1);
        let rows = Rows { data: kv.as_ptr().cast(), stride: 4 * d, dtype: DType::F32, k: d };
        let nothing = vec![f32::NEG_INFINITY; n_kv];
        for (isa, phase) in isas_and_phases() {
            let heads = Heads { k: rows, v: rows, scale: 0.5, softcap: 0.0, phase, table: None, abort: &NEVER };
            let mut q = noise(d * n, 3);
            q[d..2 * d].fill(f32::NAN);
            let run = |which: Range<usize>| {
                let mut out = vec![1.0f32; d * which.len()];
                let queries: Vec<Query> = which
                    .zip(out.chunks_exact_mut(d))
                    .map(|(i, out)| {
                        let mask = (i == 3).then_some(MaskRow::F32(nothing.as_ptr()));
                        Query { q: q[i * d..].as_ptr(), out: out.as_mut_ptr(), keys: 0..n_kv - i, mask, sink: None }
                    })
                    .collect();
                // SAFETY: everything is as large as said above.
                unsafe { attend(isa, &heads, &queries) };
                out
            };
            for (i, out) in run(0..n).chunks_exact(d).enumerate() {
                let what = format!("{} {phase:?} query {i}: {out:?}", isa.name());
                match i {
                    1 => assert!(out.iter().all(|v| v.is_nan()), "{what}"),
                    3 => assert!(out.iter().all(|&v| v == 0.0), "{what}"),
                    _ => assert!(out.iter().all(|v| v.is_finite()) && out == run(i..i + 1), "{what}"),
                }
            }
        }
    }

    /// Weights that are all alike: their sum is the number of keys, however many, and the result the mean of the values.
    #[test]
    fn long_contexts_keep_their_digits() {
        let (d, n_kv) = (8, 100_000);
        let (k, v) = (vec![0.0f32; d * n_kv], (0..d * n_kv).map(|i| 1.0 + (i % 7) as f32).collect::<Vec<_>>());
        let rows = |a: &[f32]| Rows { data: a.as_ptr().cast(), stride: 4 * d, dtype: DType::F32, k: d };
        let mean = |c: usize| (0..n_kv).map(|j| f64::from(v[j * d + c])).sum::<f64>() / n_kv as f64;
        for (isa, phase) in isas_and_phases() {
            let heads = Heads { k: rows(&k), v: rows(&v), scale: 1.0, softcap: 0.0, phase, table: None, abort: &NEVER };
            let (q, mut out) = (vec![1.0f32; d], vec![0.0f32; d]);
            let query = Query { q: q.as_ptr(), out: out.as_mut_ptr(), keys: 0..n_kv, mask: None, sink: Some(0.0) };
            // SAFETY: everything is as large as said above.
            unsafe { attend(isa, &heads, &[query]) };
            for (c, got) in out.iter().enumerate() {
                let error = f64::from(*got) / mean(c) - 1.0;
                assert!(error.abs() < 5e-5, "{} {phase:?} element {c}: {error}", isa.name());
            }
        }
    }
}
