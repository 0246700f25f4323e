//! What the sources of a case hold: pseudo-random, and the same every time.

use outboard_core::quant::quantize_row;
use outboard_core::{DType, Layout};

/// What a leaf holds.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Fill {
    /// Real numbers between two.
    Uniform(f32, f32),
    /// Whole numbers, the second excluded, as real ones too: rows with many equal elements.
    Integers(i32, i32),
    /// Along each row different numbers below that.
    Distinct(i32),
    /// These, again and again.
    Ints(Vec<i32>),
    /// These, again and again.
    Floats(Vec<f32>),
    /// A mask: 0, or minus infinity with that probability; the first of each row is 0.
    Mask(f32),
    /// Between -1 and 1 in the first rows (of the second dimension), NaN in those from there.
    NanFrom(usize),
}

/// SplitMix64 (Steele et al., 2014).
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    /// Numbers that depend on a text only.
    pub(crate) fn of(text: &str) -> Random {
        // FNV-1a.
        Random(text.bytes().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3)))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// In `0..1`.
    pub(crate) fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 24) as f32
    }

    /// In `0..n`, or 0.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }

    /// One time of so many.
    pub(crate) fn chance(&mut self, one_in: usize) -> bool {
        self.below(one_in) == 0
    }

    /// One of some, of which there is at least one.
    pub(crate) fn choose<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }

    fn integer(&mut self, lo: i32, hi: i32) -> i32 {
        lo.wrapping_add(self.below(hi.abs_diff(lo) as usize) as i32)
    }
}

/// The bytes of a contiguous tensor.
pub(crate) fn bytes(layout: &Layout, fill: &Fill, random: &mut Random) -> Result<Vec<u8>, String> {
    let [n, n1, ..] = layout.ne();
    let mut out = Vec::with_capacity(layout.span());
    if layout.is_empty() {
        return Ok(out);
    }
    for row in 0..layout.rows() {
        if layout.dtype() == DType::I32 {
            ints(fill, n, row, random)?.iter().for_each(|v| out.extend_from_slice(&v.to_le_bytes()));
        } else {
            let start = out.len();
            let row_bytes = layout.dtype().row_bytes(n).ok_or("not whole blocks")?;
            out.resize(start + row_bytes, 0);
            let values = floats(fill, n, row, row % n1, random)?;
            quantize_row(layout.dtype(), &values, &mut out[start..]).map_err(|e| e.to_string())?;
        }
    }
    Ok(out)
}

fn ints(fill: &Fill, n: usize, row: usize, random: &mut Random) -> Result<Vec<i32>, String> {
    Ok(match fill {
        Fill::Integers(lo, hi) => (0..n).map(|_| random.integer(*lo, *hi)).collect(),
        Fill::Ints(list) if !list.is_empty() => (0..n).map(|i| list[(row * n + i) % list.len()]).collect(),
        Fill::Distinct(below) => {
            let mut all: Vec<i32> = (0..*below).collect();
            if n > all.len() {
                return Err(format!("{n} different numbers below {below}"));
            }
            (0..n).map(|_| all.swap_remove(random.below(all.len()))).collect()
        }
        other => return Err(format!("{other:?} gives no whole numbers")),
    })
}

fn floats(fill: &Fill, n: usize, row: usize, i1: usize, random: &mut Random) -> Result<Vec<f32>, String> {
    Ok(match fill {
        Fill::Uniform(lo, hi) => (0..n).map(|_| lo + (hi - lo) * random.unit()).collect(),
        Fill::Integers(lo, hi) => (0..n).map(|_| random.integer(*lo, *hi) as f32).collect(),
        Fill::Floats(list) if !list.is_empty() => (0..n).map(|i| list[(row * n + i) % list.len()]).collect(),
        Fill::Mask(p) => (0..n).map(|i| if i > 0 && random.unit() < *p { f32::NEG_INFINITY } else { 0.0 }).collect(),
        Fill::NanFrom(from) if i1 >= *from => vec![f32::NAN; n],
        Fill::NanFrom(_) => (0..n).map(|_| 2.0 * random.unit() - 1.0).collect(),
        other => return Err(format!("{other:?} gives no real numbers")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_every_time() {
        let layout = Layout::contiguous(DType::Q4_0, [64, 3, 1, 1]).unwrap();
        let make = |name| bytes(&layout, &Fill::Uniform(-1.0, 1.0), &mut Random::of(name)).unwrap();
        assert_eq!(make("a"), make("a"));
        assert_ne!(make("a"), make("b"));
        assert_eq!(make("a").len(), layout.span());
        let ids = Layout::contiguous(DType::I32, [5, 2, 1, 1]).unwrap();
        let ids = bytes(&ids, &Fill::Distinct(5), &mut Random::of("x")).unwrap();
        let mut row: Vec<i32> = ids[..20].as_chunks().0.iter().map(|b| i32::from_le_bytes(*b)).collect();
        row.sort_unstable();
        assert_eq!(row, [0, 1, 2, 3, 4]);
    }
}
