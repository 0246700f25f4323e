//! Calls that wait for other hosts, side by side.

use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::Builder;

/// Most calls under way: few have more devices, and threads are not free.
const MOST: usize = 32;

/// Calls `f` for every item and gives what it returns, in order. Each call may take a way to another host and back, so that they are
/// made at the same time: one on this thread, the others on threads of their own, as far as the system has threads. A panic of a
/// call becomes the caller's.
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

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
    #[should_panic(expected = "the third")]
    fn a_panic_is_the_callers() {
        at_once(&[1, 2, 3], |&i| assert!(i != 3, "the third"));
    }
}
