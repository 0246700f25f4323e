//! Queries of several tokens: they lie in the lanes of vectors, from the first product to the last.
//!
//! A number of a key meets a vector of queries, and so does a number of a value: both products are sums of numbers times vectors, and
//! maximum, exponential and sum of each query stay in its lane. Keys and values become floats once for all queries.

use super::{BESIDE, Heads, MOST_LANES, QUERIES, Query, Running, TILE, as_floats, by_type, seen, softcap};
use crate::kernels::Isa;
use crate::kernels::ahead::Ahead;
use crate::kernels::mul_mat::{Rows, Scratch};
use crate::kernels::simd::{Element, Lanes, exp_negative, per_lanes};
use std::ops::Range;

/// Rows of a product that are summed up at a time with vectors of 16, and half of them with shorter ones.
const ROWS: usize = 8;
/// Elements of a value that lie together in a tile, before those of the next value.
const TOGETHER: usize = 16;
/// Keys after whose weights some of the next tile is asked for.
const STEP: usize = 8;
const _: () = assert!(BESIDE.is_multiple_of(MOST_LANES) && TOGETHER.is_multiple_of(ROWS) && TILE.is_multiple_of(ROWS));

/// Runs `$f` with as many vectors of lanes as registers allow at a time, until all of the `$lanes` had their turn: `$f::<L, 1>($lane, ...)`,
/// or with more than one.
macro_rules! by_vectors {
    ($lanes:expr, |$lane:ident| $f:ident($($arg:expr),*)) => {{
        let most = if L::N == MOST_LANES { 3 } else { 2 };
        for $lane in (0..$lanes).step_by(most * L::N) {
            match ($lanes - $lane).div_ceil(L::N).min(most) {
                1 => $f::<L, 1>($($arg),*),
                2 => $f::<L, 2>($($arg),*),
                _ => $f::<L, 3>($($arg),*),
            }
        }
    }};
}

/// Queries that are worked on together, each in its lane.
struct Group<'a> {
    queries: &'a [Query],
    /// From the first to the last key that they see.
    seen: Range<usize>,
    /// Keys that all of them see.
    common: Range<usize>,
    lanes: State,
}

/// What is kept of each query from tile to tile.
#[derive(Clone, Copy)]
struct State {
    max: [f32; BESIDE],
    sum: [f32; BESIDE],
    /// What the last tile made of sums before it: they shrink when there is a larger maximum.
    kept: [f32; BESIDE],
}

