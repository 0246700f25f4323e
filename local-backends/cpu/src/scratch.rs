//! Scratch memory of a run, divided among what nodes need it for.
//!
//! How much there is was settled when the graph was compiled ([`Need`], which every op computes from shapes), and the host counted it on
//! the client's account. So a kernel that is short of memory is a bug, and says so as an error of its node.

use crate::kernels::act::ActBlock;
use crate::kernels::mul_mat::{Line, Scratch};
use outboard_core::op::Candidate;
use std::marker::PhantomData;

/// Bytes of a cache line, to which every part is aligned.
const LINE: u64 = size_of::<Line>() as u64;

/// Bytes that a node needs while it runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Need {
    /// Quantized columns, which the product behind it may use again.
    pub(crate) columns: u64,
    /// Cosines and sines, which the next rotary embedding may use again.
    pub(crate) angles: u64,
    /// For the node as a whole.
    pub(crate) shared: u64,
    /// For each thread.
    pub(crate) thread: u64,
}

impl Need {
    /// What both of two nodes can run with, one after the other.
    pub(crate) fn max(self, other: Need) -> Need {
        Need {
            columns: self.columns.max(other.columns),
            angles: self.angles.max(other.angles),
            shared: self.shared.max(other.shared),
            thread: self.thread.max(other.thread),
        }
    }

    /// Bytes in all, for so many threads.
    pub(crate) fn total(self, threads: usize) -> u64 {
        let parts = [self.columns, self.angles, self.shared].map(lines);
        let parts = parts.into_iter().fold(0, u64::saturating_add);
        lines(self.thread).saturating_mul(threads as u64).saturating_add(parts)
    }
}

/// Rounded up to whole lines.
fn lines(bytes: u64) -> u64 {
    bytes.checked_next_multiple_of(LINE).unwrap_or(u64::MAX)
}

/// Bytes of so many items; more than there can be is all that there is.
pub(crate) fn bytes_of<T>(items: usize) -> u64 {
    (items as u64).saturating_mul(size_of::<T>() as u64)
}

/// Numbers without padding of which every pattern of bits is one.
///
/// # Safety
/// That is so.
pub(crate) unsafe trait Plain: Copy {}

// SAFETY: a number.
unsafe impl Plain for u32 {}
// SAFETY: a number.
unsafe impl Plain for i32 {}
// SAFETY: a number.
unsafe impl Plain for f32 {}
// SAFETY: a number.
unsafe impl Plain for f64 {}
// SAFETY: a number.
unsafe impl Plain for [u32; 3] {}
// SAFETY: bytes, floats and numbers of 2 bytes, in the order of C, together a multiple of the alignment.
unsafe impl Plain for ActBlock {}
// SAFETY: a float and a number of 4 bytes, in the order of C.
unsafe impl Plain for Candidate {}

/// Bytes that are handed out from the front.
#[derive(Debug)]
pub(crate) struct Part<'m>(&'m mut [u8]);

impl<'m> Part<'m> {
    /// The same memory, for a shorter time.
    pub(crate) fn borrow(&mut self) -> Part<'_> {
        Part(self.0)
    }

    /// The next `n` items, of any content.
    pub(crate) fn take<T: Plain>(&mut self, n: usize) -> Result<&'m mut [T], String> {
        let bytes = usize::try_from(lines(bytes_of::<T>(n))).unwrap_or(usize::MAX);
        let short =
            format!("{bytes} bytes of scratch memory where {} are left; this is a bug of Outboard", self.0.len());
        let taken = self.0.split_off_mut(..bytes).ok_or(short)?;
        if taken.is_empty() {
            return Ok(&mut []);
        }
        assert_eq!(taken.as_ptr().align_offset(align_of::<T>()), 0, "scratch memory begins and is divided at lines");
        // SAFETY: as many bytes as n items have, aligned for them; every content is right, and stays so (`Plain`).
        Ok(unsafe { std::slice::from_raw_parts_mut(taken.as_mut_ptr().cast(), n) })
    }
}

/// A part for each thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Threads<'m> {
    first: *mut u8,
    bytes: usize,
    count: usize,
    _memory: PhantomData<&'m mut [u8]>,
}

// SAFETY: an address; `of` says who may use what is there.
unsafe impl Send for Threads<'_> {}
// SAFETY: as above.
unsafe impl Sync for Threads<'_> {}

