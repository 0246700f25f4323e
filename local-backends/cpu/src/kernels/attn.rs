//! Attention of a few queries to the keys and values of one head, in one pass over them.
//!
//! Keys are taken in tiles; the softmax is kept as a running maximum and sum (Milakov and Gimelshein, 2018), so that scores of
//! one tile are all that is stored. Queries that share keys (the heads of a group, neighbouring tokens) go together: each tile
//! is read from memory once for all of them. Where there are many, its keys are turned into columns and its values are made
//! floats first, so that both products are sums of vectors times numbers: that takes a twentieth of the time, and saves a third.
//!
//! Tiles begin at multiples of their size, whatever the queries see, so that what a query gets does not depend on those beside it.

use super::Isa;
use super::ahead::Ahead;
use super::float::mul_mat_float;
use super::isa::per_isa;
use super::mul_mat::{Out, Rows, Scratch};
use super::rows;
use super::simd::{Bf16, Element, F16, Lanes, exp_negative, per_lanes};
use half::f16;
use outboard_core::DType;
use outboard_core::op::BinaryKind;
use outboard_core::quant::dequantize_row;
use std::ops::Range;

/// Calls a function that is generic over the type of floats.
macro_rules! by_type {
    ($dtype:expr, $f:ident($($arg:expr),*)) => {
        match $dtype {
            DType::F32 => $f::<f32>($($arg),*),
            DType::F16 => $f::<F16>($($arg),*),
            _ => $f::<Bf16>($($arg),*),
        }
    };
}

/// Keys of a tile: few enough for strips of it to stay in the nearest cache.
const TILE: usize = 128;
/// Floats from one column of a tile's turned keys to the next: a power of two would bring them to few places of the nearest cache.
const COLUMN: usize = TILE + MOST_LANES;
/// Most queries that a tile is prepared for once.
pub const QUERIES: usize = 512;
/// Queries that are worked on together. With more, a tile's columns come to the nearest cache less often; but those of early tokens are
/// multiplied with keys that later ones beside them see, for nothing.
const BESIDE: usize = 48;
/// Elements of the longest vector.
const MOST_LANES: usize = 16;
const _: () = assert!(TILE.is_multiple_of(MOST_LANES));

