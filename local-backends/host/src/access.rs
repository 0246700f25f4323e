//! Which bytes commands touch at this moment, so that no two touch the same bytes at the same time if one of them writes.
//!
//! Kernels hold slices of memory while they run, and the language requires that nobody writes there meanwhile. Clients that order
//! their queues by events never meet here. A command that would meet another waits for it. None waits while it touches memory
//! itself, so that they cannot stop one another.

use crate::lock;
use outboard_core::{Error, Result};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How often a command that waits looks whether it is still wanted.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// Bytes of memory, by their addresses, and whether they are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Touched {
    start: usize,
    end: usize,
    written: bool,
}

impl Touched {
    pub(crate) fn read(ptr: *const u8, len: usize) -> Touched {
        Touched { start: ptr.addr(), end: ptr.addr() + len, written: false }
    }

    pub(crate) fn written(ptr: *const u8, len: usize) -> Touched {
        Touched { written: true, ..Touched::read(ptr, len) }
    }
}

/// What one command touches: ranges in the order of their addresses that do not overlap.
#[derive(Clone, Debug)]
pub(crate) struct Footprint(Arc<[Touched]>);

impl Footprint {
    /// Sorts ranges, and joins those that overlap or touch: what is written by one counts as written.
    pub(crate) fn new(mut ranges: Vec<Touched>) -> Footprint {
        ranges.retain(|range| range.start < range.end);
        ranges.sort_unstable_by_key(|range| range.start);
        let mut joined: Vec<Touched> = Vec::with_capacity(ranges.len());
        for range in ranges {
            match joined.last_mut() {
                Some(last) if range.start < last.end || range.start == last.end && range.written == last.written => {
                    last.end = last.end.max(range.end);
                    last.written |= range.written;
                }
                _ => joined.push(range),
            }
        }
        Footprint(joined.into())
    }

    /// Whether the two must not be touched at the same time.
    fn collides(&self, other: &Footprint) -> bool {
        let (shorter, longer) = if self.0.len() <= other.0.len() { (self, other) } else { (other, self) };
        shorter.0.iter().any(|a| {
            let first = longer.0.partition_point(|b| b.end <= a.start);
            longer.0[first..].iter().take_while(|b| b.start < a.end).any(|b| a.written || b.written)
        })
    }
}

/// What is touched of this process's memory now. There is one for all, because devices hand each other tensors, and addresses mean the same
/// to each of them.
pub(crate) static ACCESSES: Accesses = Accesses::new();

/// Memory, and what is touched of it now.
#[derive(Debug)]
pub(crate) struct Accesses {
    now: Mutex<Now>,
}

#[derive(Debug)]
struct Now {
    /// One for each command that touches memory: as many as there are queues at most.
    active: Vec<(u64, Footprint)>,
    next: u64,
    waiting: Vec<Waiting>,
}

/// A command that waits, and how it is woken: only by those that were in its way.
#[derive(Debug)]
struct Waiting {
    number: u64,
    footprint: Footprint,
    wake: Arc<Condvar>,
}

impl Now {
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn is_free(&self, footprint: &Footprint) -> bool {
        !self.active.iter().any(|(_, other)| other.collides(footprint))
    }
}

/// An access, over when dropped.
#[derive(Debug)]
pub(crate) struct Access<'a> {
    of: &'a Accesses,
    number: u64,
}

impl Accesses {
    const fn new() -> Accesses {
        Accesses { now: Mutex::new(Now { active: Vec::new(), next: 0, waiting: Vec::new() }) }
    }

