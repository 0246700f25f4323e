//! Decode: the queries of one token. Keys are read where they lie, several elements in a vector; each query has its scores in a row.

use super::{Floats, GROUP, Heads, MAX_LANES, Query, Running, TILE, as_floats, by_type, seen, softcap};
use crate::kernels::Isa;
use crate::kernels::ahead::{piece, rows_on};
use crate::kernels::float::mul_mat_float;
use crate::kernels::mul_mat::{Out, Rows, Scratch};
use crate::kernels::rows;
use crate::kernels::simd::{Element, Lanes, exp_negative, per_lanes};
use outboard_core::op::BinaryKind;
use std::ops::Range;

/// Floats that [`attention`] needs.
pub(super) fn scratch_floats(d: usize, dv: usize, n: usize) -> usize {
    let per_query = d.saturating_add(dv);
    per_query.saturating_mul(n.saturating_add(TILE)).saturating_add(GROUP * TILE + TILE)
}

/// [`attention`](super::attention) of at most [`GROUP`].
///
/// # Safety
/// As there.
pub(super) unsafe fn attention(isa: Isa, heads: &Heads<'_>, queries: &[Query], scratch: &mut Scratch<'_>) {
    let (n, d, dv) = (queries.len(), heads.k.k, heads.v.k);
    let mut memory = Floats(scratch.floats(scratch_floats(d, dv, n)));
    let (q, acc, scores) = (memory.take(n * d), memory.take(n * dv), memory.take(GROUP * TILE));
    let (k_tile, v_tile, mask_tile) = (memory.take(TILE * d), memory.take(TILE * dv), memory.take(TILE));
    acc.fill(0.0);
    for (to, query) in q.chunks_exact_mut(d.max(1)).zip(queries) {
        // SAFETY: the caller's d floats.
        to.copy_from_slice(unsafe { std::slice::from_raw_parts(query.q, d) });
        rows::scale(isa, to, heads.scale, 0.0);
    }
    let mut running = [Running::NEW; GROUP];
    let all = seen(queries);
    let mut next = all.start;
    while next < all.end && !heads.aborted() {
        let keys = next..(next / TILE * TILE + TILE).min(all.end);
        next = keys.end;
        let rows = heads.rows(&keys);
        // SAFETY: these keys are between the first and the last that are seen.
        let (k, v) = unsafe { (as_floats(heads.k, &rows, k_tile), as_floats(heads.v, &rows, v_tile)) };
        // SAFETY: k has as many rows, q as many columns, and there is room for both.
        unsafe {
            let out = Out { data: scores.as_mut_ptr(), stride: TILE };
            mul_mat_float(isa, k, 0..keys.len(), q.as_ptr(), d, n, out);
        }
        for (i, query) in queries.iter().enumerate() {
            let s = &mut scores[i * TILE..][..keys.len()];
            let acc = &mut acc[i * dv..][..dv];
            // SAFETY: the ISA has its features; the mask is the caller's.
            unsafe { weigh(isa, heads, query, &keys, s, mask_tile, &mut running[i], acc) };
        }
        let p = Factors { data: scores.as_ptr(), stride: TILE, n };
        let out = Out { data: acc.as_mut_ptr(), stride: dv };
        // Values that were made floats are in the nearest cache.
        let on = if v.data == v_tile.as_ptr().cast() { 0 } else { rows_on(v.stride, 1) };
        // SAFETY: v has as many rows; scores and acc have those of the queries.
        unsafe { by_type!(v.dtype, add_rows(isa, p, v, keys.len(), on, out)) };
    }
    for ((query, running), acc) in queries.iter().zip(running).zip(acc.chunks_exact_mut(dv.max(1))) {
        rows::scale(isa, acc, running.normalizer(query.sink), 0.0);
        // SAFETY: the caller's dv floats.
        unsafe { std::ptr::copy_nonoverlapping(acc.as_ptr(), query.out, dv) };
    }
}