/// A mask's row: what is added to the scores of one query, by key.
#[derive(Clone, Copy, Debug)]
pub enum MaskRow {
    /// In F32.
    F32(*const f32),
    /// In F16.
    F16(*const f16),
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

/// What all queries have in common.
#[derive(Clone, Copy, Debug)]
pub struct Heads {
    /// Keys: rows of `k.k` elements (F32, F16, BF16, Q8_0).
    pub k: Rows,
    /// Values, one per key.
    pub v: Rows,
    /// Factor of the scores.
    pub scale: f32,
    /// If not 0: scores become `softcap * tanh(score / softcap)`.
    pub softcap: f32,
    /// There are queries of several tokens. Sums are rounded in another order then, for all of them in the same.
    pub many: bool,
}

/// What is known of a query after some tiles.
#[derive(Clone, Copy)]
struct Running {
    max: f32,
    sum: f32,
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
per_lanes! {
    /// `s = exp(s - m)` with m the largest of s and `at_least`; gives m and the sum. Where m is minus infinity, zeros.
    ///
    /// # Safety
    /// None, but for the features.
    unsafe fn exps(s: &mut [f32], at_least: f32) -> (f32, f32) = exps_body
}

/// # Safety
/// L's features.
#[inline(always)]
unsafe fn exps_body<L: Lanes>(s: &mut [f32], at_least: f32) -> (f32, f32) {
    // What is missing in the last vector counts nothing.
    let mut last = [f32::NEG_INFINITY; MOST_LANES];
    let whole = s.len() / L::N * L::N;
    let (s, rest) = s.split_at_mut(whole);
    // SAFETY: vectors of s, and `last`, which has the most that there can be.
    unsafe {
        let (mut even, mut odd) = (L::splat(at_least), L::splat(f32::NEG_INFINITY));
        if !rest.is_empty() {
            last[..rest.len()].copy_from_slice(rest);
            even = even.or_larger(L::load(last.as_ptr()));
        }
        for two in s.chunks(2 * L::N) {
            even = even.or_larger(L::load(two.as_ptr()));
            if two.len() > L::N {
                odd = odd.or_larger(L::load(two.as_ptr().add(L::N)));
            }
        }
        let m = even.or_larger(odd).largest();
        if m == f32::NEG_INFINITY {
            // Everything is excluded, or not a number.
            let excluded = |v: f32| if v == f32::NEG_INFINITY { 0.0 } else { v };
            s.iter_mut().chain(rest.iter_mut()).for_each(|v| *v = excluded(*v));
            return (m, s.iter().chain(rest.iter()).sum());
        }
        let minus = L::splat(-m);
        let mut sum = L::splat(0.0);
        if !rest.is_empty() {
            sum = exp_negative(L::load(last.as_ptr()).add(minus));
            sum.store(last.as_mut_ptr());
            rest.copy_from_slice(&last[..rest.len()]);
        }
        for v in s.chunks_exact_mut(L::N) {
            let e = exp_negative(L::load(v.as_ptr()).add(minus));
            e.store(v.as_mut_ptr());
            sum = sum.add(e);
        }
        (m, sum.sum())
    }
}

/// Attends `queries` to the head.
///
/// # Panics
/// If keys or values are of another type than said.
///
/// # Safety
/// Every key from the first to the last that queries see must be valid in k and v (aligned to its elements), and those that a query sees
/// in its mask; `q` must hold `k.k` floats; `out` must be valid for `v.k` floats, and nobody else's.
pub unsafe fn attention(isa: Isa, heads: &Heads, queries: &[Query], scratch: &mut Scratch) {
    for queries in queries.chunks(QUERIES) {
        // SAFETY: the caller's.
        unsafe { some(isa, heads, queries, scratch) };
    }
}

/// [`attention`] of at most [`QUERIES`].
///
/// # Safety
/// As there.
unsafe fn some(isa: Isa, heads: &Heads, queries: &[Query], scratch: &mut Scratch) {
    let (n, d, dv) = (queries.len(), heads.k.k, heads.v.k);
    let memory = scratch.floats(n * (d + dv) + BESIDE * TILE + TILE * (d + dv) + COLUMN * d + TILE);
    let (q, memory) = memory.split_at_mut(n * d);
    let (acc, memory) = memory.split_at_mut(n * dv);
    let (scores, memory) = memory.split_at_mut(BESIDE * TILE);
    let (k_tile, memory) = memory.split_at_mut(TILE * d);
    let (turned, memory) = memory.split_at_mut(COLUMN * d);
    let (v_tile, memory) = memory.split_at_mut(TILE * dv);
    let mask_tile = &mut memory[..TILE];
    acc.fill(0.0);
    for (to, query) in q.chunks_exact_mut(d.max(1)).zip(queries) {
        // SAFETY: the caller's d floats.
        to.copy_from_slice(unsafe { std::slice::from_raw_parts(query.q, d) });
        rows::scale(isa, to, heads.scale, 0.0);
    }
    let mut running = [Running { max: f32::NEG_INFINITY, sum: 0.0 }; QUERIES];
    let mut groups = [const { 0..0 }; QUERIES.div_ceil(BESIDE)];
    groups.iter_mut().zip(queries.chunks(BESIDE)).for_each(|(group, queries)| *group = seen(queries));
    let all = seen(queries);
    let mut next = all.start;
    while next < all.end {
        let keys = next..(next / TILE * TILE + TILE).min(all.end);
        next = keys.end;
        if !groups.iter().any(|seen| seen.start < keys.end && keys.start < seen.end) {
            continue;
        }
        // SAFETY: these keys are between the first and the last that are seen.
        let (k, mut v) = unsafe { (as_floats(heads.k, &keys, k_tile), as_floats(heads.v, &keys, v_tile)) };
        if heads.many {
            // SAFETY: k and v have as many rows; turned has d rows of COLUMN, and v_tile room for the values.
            unsafe {
                by_type!(k.dtype, turn(isa, k, keys.len(), turned.as_mut_ptr()));
                if v.dtype != DType::F32 {
                    by_type!(v.dtype, widen(isa, v, keys.len(), v_tile.as_mut_ptr()));
                    v = Rows { data: v_tile.as_ptr().cast(), stride: dv * 4, dtype: DType::F32, k: dv };
                }
            }
        }
        // The queries of one token do not give the time to ask for more.
        let mut ahead = heads.many.then(|| {
            let rows = (all.end - next).min(TILE);
            [heads.k, heads.v].map(|r| Ahead::new(r.behind(next).data, r.stride, rows, r.bytes(), n))
        });
        for (g, seen) in groups.iter().enumerate() {
            // What none of them sees at the ends of the tile is left out, by whole vectors in front.
            let skip = seen.start.saturating_sub(keys.start) / MOST_LANES * MOST_LANES;
            let keys = keys.start + skip..keys.end.min(seen.end);
            if keys.is_empty() {
                continue;
            }
            let v = v.behind(skip);
            let from = g * BESIDE;
            let beside = &queries[from..(from + BESIDE).min(n)];
            let (q, out) = (q[from * d..].as_ptr(), Out { data: scores.as_mut_ptr(), stride: TILE });
            if heads.many {
                let width = keys.len().next_multiple_of(MOST_LANES);
                let data = turned[skip..].as_ptr().cast();
                let columns = Rows { data, stride: COLUMN * 4, dtype: DType::F32, k: width };
                let factors = Factors { data: q, stride: d, n: beside.len() };
                // SAFETY: turned has d rows of COLUMN, q as many numbers for each query, and there is room for their scores.
                unsafe { put_rows::<f32>(isa, factors, columns, d, out) };
            } else {
                // SAFETY: k has as many rows, q as many columns, and there is room for both.
                unsafe { mul_mat_float(isa, k.behind(skip), 0..keys.len(), q, d, beside.len(), out) };
            }
            for (i, query) in beside.iter().enumerate() {
                ahead.iter_mut().flatten().for_each(|ahead| ahead.more(1));
                let s = &mut scores[i * TILE..][..keys.len()];
                let acc = &mut acc[(from + i) * dv..][..dv];
                // SAFETY: the ISA has its features; the mask is the caller's.
                unsafe { weigh(isa, heads, query, &keys, s, mask_tile, &mut running[from + i], acc) };
            }
            let p = Factors { data: scores.as_ptr(), stride: TILE, n: beside.len() };
            let out = Out { data: acc[from * dv..].as_mut_ptr(), stride: dv };
            // SAFETY: v has as many rows; scores and acc have those of the queries.
            unsafe { by_type!(v.dtype, add_rows(isa, p, v, keys.len(), out)) };
        }
    }
    for ((query, r), acc) in queries.iter().zip(&mut running).zip(acc.chunks_exact_mut(dv.max(1))) {
        let mut factor = 1.0;
        if let Some(sink) = query.sink {
            let max = r.max.max(sink);
            factor = if r.max == f32::NEG_INFINITY { 0.0 } else { (r.max - max).exp() };
            r.sum = r.sum * factor + (sink - max).exp();
        }
        // Nothing seen gives zeros; a sum that is no number must not become one.
        let factor = if r.sum == 0.0 { 0.0 } else { factor / r.sum };
        rows::scale(isa, acc, factor, 0.0);
        // SAFETY: the caller's dv floats.
        unsafe { std::ptr::copy_nonoverlapping(acc.as_ptr(), query.out, dv) };
    }
}

/// From the first to the last key that one of the queries sees.
fn seen(queries: &[Query]) -> Range<usize> {
    let some = queries.iter().map(|q| &q.keys).filter(|keys| !keys.is_empty());
    let start = some.clone().map(|keys| keys.start).min().unwrap_or(0);
    start..some.map(|keys| keys.end).max().unwrap_or(0)
}

/// Scores of a query for `keys` become weights of their values: zero where it sees none. What it got before, `acc`, shrinks if a score
/// is larger than all before.
///
/// # Safety
/// The mask has the keys that the query sees.
#[allow(clippy::too_many_arguments)]
unsafe fn weigh(
    isa: Isa,
    heads: &Heads,
    query: &Query,
    keys: &Range<usize>,
    s: &mut [f32],
    mask_tile: &mut [f32],
    r: &mut Running,
    acc: &mut [f32],
) {
    let from = query.keys.start.clamp(keys.start, keys.end);
    let to = query.keys.end.clamp(from, keys.end);
    let (before, rest) = s.split_at_mut(from - keys.start);
    let (s, behind) = rest.split_at_mut(to - from);
    before.fill(0.0);
    behind.fill(0.0);
    if s.is_empty() {
        return;
    }
    if heads.softcap != 0.0 {
        softcap(isa, s, heads.softcap);
    }
    if let Some(mask) = query.mask {
        let mask_tile = &mut mask_tile[..s.len()];
        // SAFETY: the caller's.
        let mask = unsafe { mask_row(mask, from, mask_tile) };
        rows::binary(isa, BinaryKind::Add, s, mask);
    }
    // SAFETY: the ISA has its features.
    let (max, sum) = unsafe { exps(isa, s, r.max) };
    if max != r.max && r.sum != 0.0 {
        let factor = (r.max - max).exp();
        r.sum *= factor;
        rows::scale(isa, acc, factor, 0.0);
    }
    r.max = max;
    r.sum += sum;
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

/// The mask from key `from` on, as many as `tile` has.
///
/// # Safety
/// The mask has them.
unsafe fn mask_row(mask: MaskRow, from: usize, tile: &mut [f32]) -> &[f32] {
    match mask {
        // SAFETY: the caller's.
        MaskRow::F32(p) => unsafe { std::slice::from_raw_parts(p.add(from), tile.len()) },
        MaskRow::F16(p) => {
            // SAFETY: the caller's.
            rows::from_f16(unsafe { std::slice::from_raw_parts(p.add(from), tile.len()) }, tile);
            tile
        }
    }
}

per_lanes! {
    /// The first `n` keys of a tile as columns, [`COLUMN`] floats apart, padded with zeros to whole vectors.
    ///
    /// # Safety
    /// `k` has as many rows of W; `to` has room for `k.k` rows of [`COLUMN`].
    unsafe fn turn<W>(k: Rows, n: usize, to: *mut f32) = turn_body
}

/// # Safety
/// As [`turn`], with L's features.
#[inline(always)]
unsafe fn turn_body<L: Lanes, W: Element>(k: Rows, n: usize, to: *mut f32) {
    // SAFETY: rows are below n, columns below k.k; a tile has whole vectors.
    unsafe {
        let at = |j: usize, c: usize| k.data.add(j * k.stride).cast::<W>().add(c);
        for j in (0..n).step_by(L::N) {
            let here = (n - j).min(L::N);
            let mut c = 0;
            while c + L::N <= k.k {
                let mut block = [L::splat(0.0); MOST_LANES];
                for (r, row) in block.iter_mut().enumerate().take(here) {
                    *row = W::lanes::<L>(at(j + r, c));
                }
                L::turn(&mut block[..L::N]);
                for (e, column) in block.iter().enumerate().take(L::N) {
                    column.store(to.add((c + e) * COLUMN + j));
                }
                c += L::N;
            }
            for c in c..k.k {
                for r in 0..L::N {
                    *to.add(c * COLUMN + j + r) = if r < here { (*at(j + r, c)).one() } else { 0.0 };
                }
            }
        }
    }
}

per_lanes! {
    /// The first `n` rows as floats, behind one another.
    ///
    /// # Safety
    /// `v` has as many rows of W, and `to` room for them.
    unsafe fn widen<W>(v: Rows, n: usize, to: *mut f32) = widen_body
}

/// # Safety
/// As [`widen`], with L's features.
#[inline(always)]
unsafe fn widen_body<L: Lanes, W: Element>(v: Rows, n: usize, to: *mut f32) {
    // SAFETY: all indices are below the caller's.
    unsafe {
        for j in 0..n {
            let (row, to) = (v.data.add(j * v.stride).cast::<W>(), to.add(j * v.k));
            let mut c = 0;
            while c + L::N <= v.k {
                W::lanes::<L>(row.add(c)).store(to.add(c));
                c += L::N;
            }
            for c in c..v.k {
                *to.add(c) = (*row.add(c)).one();
            }
        }
    }
}

/// `n` rows of numbers that vectors are multiplied by.
#[derive(Clone, Copy)]
struct Factors {
    data: *const f32,
    /// Floats from one row to the next.
    stride: usize,
    n: usize,
}

impl Factors {
    /// # Safety
    /// There are so many.
    unsafe fn from(self, row: usize) -> *const f32 {
        // SAFETY: the caller's.
        unsafe { self.data.add(row * self.stride) }
    }
}

per_lanes! {
    /// `acc[i] += sum_j p[i, j] * v[j]` for all rows of p, j being below `n`.
    ///
    /// # Safety
    /// `v` has `n` rows of W, those of p are as long, and `acc` has as many as p, as long as those of v.
    unsafe fn add_rows<W>(p: Factors, v: Rows, n: usize, acc: Out) = add_rows_body
}

per_lanes! {
    /// [`add_rows`], but what was in `out` does not count.
    ///
    /// # Safety
    /// As there.
    unsafe fn put_rows<W>(p: Factors, v: Rows, n: usize, out: Out) = put_rows_body
}

/// # Safety
/// As [`add_rows`], with L's features.
#[inline(always)]
unsafe fn add_rows_body<L: Lanes, W: Element>(p: Factors, v: Rows, n: usize, acc: Out) {
    // SAFETY: the caller's.
    unsafe { sums::<L, W, true>(p, v, n, acc) };
}

/// # Safety
/// As [`put_rows`], with L's features.
#[inline(always)]
unsafe fn put_rows_body<L: Lanes, W: Element>(p: Factors, v: Rows, n: usize, out: Out) {
    // SAFETY: the caller's.
    unsafe { sums::<L, W, false>(p, v, n, out) };
}

/// Both: `ADD` says whether what was there counts.
///
/// # Safety
/// As [`add_rows_body`].
#[inline(always)]
unsafe fn sums<L: Lanes, W: Element, const ADD: bool>(p: Factors, v: Rows, n: usize, acc: Out) {
    // SAFETY: all indices are below the caller's.
    unsafe {
        let mut c = 0;
        // Only where there are 32 registers.
        while L::N == 16 && c + 4 * L::N <= v.k {
            strip::<L, W, 4, ADD>(p, v, c, n, acc);
            c += 4 * L::N;
        }
        while c + 2 * L::N <= v.k {
            strip::<L, W, 2, ADD>(p, v, c, n, acc);
            c += 2 * L::N;
        }
        while c + L::N <= v.k {
            strip::<L, W, 1, ADD>(p, v, c, n, acc);
            c += L::N;
        }
        for c in c..v.k {
            for r in 0..p.n {
                let mut sum = if ADD { *acc.data.add(r * acc.stride + c) } else { 0.0 };
                for j in 0..n {
                    sum += *p.from(r).add(j) * (*v.data.add(j * v.stride).cast::<W>().add(c)).one();
                }
                *acc.data.add(r * acc.stride + c) = sum;
            }
        }
    }
}

/// All rows of p times `C` vectors of each of the `n` rows of v, from element `c` on: few enough to stay in the nearest cache meanwhile.
///
/// # Safety
/// As [`add_rows_body`].
#[inline(always)]
unsafe fn strip<L: Lanes, W: Element, const C: usize, const ADD: bool>(
    p: Factors,
    v: Rows,
    c: usize,
    n: usize,
    acc: Out,
) {
    for i in (0..p.n).step_by(4) {
        // SAFETY: the caller's rows.
        unsafe {
            let (here, acc) = (Factors { data: p.from(i), ..p }, Out { data: acc.data.add(i * acc.stride), ..acc });
            match p.n - i {
                1 => tile::<L, W, 1, C, ADD>(here, v, c, n, acc),
                2 => tile::<L, W, 2, C, ADD>(here, v, c, n, acc),
                3 => tile::<L, W, 3, C, ADD>(here, v, c, n, acc),
                _ => tile::<L, W, 4, C, ADD>(here, v, c, n, acc),
            }
        }
    }
}

/// `R` rows of p times `C` vectors of each of the `n` rows of v, from element `c` on.
///
/// # Safety
/// As [`add_rows_body`].
#[inline(always)]
unsafe fn tile<L: Lanes, W: Element, const R: usize, const C: usize, const ADD: bool>(
    p: Factors,
    v: Rows,
    c: usize,
    n: usize,
    acc: Out,
) {
    // SAFETY: the caller's.
    unsafe {
        let mut sum = [[L::splat(0.0); C]; R];
        if ADD {
            for (r, sum) in sum.iter_mut().enumerate() {
                for (l, sum) in sum.iter_mut().enumerate() {
                    *sum = L::load(acc.data.add(r * acc.stride + c + l * L::N));
                }
            }
        }
        for j in 0..n {
            let row = v.data.add(j * v.stride).cast::<W>().add(c);
            let mut values = [L::splat(0.0); C];
            for (l, value) in values.iter_mut().enumerate() {
                *value = W::lanes::<L>(row.add(l * L::N));
            }
            for (r, sum) in sum.iter_mut().enumerate() {
                let factor = L::splat(*p.from(r).add(j));
                for (sum, value) in sum.iter_mut().zip(values) {
                    *sum = sum.fma(factor, value);
                }
            }
        }
        for (r, sum) in sum.iter().enumerate() {
            for (l, sum) in sum.iter().enumerate() {
                sum.store(acc.data.add(r * acc.stride + c + l * L::N));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::format::tests::{noise, weights};

    /// By the definition, in f64.
    fn reference(
        h: &Heads,
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

    #[test]
    fn exps_of_any_length_and_of_what_is_no_number() {
        for isa in Isa::available() {
            for n in 0..70 {
                for at_least in [f32::NEG_INFINITY, -3.0, 9.0] {
                    let mut s: Vec<f32> = noise(n, 1).iter().map(|v| v * 40.0).collect();
                    s.iter_mut().skip(5).step_by(7).for_each(|v| *v = f32::NEG_INFINITY);
                    let m = s.iter().copied().fold(at_least, f32::max);
                    let want: Vec<f64> = s.iter().map(|&v| (f64::from(v) - f64::from(m)).exp()).collect();
                    // SAFETY: the ISA is there.
                    let (max, sum) = unsafe { exps(isa, &mut s, at_least) };
                    assert_eq!(max, m, "{} n {n}", isa.name());
                    if m == f32::NEG_INFINITY {
                        assert!(sum == 0.0 && s.iter().all(|&v| v == 0.0), "{} n {n}: {s:?}", isa.name());
                        continue;
                    }
                    for (got, want) in s.iter().zip(&want) {
                        let fine =
                            if *want < 1.7e-38 { *got == 0.0 } else { (f64::from(*got) / want - 1.0).abs() < 8e-6 };
                        assert!(fine, "{} n {n}: {got}, not {want}", isa.name());
                    }
                    let total: f64 = want.iter().sum();
                    assert!((f64::from(sum) - total).abs() <= 8e-6 * total, "{} n {n}: {sum}, not {total}", isa.name());
                }
            }
            // Neither a number that is none nor its neighbours are lost, whatever its payload.
            for bad in [f32::NAN, f32::from_bits(0x7fc0_01ff), f32::from_bits(0xffc0_0001)] {
                let mut s = [1.0; 40];
                s[35] = bad;
                // SAFETY: the ISA is there.
                let (max, sum) = unsafe { exps(isa, &mut s, f32::NEG_INFINITY) };
                assert!(
                    max == 1.0 && sum.is_nan() && s[35].is_nan() && s[34] == 1.0,
                    "{}: {max} {sum} {s:?}",
                    isa.name()
                );
                let mut s = [bad, f32::NEG_INFINITY];
                // SAFETY: the ISA is there.
                let (max, sum) = unsafe { exps(isa, &mut s, f32::NEG_INFINITY) };
                assert!(
                    max == f32::NEG_INFINITY && sum.is_nan() && s[0].is_nan() && s[1] == 0.0,
                    "{}: {s:?}",
                    isa.name()
                );
            }
        }
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
            let heads = Heads { k: rows(&ka, d), v: rows(&va, dv), scale: 0.3, softcap, many: false };
            let q = noise(d * n, 3);
            let mask: Vec<f32> = noise(n_kv, 4);
            let mask16: Vec<f16> = mask.iter().map(|&v| f16::from_f32(v)).collect();
            let zeros = vec![0.0; n_kv];
            for (isa, many) in Isa::available().into_iter().flat_map(|isa| [(isa, false), (isa, true)]) {
                let heads = Heads { many, ..heads };
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
                unsafe { attention(isa, &heads, &queries, &mut Scratch::new()) };
                let together = out.clone();
                // SAFETY: as above.
                queries.chunks(1).for_each(|q| unsafe { attention(isa, &heads, q, &mut Scratch::new()) });
                let bits = |v: &[f32]| v.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
                assert_eq!(bits(&out), bits(&together), "{} {dtype} many {many}: alone and together", isa.name());
                for (i, query) in queries.iter().enumerate() {
                    let m16: Vec<f32> = mask16.iter().map(|v| v.to_f32()).collect();
                    let m = [&zeros, &mask, &m16][i % 3];
                    let want = reference(&heads, &k, &v, &q[i * d..], query.keys.clone(), m, query.sink);
                    for (c, want) in want.iter().enumerate() {
                        let got = f64::from(out[i * dv + c]);
                        assert!(
                            (got - want).abs() < 2e-5,
                            "{} {dtype} many {many} query {i} element {c}: {got}, not {want}",
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
        for (isa, many) in Isa::available().into_iter().flat_map(|isa| [(isa, false), (isa, true)]) {
            for (case, (n, keys)) in cases.iter().enumerate() {
                let heads = Heads { k: rows(&k), v: rows(&v), scale: 0.5, softcap: 0.0, many };
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
                        unsafe { attention(isa, &heads, queries, &mut Scratch::new()) };
                    }
                    out
                };
                let together = run(*n);
                for (i, (got, alone)) in together.chunks(d).zip(run(1).chunks(d)).enumerate() {
                    let want = reference(&heads, &k, &v, &q[i * d..], keys(i), &[0.0; 700], None);
                    for (c, want) in want.iter().enumerate() {
                        let what = format!("{} many {many} case {case} query {i} element {c}", isa.name());
                        assert_eq!(got[c].to_bits(), alone[c].to_bits(), "{what}: alone and together");
                        assert!((f64::from(got[c]) - want).abs() < 2e-5, "{what}: {}, not {want}", got[c]);
                    }
                }
            }
        }
    }
}
