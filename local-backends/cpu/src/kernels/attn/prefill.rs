//! Prefill: queries of several tokens.
//!
//! Queries go in groups of [`GROUP`], each in its lane of vectors from the first product to the last. Keys go in tiles of [`TILE`], which become
//! floats once for all groups ([`TileMemory`]). For each tile, a group takes four steps ([`attend`]):
//!
//! 1. Scores: a row of lanes for each key, the product of keys and queries ([`product`]).
//! 2. Soft cap, mask, and minus infinity where a query does not see a key ([`mask_scores`]).
//! 3. Scores become weights relative to the largest score so far; where that has grown, what was summed up before shrinks ([`softmax`]).
//! 4. Sums of values: a row of lanes for each element of a value, to which the product of values and weights is added ([`product`]).
//!
//! In the end sums are divided by the sums of weights, and turned back into a row for each query ([`write_results`]).
//!
//! In registers: both products are sums of numbers (of keys, of values) times vectors (of queries, of weights). [`ROWS`] rows of two or three
//! vectors are summed up at a time, so that a number meets all vectors, and a vector all rows, for one load.
//!
//! Rounding: everything is F32, and sums are fused where the instruction set does that. A score is summed up over the elements of its key in
//! their order. Weights of a tile are summed up by themselves first, as small numbers are lost to a large one. A sum of values begins with what
//! there is, made smaller once, and then has the keys of the tile in their order. No query's result depends on those beside it.

use super::{Floats, GROUP, Heads, MAX_LANES, QUERIES, Query, Running, TILE, as_floats, by_type, seen, softcap};
use crate::kernels::Isa;
use crate::kernels::ahead::Ahead;
use crate::kernels::mul_mat::{Rows, Scratch};
use crate::kernels::simd::{Element, Lanes, exp_negative, per_lanes};
use std::ops::Range;

/// Rows of a product that are summed up at a time with vectors of 16 or one shorter one, and half of them with several shorter ones.
const ROWS: usize = 8;
/// Elements of a value that lie side by side in a tile, before those of the next value.
const STRIP: usize = 16;
/// Keys after whose weights some of the next tile is prefetched.
const PREFETCH_KEYS: usize = 8;
const _: () = assert!(GROUP.is_multiple_of(MAX_LANES) && STRIP.is_multiple_of(ROWS) && TILE.is_multiple_of(ROWS));