/// Scores of a query for `keys` become weights of their values: zero where it sees none. What it got before, `acc`, shrinks if a score
/// is larger than all before.
///
/// # Safety
/// The mask has the keys that the query sees.
#[allow(clippy::too_many_arguments)]
unsafe fn weigh(
    isa: Isa,
    heads: &Heads<'_>,
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
        let mask = unsafe { mask.from(from, mask_tile) };
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
    let mut last = [f32::NEG_INFINITY; MAX_LANES];
    let (s, rest) = s.split_at_mut(s.len() / L::N * L::N);
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
            [sum] = exp_negative([L::load(last.as_ptr()).add(minus)]);
            sum.store(last.as_mut_ptr());
            rest.copy_from_slice(&last[..rest.len()]);
        }
        for v in s.chunks_exact_mut(L::N) {
            let [e] = exp_negative([L::load(v.as_ptr()).add(minus)]);
            e.store(v.as_mut_ptr());
            sum = sum.add(e);
        }
        (m, sum.sum())
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
    /// `acc[i] += sum_j p[i, j] * v[j]` for all rows of p, j being below `n`. Where `on` is not 0, rows of v so many bytes on are asked for.
    ///
    /// # Safety
    /// `v` has `n` rows of W, those of p are as long, and `acc` has as many as p, as long as those of v.
    unsafe fn add_rows<W>(p: Factors, v: Rows, n: usize, on: usize, acc: Out) = add_rows_body
}

/// # Safety
/// As [`add_rows`], with L's features.
#[inline(always)]
unsafe fn add_rows_body<L: Lanes, W: Element>(p: Factors, v: Rows, n: usize, on: usize, acc: Out) {
    // SAFETY: all indices are below the caller's.
    unsafe {
        let mut c = 0;
        // Only where there are 32 registers.
        while L::N == 16 && c + 4 * L::N <= v.k {
            strip::<L, W, 4>(p, v, c, n, on, acc);
            c += 4 * L::N;
        }
        while c + 2 * L::N <= v.k {
            strip::<L, W, 2>(p, v, c, n, on, acc);
            c += 2 * L::N;
        }
        while c + L::N <= v.k {
            strip::<L, W, 1>(p, v, c, n, on, acc);
            c += L::N;
        }
        for c in c..v.k {
            for r in 0..p.n {
                let sum = acc.data.add(r * acc.stride + c);
                for j in 0..n {
                    *sum += *p.from(r).add(j) * (*v.data.add(j * v.stride).cast::<W>().add(c)).one();
                }
            }
        }
    }
}

/// All rows of p times `C` vectors of each of the `n` rows of v, from element `c` on: few enough to stay in the nearest cache meanwhile.
///
/// # Safety
/// As [`add_rows_body`].
#[inline(always)]
unsafe fn strip<L: Lanes, W: Element, const C: usize>(p: Factors, v: Rows, c: usize, n: usize, on: usize, acc: Out) {
    for i in (0..p.n).step_by(4) {
        let on = if i == 0 { on } else { 0 };
        // SAFETY: the caller's rows.
        unsafe {
            let (here, acc) = (Factors { data: p.from(i), ..p }, Out { data: acc.data.add(i * acc.stride), ..acc });
            match p.n - i {
                1 => tile::<L, W, 1, C>(here, v, c, n, on, acc),
                2 => tile::<L, W, 2, C>(here, v, c, n, on, acc),
                3 => tile::<L, W, 3, C>(here, v, c, n, on, acc),
                _ => tile::<L, W, 4, C>(here, v, c, n, on, acc),
            }
        }
    }
}

/// `R` rows of p times `C` vectors of each of the `n` rows of v, from element `c` on.
///
/// # Safety
/// As [`add_rows_body`].
#[inline(always)]
unsafe fn tile<L: Lanes, W: Element, const R: usize, const C: usize>(
    p: Factors,
    v: Rows,
    c: usize,
    n: usize,
    on: usize,
    acc: Out,
) {
    // SAFETY: the caller's.
    unsafe {
        let mut sum = [[L::splat(0.0); C]; R];
        for (r, sum) in sum.iter_mut().enumerate() {
            for (l, sum) in sum.iter_mut().enumerate() {
                *sum = L::load(acc.data.add(r * acc.stride + c + l * L::N));
            }
        }
        for j in 0..n {
            let row = v.data.add(j * v.stride).cast::<W>().add(c);
            if on != 0 {
                piece(row.cast::<u8>().wrapping_add(on), C * L::N * size_of::<W>());
            }
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
    use crate::kernels::format::tests::noise;

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
}