    /// Waits until nobody touches these bytes who must not, or until `cancel` is set.
    pub(crate) fn begin(&self, footprint: &Footprint, cancel: &AtomicBool) -> Result<Access<'_>> {
        let mut now = lock(&self.now);
        if !now.is_free(footprint) {
            now = self.wait(now, footprint, cancel)?;
        }
        let number = now.number();
        now.active.push((number, footprint.clone()));
        Ok(Access { of: self, number })
    }

    fn wait<'a>(
        &'a self,
        mut now: MutexGuard<'a, Now>,
        footprint: &Footprint,
        cancel: &AtomicBool,
    ) -> Result<MutexGuard<'a, Now>> {
        let (number, wake) = (now.number(), Arc::new(Condvar::new()));
        now.waiting.push(Waiting { number, footprint: footprint.clone(), wake: wake.clone() });
        while !now.is_free(footprint) && !cancel.load(Ordering::Relaxed) {
            now = wake.wait_timeout(now, LOOK_AGAIN).unwrap_or_else(PoisonError::into_inner).0;
        }
        now.waiting.retain(|waiting| waiting.number != number);
        if now.is_free(footprint) { Ok(now) } else { Err(Error::Cancelled) }
    }
}

impl Drop for Access<'_> {
    fn drop(&mut self) {
        let mut now = lock(&self.of.now);
        let Some(at) = now.active.iter().position(|(number, _)| *number == self.number) else { return };
        let (_, ended) = now.active.swap_remove(at);
        let woken = now.waiting.iter().filter(|waiting| waiting.footprint.collides(&ended));
        woken.for_each(|waiting| waiting.wake.notify_one());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: usize, end: usize, written: bool) -> Touched {
        Touched { start, end, written }
    }

    fn footprint(ranges: &[(usize, usize, bool)]) -> Footprint {
        Footprint::new(ranges.iter().map(|&(start, end, written)| range(start, end, written)).collect())
    }

    #[test]
    fn ranges_are_joined() {
        let got = footprint(&[(30, 40, false), (0, 10, false), (10, 20, false), (15, 30, true), (50, 50, true)]);
        assert_eq!(*got.0, [range(0, 30, true), range(30, 40, false)]);
    }

    #[test]
    fn collisions_are_found_whatever_the_order() {
        // Every pair of small footprints, beside a byte by byte count.
        let mut state = 1u32;
        let mut random = |n: u32| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 16) % n
        };
        for _ in 0..5000 {
            let [a, b] = [(), ()].map(|()| {
                let count = random(4);
                let of = |_| {
                    let start = random(30) as usize;
                    (start, start + random(6) as usize, random(2) == 0)
                };
                (0..count).map(of).collect::<Vec<_>>()
            });
            let touches = |all: &[(usize, usize, bool)], byte: usize, write: bool| {
                all.iter().any(|&(start, end, written)| (start..end).contains(&byte) && (written || !write))
            };
            let expected = (0..40).any(|byte| {
                touches(&a, byte, false)
                    && touches(&b, byte, false)
                    && (touches(&a, byte, true) || touches(&b, byte, true))
            });
            let (a, b) = (footprint(&a), footprint(&b));
            // Joining makes neighbours one, so that more can collide than bytes do, never less.
            if expected {
                assert!(a.collides(&b) && b.collides(&a), "{a:?} {b:?}");
            }
            assert_eq!(a.collides(&b), b.collides(&a));
        }
        let (read, write) = (footprint(&[(0, 10, false)]), footprint(&[(5, 6, true)]));
        assert!(!read.collides(&read) && read.collides(&write) && write.collides(&write));
        assert!(!footprint(&[(0, 5, true), (6, 10, true)]).collides(&footprint(&[(5, 6, true)])));
    }

    #[test]
    fn a_write_waits_for_what_reads_there() {
        let accesses = Accesses::new();
        let (read, write) = (footprint(&[(0, 10, false)]), footprint(&[(5, 6, true)]));
        let never = AtomicBool::new(false);
        let first = accesses.begin(&read, &never).unwrap();
        let second = accesses.begin(&read, &never).unwrap();
        assert_eq!(accesses.begin(&write, &AtomicBool::new(true)).unwrap_err(), Error::Cancelled);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| accesses.begin(&write, &never).map(drop));
            while lock(&accesses.now).waiting.is_empty() {
                std::thread::yield_now();
            }
            drop(first);
            assert!(!waits.is_finished());
            drop(second);
            waits.join().unwrap().unwrap();
        });
        assert!(lock(&accesses.now).active.is_empty());
    }
}