impl Threads<'_> {
    /// The memory of one thread.
    ///
    /// # Safety
    /// Nobody else uses that of the same thread meanwhile.
    ///
    /// # Panics
    /// If there is no such thread.
    pub(crate) unsafe fn of(&self, thread: usize) -> Part<'_> {
        assert!(thread < self.count, "thread {thread} of {}", self.count);
        // SAFETY: `first` has room for all threads; nobody else has this one's.
        Part(unsafe { std::slice::from_raw_parts_mut(self.first.add(thread * self.bytes), self.bytes) })
    }
}

/// The scratch memory of a run.
#[derive(Debug)]
pub(crate) struct Memory<'m> {
    pub(crate) columns: &'m mut [ActBlock],
    pub(crate) angles: Part<'m>,
    pub(crate) shared: Part<'m>,
    pub(crate) threads: Threads<'m>,
}

impl<'m> Memory<'m> {
    /// Divides what [`Need::total`] has asked for.
    pub(crate) fn divide(bytes: &'m mut [u8], need: Need, threads: usize) -> Result<Memory<'m>, String> {
        let mut all = Part(bytes);
        let size = |bytes: u64| usize::try_from(lines(bytes)).unwrap_or(usize::MAX);
        let columns = all.take(size(need.columns) / size_of::<ActBlock>())?;
        let mut part =
            |bytes: u64| all.0.split_off_mut(..size(bytes)).ok_or("scratch memory is short; this is a bug of Outboard");
        let (angles, shared) = (Part(part(need.angles)?), Part(part(need.shared)?));
        let of_threads = part(lines(need.thread).saturating_mul(threads as u64))?;
        let threads =
            Threads { first: of_threads.as_mut_ptr(), bytes: size(need.thread), count: threads, _memory: PhantomData };
        Ok(Memory { columns, angles, shared, threads })
    }
}

#[cfg(test)]
impl<'m> Part<'m> {
    /// These lines.
    pub(crate) fn of(lines: &'m mut [Line]) -> Part<'m> {
        // SAFETY: lines are bytes, of any content.
        Part(unsafe { std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast(), size_of_val(lines)) })
    }
}

impl<'m> Part<'m> {
    /// All that is left, for a kernel.
    pub(crate) fn rest(self) -> Result<Scratch<'m>, String> {
        let Part(bytes) = self;
        let n = bytes.len() / size_of::<Line>();
        if n == 0 {
            return Ok(Scratch::new(&mut []));
        }
        assert_eq!(bytes.as_ptr().align_offset(align_of::<Line>()), 0, "scratch memory is divided at lines");
        // SAFETY: whole lines, aligned; floats have no wrong content.
        Ok(Scratch::new(unsafe { std::slice::from_raw_parts_mut(bytes.as_mut_ptr().cast(), n) }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_aligned_apart_and_as_large_as_asked_for() {
        let need = Need { columns: 2 * 448, angles: 100, shared: 1, thread: 65 };
        let total = need.total(3) as usize;
        assert_eq!(total, 896 + 128 + 64 + 3 * 128);
        let mut lines = vec![Line::ZERO; total / 64];
        // SAFETY: lines are bytes.
        let bytes = unsafe { std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast::<u8>(), total) };
        let mut memory = Memory::divide(bytes, need, 3).unwrap();
        assert_eq!(memory.columns.len(), 2);
        memory.angles.take::<f32>(25).unwrap().fill(1.0);
        assert!(memory.angles.take::<u32>(1).is_err());
        memory.shared.take::<u32>(16).unwrap().fill(7);
        for thread in 0..3 {
            // SAFETY: one at a time.
            let mut part = unsafe { memory.threads.of(thread) };
            part.take::<f32>(32).unwrap().fill(thread as f32);
        }
        assert!(memory.columns.iter().all(|c| *c == ActBlock::ZERO));
        // SAFETY: one at a time.
        let first = unsafe { memory.threads.of(0) }.take::<f32>(32).unwrap();
        assert!(first.iter().all(|&v| v == 0.0));
    }

    #[test]
    fn sizes_do_not_overflow() {
        let all = Need { columns: u64::MAX, angles: u64::MAX, shared: 1, thread: u64::MAX };
        assert_eq!(all.total(9), u64::MAX);
        assert_eq!(bytes_of::<ActBlock>(usize::MAX), u64::MAX);
    }
}