/// Runs `$f` with as many vectors of lanes as registers allow at a time, until all of the `$lanes` had their turn: `$f::<L, 1>($lane, ...)`,
/// or with more than one.
macro_rules! by_vectors {
    ($lanes:expr, |$lane:ident| $f:ident($($arg:expr),*)) => {{
        let most = if L::N == MAX_LANES { 3 } else { 2 };
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
    /// The queries as columns, scaled: a row of lanes for each element.
    columns: &'a mut [f32],
    /// Weighted sums of values: a row of lanes for each element.
    sums: &'a mut [f32],
    softmax: Softmax,
}

/// What is kept of each query's softmax from tile to tile.
#[derive(Clone, Copy)]
struct Softmax {
    max: [f32; GROUP],
    sum: [f32; GROUP],
    /// What sums before the last tile were multiplied by: they shrink when there is a larger maximum.
    rescale: [f32; GROUP],
}

impl<'a> Group<'a> {
    /// `queries` before the first tile, in this memory.
    ///
    /// # Safety
    /// As [`attention`].
    unsafe fn new(isa: Isa, heads: &Heads<'_>, queries: &'a [Query], memory: &mut Floats<'a>) -> Group<'a> {
        let (d, padded) = (heads.k.k, heads.v.k.next_multiple_of(STRIP));
        let (columns, sums) = (memory.take(d * GROUP), memory.take(padded * GROUP));
        // SAFETY: the caller's queries, and d rows.
        unsafe { scaled_columns(isa, queries, d, heads.scale, columns.as_mut_ptr()) };
        sums.fill(0.0);
        let start = queries.iter().map(|q| q.keys.start).max().unwrap_or(0);
        let end = queries.iter().map(|q| q.keys.end).min().unwrap_or(0);
        let Running { max, sum } = Running::NEW;
        let softmax = Softmax { max: [max; GROUP], sum: [sum; GROUP], rescale: [0.0; GROUP] };
        Group { queries, seen: seen(queries), common: start..end, columns, sums, softmax }
    }

    /// Of `keys`, those from the first to the last that the queries see.
    fn seen_of(&self, keys: &Range<usize>) -> Range<usize> {
        keys.start.max(self.seen.start)..keys.end.min(self.seen.end)
    }
}

/// Where tiles are made floats.
struct TileMemory<'m> {
    k: &'m mut [f32],
    v: &'m mut [f32],
    /// For rows of a quantized type, before they are laid out.
    dequantized: &'m mut [f32],
}

/// Keys and values as floats: keys in rows, values in strips of [`STRIP`] elements.
struct Tile<'m> {
    keys: Range<usize>,
    k: &'m [f32],
    v: &'m [f32],
}

impl<'m> TileMemory<'m> {
    fn new(d: usize, dv: usize, mut memory: Floats<'m>) -> TileMemory<'m> {
        // Up to ROWS rows behind the last key are read, whose scores nobody uses.
        let k = memory.take((TILE + ROWS) * d);
        let v = memory.take(TILE * dv.next_multiple_of(STRIP));
        TileMemory { k, v, dequantized: memory.rest() }
    }

    /// The keys and values `keys`, at most [`TILE`].
    ///
    /// # Safety
    /// They are valid.
    unsafe fn load(&mut self, isa: Isa, heads: &Heads<'_>, keys: Range<usize>) -> Tile<'_> {
        let rows = heads.rows(&keys);
        // SAFETY: the caller's rows, and room for them.
        unsafe {
            let k = as_floats(heads.k, &rows, self.dequantized);
            by_type!(k.dtype, widen(isa, k, keys.len(), self.k.as_mut_ptr(), STRIP, k.k));
            let v = as_floats(heads.v, &rows, self.dequantized);
            by_type!(v.dtype, widen(isa, v, keys.len(), self.v.as_mut_ptr(), TILE * STRIP, STRIP));
        }
        Tile { keys, k: self.k, v: self.v }
    }
}

impl Tile<'_> {
    /// Keys from the `first` of the tile on, as rows of `d` numbers.
    fn keys_from(&self, first: usize, d: usize) -> Scalars {
        Scalars { data: self.k[first * d..].as_ptr(), block: STRIP * d, row: d, next: 1 }
    }

    /// Values from the `first` of the tile on: a row for each element, with a number for each value.
    fn values_from(&self, first: usize) -> Scalars {
        Scalars { data: self.v.as_ptr().wrapping_add(first * STRIP), block: TILE * STRIP, row: 1, next: STRIP }
    }
}

/// Floats that [`attention`] needs for so many queries.
pub(super) fn scratch_floats(d: usize, dv: usize, queries: usize) -> usize {
    // Shapes of models are far from the end of numbers; those of others get a number that no memory has.
    let padded = dv.saturating_add(STRIP);
    let rows = d.saturating_add(padded);
    let groups = queries.div_ceil(GROUP) * GROUP;
    let tiles = rows.saturating_add(d.max(dv)).saturating_add(GROUP).saturating_mul(TILE);
    rows.saturating_mul(groups).saturating_add(tiles).saturating_add(d.saturating_mul(ROWS))
}

/// [`attention`](super::attention) of at most [`QUERIES`].
///
/// # Safety
/// As there.
pub(super) unsafe fn attention(isa: Isa, heads: &Heads<'_>, queries: &[Query], scratch: &mut Scratch<'_>) {
    let (d, dv) = (heads.k.k, heads.v.k);
    let mut memory = Floats(scratch.floats(scratch_floats(d, dv, queries.len())));
    let mut groups: [Option<Group<'_>>; QUERIES.div_ceil(GROUP)] = [const { None }; _];
    for (group, queries) in groups.iter_mut().zip(queries.chunks(GROUP)) {
        // SAFETY: the caller's.
        *group = Some(unsafe { Group::new(isa, heads, queries, &mut memory) });
    }
    let scores = memory.take(TILE * GROUP);
    let mut tiles = TileMemory::new(d, dv, memory);
    let all = seen(queries);
    let mut next = all.start;
    while next < all.end && !heads.aborted() {
        let keys = next..(next / TILE * TILE + TILE).min(all.end);
        next = keys.end;
        let steps = groups.iter().flatten().map(|group| group.seen_of(&keys).len().div_ceil(PREFETCH_KEYS)).sum();
        if steps == 0 {
            continue;
        }
        // SAFETY: these keys are between the first and the last that are seen.
        let tile = unsafe { tiles.load(isa, heads, keys) };
        let mut ahead = [heads.k, heads.v].map(|r| {
            let rows = (all.end - next).min(TILE);
            Ahead::new(r.behind(heads.row(next)).data, r.stride, rows, r.bytes(), steps)
        });
        for group in groups.iter_mut().flatten() {
            // SAFETY: the caller's masks.
            unsafe { attend(isa, heads, group, &tile, scores, &mut ahead) };
        }
    }
    for group in groups.iter().flatten() {
        // SAFETY: the caller's outputs, and dv rows of sums.
        unsafe { write_results(isa, dv, group) };
    }
}

/// Attends a group to a tile. Prefetches on the way.
///
/// # Safety
/// Masks have the keys that their queries see.
unsafe fn attend(
    isa: Isa,
    heads: &Heads<'_>,
    group: &mut Group<'_>,
    tile: &Tile<'_>,
    scores: &mut [f32],
    ahead: &mut [Ahead; 2],
) {
    let keys = group.seen_of(&tile.keys);
    if keys.is_empty() {
        return;
    }
    let (d, dv, lanes) = (heads.k.k, heads.v.k, group.queries.len());
    let first = keys.start - tile.keys.start;
    let s = &mut scores[..keys.len().next_multiple_of(ROWS) * GROUP];
    // SAFETY: tiles, scores and sums have whole [`ROWS`]; there are d rows of columns, and as many of scores as there are keys.
    unsafe {
        let (a, x) = (tile.keys_from(first, d), group.columns.as_ptr());
        product(isa, Product { a, rows: keys.len(), n: d, x, rescale: None, out: s.as_mut_ptr() }, lanes);
        let s = &mut s[..keys.len() * GROUP];
        mask_scores(isa, heads, group, &keys, s);
        softmax(isa, s, lanes, &mut group.softmax, ahead);
        let (a, x, rescale) = (tile.values_from(first), s.as_ptr(), Some(group.softmax.rescale.as_ptr()));
        product(isa, Product { a, rows: dv, n: keys.len(), x, rescale, out: group.sums.as_mut_ptr() }, lanes);
    }
}

per_lanes! {
    /// The first `n` rows as floats: element e of row j at `e / STRIP * block + j * row + e % STRIP`.
    ///
    /// # Safety
    /// `from` has as many rows of W, and `to` room for them.
    unsafe fn widen<W>(from: Rows, n: usize, to: *mut f32, block: usize, row: usize) = widen_body
}

/// # Safety
/// As [`widen`], with L's features.
#[inline(always)]
unsafe fn widen_body<L: Lanes, W: Element>(from: Rows, n: usize, to: *mut f32, block: usize, row: usize) {
    let (k, vectors_end) = (from.k, from.k / L::N * L::N);
    // SAFETY: all indices are below the caller's.
    unsafe {
        for j in 0..n {
            let from = from.data.add(j * from.stride).cast::<W>();
            let at = |e: usize| to.add(e / STRIP * block + j * row + e % STRIP);
            for e in (0..vectors_end).step_by(L::N) {
                W::lanes::<L>(from.add(e)).store(at(e));
            }
            for e in vectors_end..k {
                *at(e) = (*from.add(e)).one();
            }
        }
    }
}

per_lanes! {
    /// Queries of `d` elements as columns, one beside another, times `scale`; up to whole vectors, zeros follow.
    ///
    /// # Safety
    /// Each query has d elements, and `to` room for d rows of [`GROUP`]; there are at most so many queries.
    unsafe fn scaled_columns(queries: &[Query], d: usize, scale: f32, to: *mut f32) = scaled_columns_body
}

/// # Safety
/// As [`scaled_columns`], with L's features.
#[inline(always)]
unsafe fn scaled_columns_body<L: Lanes>(queries: &[Query], d: usize, scale: f32, to: *mut f32) {
    let vectors_end = d / L::N * L::N;
    for (lane, queries) in (0..).step_by(L::N).zip(queries.chunks(L::N)) {
        // SAFETY: all indices are below the caller's.
        unsafe {
            for e in (0..vectors_end).step_by(L::N) {
                let mut block = [L::splat(0.0); MAX_LANES];
                for (row, query) in block.iter_mut().zip(queries) {
                    *row = L::splat(0.0).fma(L::load(query.q.add(e)), L::splat(scale));
                }
                L::transpose(&mut block[..L::N]);
                for (i, column) in block.iter().enumerate().take(L::N) {
                    column.store(to.add((e + i) * GROUP + lane));
                }
            }
            for e in vectors_end..d {
                for l in 0..L::N {
                    *to.add(e * GROUP + lane + l) = queries.get(l).map_or(0.0, |query| *query.q.add(e) * scale);
                }
            }
        }
    }
}

per_lanes! {
    /// Writes the sums of each query, `dv` rows of lanes, as its result.
    ///
    /// # Safety
    /// There are so many rows; each query's result has room for `dv` elements.
    unsafe fn write_results(dv: usize, group: &Group<'_>) = write_results_body
}

/// # Safety
/// As [`write_results`], with L's features.
#[inline(always)]
unsafe fn write_results_body<L: Lanes>(dv: usize, group: &Group<'_>) {
    let vectors_end = dv / L::N * L::N;
    let sums = group.sums.as_ptr();
    let mut normalizers = [0.0; GROUP];
    for (lane, query) in group.queries.iter().enumerate() {
        let running = Running { max: group.softmax.max[lane], sum: group.softmax.sum[lane] };
        normalizers[lane] = running.normalizer(query.sink);
    }
    for (lane, queries) in (0..).step_by(L::N).zip(group.queries.chunks(L::N)) {
        // SAFETY: all indices are below the caller's.
        unsafe {
            let normalizer = L::load(normalizers.as_ptr().add(lane));
            for e in (0..vectors_end).step_by(L::N) {
                let mut block = [L::splat(0.0); MAX_LANES];
                for (i, row) in block.iter_mut().enumerate().take(L::N) {
                    *row = L::splat(0.0).fma(L::load(sums.add((e + i) * GROUP + lane)), normalizer);
                }
                L::transpose(&mut block[..L::N]);
                for (query, result) in queries.iter().zip(block) {
                    result.store(query.out.add(e));
                }
            }
            for e in vectors_end..dv {
                for (l, query) in queries.iter().enumerate() {
                    *query.out.add(e) = *sums.add(e * GROUP + lane + l) * normalizers[lane + l];
                }
            }
        }
    }
}

/// Where numbers lie that vectors are multiplied by: blocks of [`STRIP`] rows.
#[derive(Clone, Copy)]
struct Scalars {
    data: *const f32,
    /// Floats from one block to the next, from one row to the next, and from one number of a row to the next.
    block: usize,
    row: usize,
    next: usize,
}

/// `out[r] = a[r, 0] * x[0] + a[r, 1] * x[1] + ...` for `rows` rows of `n` numbers, where rows of x and out are [`GROUP`] floats.
#[derive(Clone, Copy)]
struct Product {
    a: Scalars,
    rows: usize,
    n: usize,
    x: *const f32,
    /// If there is one: what was in `out` times that is added.
    rescale: Option<*const f32>,
    out: *mut f32,
}

impl Product {
    /// The product of the lanes from this one on.
    ///
    /// # Safety
    /// There are so many.
    #[inline(always)]
    unsafe fn at_lane(self, lane: usize) -> Product {
        // SAFETY: the caller's.
        unsafe {
            let rescale = self.rescale.map(|rescale| rescale.add(lane));
            Product { x: self.x.add(lane), rescale, out: self.out.add(lane), ..self }
        }
    }
}

per_lanes! {
    /// Computes the first `lanes` of each row.
    ///
    /// # Safety
    /// `a` has so many rows of `n` numbers, x n rows; up to whole [`ROWS`] those of `a` can be read, and those of `out` written.
    unsafe fn product(p: Product, lanes: usize) = product_body
}

/// # Safety
/// As [`product`], with L's features.
#[inline(always)]
unsafe fn product_body<L: Lanes>(p: Product, lanes: usize) {
    // SAFETY: lanes of the caller's rows.
    unsafe { by_vectors!(lanes, |lane| product_lanes(p.at_lane(lane))) };
}

/// [`product`] for `C` vectors of lanes.
///
/// # Safety
/// As there.
#[inline(always)]
unsafe fn product_lanes<L: Lanes, const C: usize>(p: Product) {
    let a = p.a;
    // As many sums as there are registers for, and enough not to wait for one another.
    let each = if L::N == MAX_LANES || C == 1 { ROWS } else { ROWS / 2 };
    for r in (0..p.rows).step_by(each) {
        // SAFETY: whole ROWS are the caller's.
        unsafe {
            let a = Scalars { data: a.data.add(r / STRIP * a.block + r % STRIP * a.row), ..a };
            let p = Product { a, out: p.out.add(r * GROUP), ..p };
            if each == ROWS {
                product_tile::<L, ROWS, C>(p);
            } else {
                product_tile::<L, { ROWS / 2 }, C>(p);
            }
        }
    }
}

/// [`product`] of the first `R` rows, within a block of `a`, for `C` vectors of lanes: the sums stay in registers.
///
/// # Safety
/// As there.
#[inline(always)]
unsafe fn product_tile<L: Lanes, const R: usize, const C: usize>(Product { a, n, x, rescale, out, .. }: Product) {
    // SAFETY: the caller's.
    unsafe {
        let mut sum = [[L::splat(0.0); C]; R];
        if let Some(rescale) = rescale {
            for (r, sum) in sum.iter_mut().enumerate() {
                for (c, sum) in sum.iter_mut().enumerate() {
                    *sum = sum.fma(L::load(out.add(r * GROUP + c * L::N)), L::load(rescale.add(c * L::N)));
                }
            }
        }
        for i in 0..n {
            let mut vectors = [L::splat(0.0); C];
            for (c, vector) in vectors.iter_mut().enumerate() {
                *vector = L::load(x.add(i * GROUP + c * L::N));
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
                sum.store(out.add(r * GROUP + c * L::N));
            }
        }
    }
}

/// Caps scores for `keys`, adds the mask, and makes them minus infinity where a query does not see a key.
///
/// # Safety
/// The masks have the keys that their queries see.
unsafe fn mask_scores(isa: Isa, heads: &Heads<'_>, group: &Group<'_>, keys: &Range<usize>, s: &mut [f32]) {
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
        let first = (seen.start - keys.start) * GROUP + lane;
        // SAFETY: the caller's.
        let row = unsafe { mask.from(seen.start, &mut row[..seen.len()]) };
        s.iter_mut().skip(first).step_by(GROUP).zip(row).for_each(|(s, mask)| *s += mask);
    }
    if keys.start < group.common.start || group.common.end < keys.end {
        // Of each query, the first key that it sees and the one behind the last, counted from the first here.
        let mut edges = [[0.0; GROUP]; 2];
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
    unsafe fn exclude(s: &mut [f32], edges: &[[f32; GROUP]; 2]) = exclude_body
}

/// # Safety
/// L's features.
#[inline(always)]
unsafe fn exclude_body<L: Lanes>(s: &mut [f32], edges: &[[f32; GROUP]; 2]) {
    for (key, s) in s.as_chunks_mut::<GROUP>().0.iter_mut().enumerate() {
        for lane in (0..GROUP).step_by(L::N) {
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
    /// Scores, a row of lanes for each key, become weights of the values. Prefetches on the way.
    ///
    /// # Safety
    /// None, but for the features.
    unsafe fn softmax(s: &mut [f32], lanes: usize, state: &mut Softmax, ahead: &mut [Ahead; 2]) = softmax_body
}

/// # Safety
/// L's features.
#[inline(always)]
unsafe fn softmax_body<L: Lanes>(s: &mut [f32], lanes: usize, state: &mut Softmax, ahead: &mut [Ahead; 2]) {
    // SAFETY: s has whole rows.
    unsafe { by_vectors!(lanes, |lane| softmax_lanes(s, lane, state, ahead)) };
}

/// [`softmax`] for `C` vectors of lanes, from `lane` on.
///
/// # Safety
/// L's features.
#[inline(always)]
unsafe fn softmax_lanes<L: Lanes, const C: usize>(
    s: &mut [f32],
    lane: usize,
    state: &mut Softmax,
    ahead: &mut [Ahead; 2],
) {
    // SAFETY: s has whole rows of lanes, as the state.
    unsafe {
        let before = load_lanes::<L, C>(&state.max, lane);
        let max = maximums(s, lane, before);
        let (mut minus_max, mut rescale) = (max, before);
        for c in 0..C {
            // A query that has seen nothing, or what is no number, has a maximum of minus infinity, and weights of zero, or no numbers.
            let (zero, least) = (L::splat(0.0), L::splat(f32::NEG_INFINITY));
            minus_max[c] = zero.fma(max[c].if_less(least, max[c], zero), L::splat(-1.0));
            rescale[c] = rescale[c].add(minus_max[c]);
        }
        rescale = exp_negative(rescale);
        // A tile's sum first, as small numbers are lost to a large one.
        let mut sum = exponentials(s, lane, minus_max, ahead);
        for (sum, (before, rescale)) in
            sum.iter_mut().zip(load_lanes::<L, C>(&state.sum, lane).into_iter().zip(rescale))
        {
            *sum = sum.fma(before, rescale);
        }
        store_lanes(&mut state.max, lane, max);
        store_lanes(&mut state.sum, lane, sum);
        store_lanes(&mut state.rescale, lane, rescale);
    }
}

/// The largest score of each query in `C` vectors of lanes, or `before` where that is larger.
///
/// # Safety
/// L's features; s has whole rows.
#[inline(always)]
unsafe fn maximums<L: Lanes, const C: usize>(s: &[f32], lane: usize, before: [L; C]) -> [L; C] {
    // SAFETY: the caller's.
    unsafe {
        // Two of them, as each waits for the key before.
        let (mut even, mut odd) = (before, before);
        let (pairs, rest) = s.as_chunks::<{ 2 * GROUP }>();
        for pair in pairs {
            let (first, second) = (load_lanes::<L, C>(pair, lane), load_lanes::<L, C>(&pair[GROUP..], lane));
            for c in 0..C {
                even[c] = even[c].or_larger(first[c]);
                odd[c] = odd[c].or_larger(second[c]);
            }
        }
        if !rest.is_empty() {
            let last = load_lanes::<L, C>(rest, lane);
            for c in 0..C {
                odd[c] = odd[c].or_larger(last[c]);
            }
        }
        for c in 0..C {
            even[c] = even[c].or_larger(odd[c]);
        }
        even
    }
}

/// `s = exp(s + minus_max)` in `C` vectors of lanes; gives their sums. Prefetches on the way, once for all lanes.
///
/// # Safety
/// L's features; s has whole rows.
#[inline(always)]
unsafe fn exponentials<L: Lanes, const C: usize>(
    s: &mut [f32],
    lane: usize,
    minus_max: [L; C],
    ahead: &mut [Ahead; 2],
) -> [L; C] {
    // SAFETY: the caller's.
    unsafe {
        let mut sum = [L::splat(0.0); C];
        for rows in s.chunks_mut(PREFETCH_KEYS * GROUP) {
            if lane == 0 {
                ahead.iter_mut().for_each(|ahead| ahead.more(1));
            }
            for row in rows.chunks_exact_mut(GROUP) {
                let mut x = load_lanes::<L, C>(row, lane);
                for (x, minus_max) in x.iter_mut().zip(minus_max) {
                    *x = x.add(minus_max);
                }
                let e = exp_negative(x);
                store_lanes(row, lane, e);
                for (sum, e) in sum.iter_mut().zip(e) {
                    *sum = sum.add(e);
                }
            }
        }
        sum
    }
}

/// `C` vectors of a row, from `lane` on.
///
/// # Safety
/// L's features; the row has them.
#[inline(always)]
unsafe fn load_lanes<L: Lanes, const C: usize>(row: &[f32], lane: usize) -> [L; C] {
    // SAFETY: the caller's.
    unsafe {
        let mut vectors = [L::splat(0.0); C];
        for (c, vector) in vectors.iter_mut().enumerate() {
            *vector = L::load(row.as_ptr().add(lane + c * L::N));
        }
        vectors
    }
}

/// The reverse of [`load_lanes`].
///
/// # Safety
/// As there.
#[inline(always)]
unsafe fn store_lanes<L: Lanes, const C: usize>(row: &mut [f32], lane: usize, vectors: [L; C]) {
    for (c, vector) in vectors.iter().enumerate() {
        // SAFETY: the caller's.
        unsafe { vector.store(row.as_mut_ptr().add(lane + c * L::N)) };
    }
}
