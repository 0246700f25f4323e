//! Memory that is read soon, asked for while there is other work: rows that lie apart, or are gone through side by side, are more than
//! a processor foresees itself ([`Ahead`], [`piece`]), and what it foresees of a stream ends with its page ([`stream`]). Little by
//! little, as it waits when it is asked for too much at a time.

/// Bytes that come from memory together.
pub(super) const LINE: usize = 64;
/// Parts of a line that are counted.
const FRACTION: usize = 1 << 8;

/// Bytes from where a stream is read to what is asked for: a page, so that the next one is always on its way, pages of 4 KiB being as
/// far as a processor looks by itself. With 2560 decoding is 5 % slower, with 8192 as fast.
const STREAM: usize = 4096;

/// How far ahead [`piece`] asks, in bytes, where a few rows are read side by side, or a piece of each. 24 KiB are as good; asking into
/// the first cache is 3 to 10 % slower.
const ROWS: usize = 8192;

/// Rows that come next.
pub(super) struct Ahead {
    /// The line to ask for next.
    line: *const u8,
    /// Lines of a row, and those of this one that were asked for.
    row: usize,
    at: usize,
    /// From behind the last line of a row to the next row.
    gap: usize,
    /// Lines to ask for.
    left: usize,
    /// Lines to ask for in a step, in fractions, and those that are due.
    each: usize,
    due: usize,
}

impl Ahead {
    /// `rows` rows of `bytes` from `first` on, `stride` apart, in `steps` steps.
    pub(super) fn new(first: *const u8, stride: usize, rows: usize, bytes: usize, steps: usize) -> Ahead {
        let (rows, bytes) = if stride == bytes { (1, rows * bytes) } else { (rows, bytes) };
        let row = bytes.div_ceil(LINE);
        let (left, gap) = (rows * row, stride.wrapping_sub(row * LINE));
        let each = (left * FRACTION).div_ceil(steps.max(1));
        Ahead { line: first, row, at: 0, gap, left, each, due: 0 }
    }

    /// Asks for what is due after `n` more steps.
    #[inline]
    pub(super) fn more(&mut self, n: usize) {
        self.due += n * self.each;
        let mut lines = (self.due / FRACTION).min(self.left);
        self.due %= FRACTION;
        self.left -= lines;
        while lines > 0 {
            let here = lines.min(self.row - self.at);
            (0..here).for_each(|line| fetch::<false>(self.line.wrapping_add(line * LINE)));
            lines -= here;
            self.at += here;
            self.line = self.line.wrapping_add(here * LINE);
            if self.at == self.row {
                self.at = 0;
                self.line = self.line.wrapping_add(self.gap);
            }
        }
    }
}

/// Asks for what a stream comes to after the `bytes` bytes at `p`, which are read now: as many, [`STREAM`] further on.
#[inline(always)]
pub(super) fn stream(p: *const u8, bytes: usize) {
    (0..bytes.div_ceil(LINE)).for_each(|line| fetch::<true>(p.wrapping_add(STREAM + line * LINE)));
}

/// Bytes from a row to the one that [`piece`] asks for when rows `stride` bytes apart are gone through `n` at a time.
#[inline(always)]
pub(super) fn rows_on(stride: usize, n: usize) -> usize {
    (ROWS / stride.max(1)).max(n) * stride
}

/// Asks for as many lines from `p` on as `bytes` bytes take, to the second cache.
#[inline(always)]
pub(super) fn piece(p: *const u8, bytes: usize) {
    (0..bytes.div_ceil(LINE)).for_each(|line| fetch::<false>(p.wrapping_add(line * LINE)));
}

/// Asks for one line, to the second cache, as the first is too small for many of them beside what is worked on; or, where it is `NEAR`, as
/// with a single stream, to the first.
#[inline(always)]
fn fetch<const NEAR: bool>(p: *const u8) {
    // SAFETY: fetching is a hint that no address can make fail.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        use std::arch::x86_64::*;
        if NEAR { _mm_prefetch::<_MM_HINT_T0>(p.cast()) } else { _mm_prefetch::<_MM_HINT_T1>(p.cast()) }
    }
    // SAFETY: as above.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        use std::arch::asm;
        if NEAR {
            asm!("prfm pldl1keep, [{p}]", p = in(reg) p, options(readonly, nostack, preserves_flags));
        } else {
            asm!("prfm pldl2keep, [{p}]", p = in(reg) p, options(readonly, nostack, preserves_flags));
        }
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = p;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines that have been asked for cannot be seen; where the next one is can.
    #[test]
    fn every_line_of_every_row_in_time() {
        for (stride, rows, bytes, steps) in [(400, 16, 360, 72), (360, 16, 360, 10), (384, 128, 128, 7), (64, 3, 1, 9)]
        {
            let base = std::ptr::without_provenance::<u8>(1 << 20);
            let mut ahead = Ahead::new(base, stride, rows, bytes, steps);
            let lines: Vec<usize> = if stride == bytes {
                (0..(rows * bytes).div_ceil(LINE)).map(|l| l * LINE).collect()
            } else {
                (0..rows).flat_map(|r| (0..bytes.div_ceil(LINE)).map(move |l| r * stride + l * LINE)).collect()
            };
            for step in 1..=steps {
                ahead.more(1);
                let asked = lines.len() - ahead.left;
                assert!(asked >= lines.len() * step / steps, "{asked} of {} after {step} of {steps}", lines.len());
                if let Some(next) = lines.get(asked) {
                    assert_eq!(ahead.line.addr() - base.addr(), *next, "{stride} {rows} {bytes} {steps}: step {step}");
                }
            }
            assert_eq!(ahead.left, 0);
            ahead.more(5);
            assert_eq!(ahead.left, 0);
        }
    }

    #[test]
    fn rows_on_are_whole_and_behind_those_that_are_read() {
        for (stride, n, want) in
            [(384, 1, 21 * 384), (1152, 8, 8 * 1152), (9000, 1, 9000), (9000, 4, 36_000), (0, 8, 0)]
        {
            assert_eq!(rows_on(stride, n), want);
        }
    }

    #[test]
    fn nothing_is_fine() {
        let mut ahead = Ahead::new(std::ptr::null(), 0, 0, 0, 0);
        ahead.more(3);
        assert_eq!(ahead.left, 0);
    }
}