impl<'a> Group<'a> {
    fn new(queries: &'a [Query]) -> Group<'a> {
        let start = queries.iter().map(|q| q.keys.start).max().unwrap_or(0);
        let end = queries.iter().map(|q| q.keys.end).min().unwrap_or(0);
        let Running { max, sum } = Running::NEW;
        let lanes = State { max: [max; BESIDE], sum: [sum; BESIDE], kept: [0.0; BESIDE] };
        Group { queries, seen: seen(queries), common: start..end, lanes }
    }
}

/// Where numbers lie that vectors are multiplied by: blocks of [`TOGETHER`] rows.
#[derive(Clone, Copy)]
struct Numbers {
    data: *const f32,
    /// Floats from one block to the next, from one row to the next, and from one number of a row to the next.
    block: usize,
    row: usize,
    next: usize,
}

/// Floats that [`attention`] needs for so many queries.
pub(super) fn scratch_floats(d: usize, dv: usize, queries: usize) -> usize {
    // Shapes of models are far from the end of numbers; those of others get a number that no memory has.
    let padded = dv.saturating_add(TOGETHER);
    let rows = d.saturating_add(padded);
    let groups = queries.div_ceil(BESIDE) * BESIDE;
    let tiles = rows.saturating_add(d.max(dv)).saturating_add(BESIDE).saturating_mul(TILE);
    rows.saturating_mul(groups).saturating_add(tiles).saturating_add(d.saturating_mul(ROWS))
}

/// [`attention`](super::attention) of at most [`QUERIES`].
///
/// # Safety
/// As there.
pub(super) unsafe fn attention(isa: Isa, heads: &Heads<'_>, queries: &[Query], scratch: &mut Scratch<'_>) {
    let (d, dv) = (heads.k.k, heads.v.k);
    let padded = dv.next_multiple_of(TOGETHER);
    let n = queries.len().div_ceil(BESIDE);
    let memory = scratch.floats(scratch_floats(d, dv, queries.len()));
    let (turned, memory) = memory.split_at_mut(n * d * BESIDE);
    let (acc, memory) = memory.split_at_mut(n * padded * BESIDE);
    let (scores, memory) = memory.split_at_mut(TILE * BESIDE);
    // Up to ROWS rows behind the last key are read, whose scores nobody uses.
    let (k_tile, memory) = memory.split_at_mut((TILE + ROWS) * d);
    let (v_tile, plain) = memory.split_at_mut(TILE * padded);
    acc.fill(0.0);
    let mut groups: [Option<Group<'_>>; QUERIES.div_ceil(BESIDE)] = [const { None }; _];
    for (i, (group, queries)) in groups.iter_mut().zip(queries.chunks(BESIDE)).enumerate() {
        *group = Some(Group::new(queries));
        // SAFETY: the caller's queries; turned has d rows for each group.
        unsafe { turn(isa, queries, d, heads.scale, turned[i * d * BESIDE..].as_mut_ptr()) };
    }
    let all = seen(queries);
    let mut next = all.start;
    while next < all.end && !heads.aborted() {
        let keys = next..(next / TILE * TILE + TILE).min(all.end);
        next = keys.end;
        let of = |group: &Group<'_>| keys.start.max(group.seen.start)..keys.end.min(group.seen.end);
        let steps = groups.iter().flatten().map(|group| of(group).len().div_ceil(STEP)).sum();
        if steps == 0 {
            continue;
        }
        // SAFETY: these keys are between the first and the last that are seen; the tiles have room for them.
        unsafe {
            let k = as_floats(heads.k, &keys, plain);
            by_type!(k.dtype, widen(isa, k, keys.len(), k_tile.as_mut_ptr(), TOGETHER, d));
            let v = as_floats(heads.v, &keys, plain);
            by_type!(v.dtype, widen(isa, v, keys.len(), v_tile.as_mut_ptr(), TILE * TOGETHER, TOGETHER));
        }
        let mut ahead = [heads.k, heads.v].map(|r| {
            let rows = (all.end - next).min(TILE);
            Ahead::new(r.behind(next).data, r.stride, rows, r.bytes(), steps)
        });
        for (i, group) in groups.iter_mut().flatten().enumerate() {
            let some = of(group);
            if some.is_empty() {
                continue;
            }
            let (skip, lanes) = (some.start - keys.start, group.queries.len());
            let s = &mut scores[..some.len().next_multiple_of(ROWS) * BESIDE];
            let (q, acc) = (&turned[i * d * BESIDE..], &mut acc[i * padded * BESIDE..]);
            let (k, v) = (k_tile.as_ptr().wrapping_add(skip * d), v_tile.as_ptr().wrapping_add(skip * TOGETHER));
            let k = Numbers { data: k, block: TOGETHER * d, row: d, next: 1 };
            let v = Numbers { data: v, block: TILE * TOGETHER, row: 1, next: TOGETHER };
            // SAFETY: tiles, scores and sums have whole [`ROWS`], turned has d and scores as many as there are keys.
            unsafe {
                product(isa, k, some.len(), d, q.as_ptr(), lanes, None, s.as_mut_ptr());
                let s = &mut s[..some.len() * BESIDE];
                prepare(isa, heads, group, &some, s);
                weigh(isa, s, lanes, &mut group.lanes, &mut ahead);
                let kept = Some(group.lanes.kept.as_ptr());
                product(isa, v, dv, some.len(), s.as_ptr(), lanes, kept, acc.as_mut_ptr());
            }
        }
    }
    for (group, acc) in groups.iter().flatten().zip(acc.chunks_exact((padded * BESIDE).max(1))) {
        // SAFETY: the caller's outputs; acc has dv rows.
        unsafe { turn_back(isa, acc.as_ptr(), dv, group) };
    }
}

per_lanes! {
    /// The first `n` rows as floats: element e of row j at `e / TOGETHER * block + j * row + e % TOGETHER`.
    ///
    /// # Safety
    /// `from` has as many rows of W, and `to` room for them.
    unsafe fn widen<W>(from: Rows, n: usize, to: *mut f32, block: usize, row: usize) = widen_body
}

/// # Safety
/// As [`widen`], with L's features.
#[inline(always)]
unsafe fn widen_body<L: Lanes, W: Element>(from: Rows, n: usize, to: *mut f32, block: usize, row: usize) {
    let (k, whole) = (from.k, from.k / L::N * L::N);
    // SAFETY: all indices are below the caller's.
    unsafe {
        for j in 0..n {
            let from = from.data.add(j * from.stride).cast::<W>();
            let at = |e: usize| to.add(e / TOGETHER * block + j * row + e % TOGETHER);
            for e in (0..whole).step_by(L::N) {
                W::lanes::<L>(from.add(e)).store(at(e));
            }
            for e in whole..k {
                *at(e) = (*from.add(e)).one();
            }
        }
    }
}

per_lanes! {
    /// Queries of `d` elements as columns, one beside another, times `scale`; up to whole vectors, zeros follow.
    ///
    /// # Safety
    /// Each query has d elements, and `to` room for d rows of [`BESIDE`]; there are at most so many queries.
    unsafe fn turn(queries: &[Query], d: usize, scale: f32, to: *mut f32) = turn_body
}

/// # Safety
/// As [`turn`], with L's features.
#[inline(always)]
unsafe fn turn_body<L: Lanes>(queries: &[Query], d: usize, scale: f32, to: *mut f32) {
    let whole = d / L::N * L::N;
    for (lane, queries) in (0..).step_by(L::N).zip(queries.chunks(L::N)) {
        // SAFETY: all indices are below the caller's.
        unsafe {
            for e in (0..whole).step_by(L::N) {
                let mut block = [L::splat(0.0); MOST_LANES];
                for (row, query) in block.iter_mut().zip(queries) {
                    *row = L::splat(0.0).fma(L::load(query.q.add(e)), L::splat(scale));
                }
                L::turn(&mut block[..L::N]);
                for (i, column) in block.iter().enumerate().take(L::N) {
                    column.store(to.add((e + i) * BESIDE + lane));
                }
            }
            for e in whole..d {
                for l in 0..L::N {
                    *to.add(e * BESIDE + lane + l) = queries.get(l).map_or(0.0, |query| *query.q.add(e) * scale);
                }
            }
        }
    }
}

per_lanes! {
    /// Sums over the values of each query, `dv` rows of lanes, as its result.
    ///
    /// # Safety
    /// There are so many rows; each query's result has room for `dv` elements.
    unsafe fn turn_back(sums: *const f32, dv: usize, group: &Group<'_>) = turn_back_body
}

/// # Safety
/// As [`turn_back`], with L's features.
#[inline(always)]
unsafe fn turn_back_body<L: Lanes>(sums: *const f32, dv: usize, group: &Group<'_>) {
    let whole = dv / L::N * L::N;
    let mut shares = [0.0; BESIDE];
    for ((share, query), (max, sum)) in
        shares.iter_mut().zip(group.queries).zip(group.lanes.max.iter().zip(&group.lanes.sum))
    {
        *share = Running { max: *max, sum: *sum }.share(query.sink);
    }
    for (lane, queries) in (0..).step_by(L::N).zip(group.queries.chunks(L::N)) {
        // SAFETY: all indices are below the caller's.
        unsafe {
            let share = L::load(shares.as_ptr().add(lane));
            for e in (0..whole).step_by(L::N) {
                let mut block = [L::splat(0.0); MOST_LANES];
                for (i, row) in block.iter_mut().enumerate().take(L::N) {
                    *row = L::splat(0.0).fma(L::load(sums.add((e + i) * BESIDE + lane)), share);
                }
                L::turn(&mut block[..L::N]);
                for (query, result) in queries.iter().zip(block) {
                    result.store(query.out.add(e));
                }
            }
            for e in whole..dv {
                for (l, query) in queries.iter().enumerate() {
                    *query.out.add(e) = *sums.add(e * BESIDE + lane + l) * shares[lane + l];
                }
            }
        }
    }
}

per_lanes! {
    /// `out[r] = a[r, 0] * x[0] + a[r, 1] * x[1] + ...`, where rows of x and out are [`BESIDE`] floats, of which the first `lanes` count.
    /// With `kept`, what was in `out` times that is added.
    ///
    /// # Safety
    /// `a` has `rows` rows of `n` numbers, x n rows; up to whole [`ROWS`] those of `a` can be read, and those of `out` written.
    unsafe fn product(a: Numbers, rows: usize, n: usize, x: *const f32, lanes: usize, kept: Option<*const f32>, out: *mut f32)
        = product_body
}

/// # Safety
/// As [`product`], with L's features.
#[inline(always)]
unsafe fn product_body<L: Lanes>(
    a: Numbers,
    rows: usize,
    n: usize,
    x: *const f32,
    lanes: usize,
    kept: Option<*const f32>,
    out: *mut f32,
) {
    // SAFETY: lanes of the caller's rows.
    unsafe {
        by_vectors!(lanes, |lane| strip(a, rows, n, x.add(lane), kept.map(|kept| kept.add(lane)), out.add(lane)));
    }
}

/// [`product`] for `C` vectors of lanes.
///
/// # Safety
/// As there.
#[inline(always)]
unsafe fn strip<L: Lanes, const C: usize>(
    a: Numbers,
    rows: usize,
    n: usize,
    x: *const f32,
    kept: Option<*const f32>,
    out: *mut f32,
) {
    let each = if L::N == MOST_LANES { ROWS } else { ROWS / 2 };
    for r in (0..rows).step_by(each) {
        // SAFETY: whole ROWS are the caller's.
        unsafe {
            let a = Numbers { data: a.data.add(r / TOGETHER * a.block + r % TOGETHER * a.row), ..a };
            let out = out.add(r * BESIDE);
            if L::N == MOST_LANES {
                tile::<L, ROWS, C>(a, n, x, kept, out);
            } else {
                tile::<L, { ROWS / 2 }, C>(a, n, x, kept, out);
            }
        }
    }
}

/// [`product`] of `R` rows, within a block of `a`, for `C` vectors of lanes.
///
/// # Safety
/// As there.
#[inline(always)]
unsafe fn tile<L: Lanes, const R: usize, const C: usize>(
    a: Numbers,
    n: usize,
    x: *const f32,
    kept: Option<*const f32>,
    out: *mut f32,
) {
    // SAFETY: the caller's.
    unsafe {
        let mut sum = [[L::splat(0.0); C]; R];
        if let Some(kept) = kept {
            for (r, sum) in sum.iter_mut().enumerate() {
                for (c, sum) in sum.iter_mut().enumerate() {
                    *sum = sum.fma(L::load(out.add(r * BESIDE + c * L::N)), L::load(kept.add(c * L::N)));
                }
            }
        }
        for i in 0..n {
            let mut vectors = [L::splat(0.0); C];
            for (c, vector) in vectors.iter_mut().enumerate() {
                *vector = L::load(x.add(i * BESIDE + c * L::N));
            }
            for (r, sum) in sum.iter_mut().enumerate() {
                let number = L::splat(*a.data.add(r * a.row + i * a.next));
                for (sum, vector) in sum.iter_mut().zip(vectors) {
                    *sum = sum.fma(number, vector);
                }
            }
        }
        for (r, sum) in sum.iter().enumerate() {
            for (c, sum) in sum.iter().enumerate() {
                sum.store(out.add(r * BESIDE + c * L::N));
            }
        }
    }
}

/// What is done to scores for `keys` before their softmax: they are capped, the mask is added, and where a query does not see a key, they are
/// minus infinity.
///
/// # Safety
/// The masks have the keys that their queries see.
unsafe fn prepare(isa: Isa, heads: &Heads<'_>, group: &Group<'_>, keys: &Range<usize>, s: &mut [f32]) {
    if heads.softcap != 0.0 {
        softcap(isa, s, heads.softcap);
    }
    let mut row = [0.0; TILE];
    for (lane, query) in group.queries.iter().enumerate() {
        let Some(mask) = query.mask else { continue };
        let seen = query.keys.start.max(keys.start)..query.keys.end.min(keys.end);
        if seen.is_empty() {
            continue;
        }
        let first = (seen.start - keys.start) * BESIDE + lane;
        // SAFETY: the caller's.
        let row = unsafe { mask.from(seen.start, &mut row[..seen.len()]) };
        s.iter_mut().skip(first).step_by(BESIDE).zip(row).for_each(|(s, mask)| *s += mask);
    }
    if keys.start < group.common.start || group.common.end < keys.end {
        // Of each query, the first key that it sees and the one behind the last, counted from the first here.
        let mut edges = [[0.0; BESIDE]; 2];
        for (lane, query) in group.queries.iter().enumerate() {
            for (edges, key) in edges.iter_mut().zip([query.keys.start, query.keys.end]) {
                edges[lane] = key.clamp(keys.start, keys.end).abs_diff(keys.start) as f32;
            }
        }
        // SAFETY: both have whole rows of lanes.
        unsafe { exclude(isa, s, &edges) };
    }
}

per_lanes! {
    /// Scores become minus infinity before the first and from the second of the `edges` on.
    ///
    /// # Safety
    /// None, but for the features.
    unsafe fn exclude(s: &mut [f32], edges: &[[f32; BESIDE]; 2]) = exclude_body
}

/// # Safety
/// L's features.
#[inline(always)]
unsafe fn exclude_body<L: Lanes>(s: &mut [f32], edges: &[[f32; BESIDE]; 2]) {
    for (key, s) in s.as_chunks_mut::<BESIDE>().0.iter_mut().enumerate() {
        for lane in (0..BESIDE).step_by(L::N) {
            // SAFETY: all have so many lanes.
            unsafe {
                let [from, to] = edges.each_ref().map(|edge| L::load(edge.as_ptr().add(lane)));
                let (s, none) = (s.as_mut_ptr().add(lane), L::splat(f32::NEG_INFINITY));
                let key = L::splat(key as f32 + 0.5);
                L::load(s).if_less(from, key, none).if_less(key, to, none).store(s);
            }
        }
    }
}

per_lanes! {
    /// Scores, a row of lanes for each key, become weights of the values. Asks for memory on the way.
    ///
    /// # Safety
    /// None, but for the features.
    unsafe fn weigh(s: &mut [f32], lanes: usize, state: &mut State, ahead: &mut [Ahead; 2]) = weigh_body
}

/// # Safety
/// L's features.
#[inline(always)]
unsafe fn weigh_body<L: Lanes>(s: &mut [f32], lanes: usize, state: &mut State, ahead: &mut [Ahead; 2]) {
    // SAFETY: s has whole rows.
    unsafe { by_vectors!(lanes, |lane| weigh_some(s, lane, state, ahead)) };
}

/// [`weigh`] for `C` vectors of lanes, from `lane` on.
///
/// # Safety
/// L's features.
#[inline(always)]
unsafe fn weigh_some<L: Lanes, const C: usize>(s: &mut [f32], lane: usize, state: &mut State, ahead: &mut [Ahead; 2]) {
    // SAFETY: s has whole rows of lanes, as the state.
    unsafe {
        let load = |row: &[f32]| {
            let mut vectors = [L::splat(0.0); C];
            for (c, vector) in vectors.iter_mut().enumerate() {
                *vector = L::load(row.as_ptr().add(lane + c * L::N));
            }
            vectors
        };
        let store = |row: &mut [f32], vectors: [L; C]| {
            for (c, vector) in vectors.iter().enumerate() {
                vector.store(row.as_mut_ptr().add(lane + c * L::N));
            }
        };
        let before = load(&state.max);
        // Two of them, as each waits for the key before.
        let (mut max, mut odd) = (before, before);
        let (pairs, rest) = s.as_chunks::<{ 2 * BESIDE }>();
        for two in pairs {
            let (first, second) = (load(two), load(&two[BESIDE..]));
            for c in 0..C {
                max[c] = max[c].or_larger(first[c]);
                odd[c] = odd[c].or_larger(second[c]);
            }
        }
        if !rest.is_empty() {
            let last = load(rest);
            for c in 0..C {
                odd[c] = odd[c].or_larger(last[c]);
            }
        }
        let (mut minus, mut kept, mut sum) = (max, before, [L::splat(0.0); C]);
        for c in 0..C {
            max[c] = max[c].or_larger(odd[c]);
            // A query that has seen nothing, or what is no number, has a maximum of minus infinity, and weights of zero, or no numbers.
            let (zero, least) = (L::splat(0.0), L::splat(f32::NEG_INFINITY));
            minus[c] = zero.fma(max[c].if_less(least, max[c], zero), L::splat(-1.0));
            kept[c] = kept[c].add(minus[c]);
        }
        kept = exp_negative(kept);
        for some in s.chunks_mut(STEP * BESIDE) {
            if lane == 0 {
                ahead.iter_mut().for_each(|ahead| ahead.more(1));
            }
            for row in some.chunks_exact_mut(BESIDE) {
                let mut x = load(row);
                for (x, minus) in x.iter_mut().zip(minus) {
                    *x = x.add(minus);
                }
                let e = exp_negative(x);
                store(row, e);
                for (sum, e) in sum.iter_mut().zip(e) {
                    *sum = sum.add(e);
                }
            }
        }
        // A tile's sum first, as small numbers are lost to a large one.
        for (sum, (before, kept)) in sum.iter_mut().zip(load(&state.sum).into_iter().zip(kept)) {
            *sum = sum.fma(before, kept);
        }
        store(&mut state.max, max);
        store(&mut state.sum, sum);
        store(&mut state.kept, kept);
    }
}
