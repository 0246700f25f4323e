//! Calls that wait for other hosts, side by side.

use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::Builder;

/// Most calls under way, as many as a server may have devices: threads are not free.
const MOST: usize = 256;

/// Calls `f` for every item, up to 256 at a time, and gives what it returns, in order. The calls are made side by side, because each may
/// take a way to another host and back: one on this thread, the others on threads of their own, as far as the system has threads.
/// Where another host works on them one after the other, the last one's deadline is there for all. A panic of a call becomes the
/// caller's.
pub fn at_once<T: Sync, R: Send>(items: &[T], f: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        while let number = next.fetch_add(1, Ordering::Relaxed)
            && let Some(item) = items.get(number)
        {
            done.push((number, f(item)));
        }
        done
    };
    let mut results: Vec<(usize, R)> = std::thread::scope(|scope| {
        let helper = |_| Builder::new().name("at once".into()).spawn_scoped(scope, work).ok();
        let helpers: Vec<_> = (1..items.len().min(MOST)).map_while(helper).collect();
        let mut done = work();
        done.extend(helpers.into_iter().flat_map(|t| t.join().unwrap_or_else(|panic| resume_unwind(panic))));
        done
    });
    results.sort_unstable_by_key(|(number, _)| *number);
    results.into_iter().map(|(_, result)| result).collect()
}

/// [`at_once`] for calls that may fail: after an error no further item is begun, and the first in the items' order is returned.
pub fn try_at_once<T, R, E>(items: &[T], f: impl Fn(&T) -> Result<R, E> + Sync) -> Result<Vec<R>, E>
where
    T: Sync,
    R: Send,
    E: Send,
{
    let failed = AtomicBool::new(false);
    let call = |item: &T| {
        // Not begun: there is an error among the others.
        if failed.load(Ordering::Relaxed) {
            return None;
        }
        Some(f(item).inspect_err(|_| failed.store(true, Ordering::Relaxed)))
    };
    at_once(items, call).into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;
    use std::time::{Duration, Instant};

    #[test]
    fn all_are_called_once_and_in_order() {
        for n in [0, 1, 2, 5, MOST, 3 * MOST + 1] {
            let items: Vec<usize> = (0..n).collect();
            assert_eq!(at_once(&items, |i| i * 10), items.iter().map(|i| i * 10).collect::<Vec<_>>());
        }
    }

    /// None of them returns before all are called.
    #[test]
    fn they_wait_side_by_side() {
        let all = Barrier::new(8);
        at_once(&[(); 8], |()| all.wait());
    }

    #[test]
    fn an_error_ends_it() {
        let (begun, third) = (AtomicUsize::new(0), AtomicBool::new(false));
        let call = |&i: &usize| {
            begun.fetch_add(1, Ordering::Relaxed);
            if i == 2 {
                third.store(true, Ordering::Relaxed);
                return Err(i);
            }
            // The others are under way until it has failed.
            let start = Instant::now();
            while !third.load(Ordering::Relaxed) && start.elapsed() < Duration::from_secs(10) {
                std::thread::yield_now();
            }
            Ok(i)
        };
        let items: Vec<usize> = (0..1 << 20).collect();
        assert_eq!(try_at_once(&items, call), Err(2));
        assert!(begun.load(Ordering::Relaxed) < items.len());
        assert_eq!(try_at_once(&items[..2], |&i| Ok::<_, usize>(i + 1)), Ok(vec![1, 2]));
    }

    #[test]
    #[should_panic(expected = "the third")]
    fn a_panic_is_the_callers() {
        at_once(&[1, 2, 3], |&i| assert!(i != 3, "the third"));
    }
}
