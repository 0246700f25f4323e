//! Threads that share the pieces of one job at a time.
//!
//! Pieces are claimed, not dealt out: a thread that lost its core to another process holds up at most the piece it has begun,
//! while the others take the rest. Threads look for the next job for a moment before they sleep, because the gaps between
//! nodes of a graph are shorter than a wake-up.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

/// Looks before a thread sleeps: some 20 microseconds.
const SPINS: u32 = 4000;

type Piece = dyn Fn(Turn) + Sync;

/// A piece of a job, and the thread that has it.
#[derive(Clone, Copy, Debug)]
pub struct Turn {
    /// Below the number of threads; no other piece that is under way has it.
    pub thread: usize,
    /// Below the number of pieces.
    pub piece: usize,
}

/// One call of [`Pool::run`].
struct Job {
    /// Valid while `done` is below `pieces`: the caller of `run` waits for that.
    run: *const Piece,
    /// Valid as long. Pieces that are claimed when it is set are not worked on.
    abort: *const AtomicBool,
    pieces: usize,
    next: AtomicUsize,
    done: AtomicUsize,
    panicked: AtomicBool,
}

// SAFETY: the closure behind `run` is Sync, and its lifetime is as said at the field.
unsafe impl Send for Job {}
// SAFETY: as above.
unsafe impl Sync for Job {}

impl Job {
    /// Works on pieces until none is left to claim, as one of the threads.
    fn work(&self, thread: usize) {
        loop {
            let piece = self.next.fetch_add(1, Ordering::Relaxed);
            if piece >= self.pieces {
                return;
            }
            // SAFETY: this piece is claimed and not done, so that the caller of `run` still waits, and both live.
            let (run, abort) = unsafe { (&*self.run, &*self.abort) };
            let work = || run(Turn { thread, piece });
            if !abort.load(Ordering::Relaxed) && std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).is_err() {
                self.panicked.store(true, Ordering::Relaxed);
            }
            self.done.fetch_add(1, Ordering::Release);
        }
    }
}

#[derive(Default)]
struct Board {
    /// Counts jobs, so that threads see a new one without the lock.
    number: AtomicU64,
    job: Mutex<Option<Arc<Job>>>,
    posted: Condvar,
    end: AtomicBool,
}

/// A pool of threads, of which the caller is one.
pub struct Pool {
    board: Arc<Board>,
    threads: Vec<JoinHandle<()>>,
}

impl Pool {
    /// A pool of `threads` threads, the caller of [`Pool::run`] included. Threads that cannot be started are done without.
    pub fn new(threads: usize, name: &str) -> Pool {
        let board = Arc::new(Board::default());
        let spawn = |i| {
            let board = board.clone();
            std::thread::Builder::new().name(format!("{name} worker {i}")).spawn(move || worker(&board, i)).ok()
        };
        let threads = (1..threads).filter_map(spawn).collect();
        Pool { board, threads }
    }

    /// Number of threads, the caller included.
    pub fn threads(&self) -> usize {
        self.threads.len() + 1
    }

    /// Calls `run` once for each of `0..pieces`, on all threads, and returns when all are done. When `abort` is set, pieces that have not
    /// begun are left out.
    pub fn run(&self, pieces: usize, abort: &AtomicBool, run: &(dyn Fn(Turn) + Sync)) {
        if pieces <= 1 || self.threads.is_empty() {
            let wanted = (0..pieces).take_while(|_| !abort.load(Ordering::Relaxed));
            return wanted.for_each(|piece| run(Turn { thread: 0, piece }));
        }
        let run: *const (dyn Fn(Turn) + Sync + '_) = run;
        // SAFETY: only the lifetime changes; this function does not return while a piece is being worked on.
        let run: *const Piece = unsafe { std::mem::transmute(run) };
        let job = Arc::new(Job {
            run,
            abort,
            pieces,
            next: AtomicUsize::new(0),
            done: AtomicUsize::new(0),
            panicked: AtomicBool::new(false),
        });
        {
            *self.board.job.lock().unwrap_or_else(PoisonError::into_inner) = Some(job.clone());
            self.board.number.fetch_add(1, Ordering::Release);
            self.board.posted.notify_all();
        }
        job.work(0);
        let mut spins = 0;
        while job.done.load(Ordering::Acquire) < pieces {
            spins += 1;
            // Whoever has the last piece may need this core.
            if spins < SPINS { std::hint::spin_loop() } else { std::thread::yield_now() }
        }
        assert!(!job.panicked.load(Ordering::Relaxed), "a piece of work panicked");
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        {
            let _job = self.board.job.lock().unwrap_or_else(PoisonError::into_inner);
            self.board.end.store(true, Ordering::Release);
            self.board.number.fetch_add(1, Ordering::Release);
            self.board.posted.notify_all();
        }
        self.threads.drain(..).for_each(|t| drop(t.join()));
    }
}

fn worker(board: &Board, thread: usize) {
    let mut seen = 0;
    loop {
        let mut spins = 0;
        while board.number.load(Ordering::Acquire) == seen && spins < SPINS {
            spins += 1;
            std::hint::spin_loop();
        }
        let mut job = board.job.lock().unwrap_or_else(PoisonError::into_inner);
        while board.number.load(Ordering::Acquire) == seen {
            job = board.posted.wait(job).unwrap_or_else(PoisonError::into_inner);
        }
        seen = board.number.load(Ordering::Acquire);
        if board.end.load(Ordering::Acquire) {
            return;
        }
        let job = job.clone();
        if let Some(job) = job {
            job.work(thread);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static NEVER: AtomicBool = AtomicBool::new(false);

    #[test]
    fn every_piece_once() {
        let pool = Pool::new(4, "test");
        for pieces in [0, 1, 2, 7, 1000] {
            let counts: Vec<AtomicUsize> = (0..pieces).map(|_| AtomicUsize::new(0)).collect();
            let busy: Vec<AtomicBool> = (0..pool.threads()).map(|_| AtomicBool::new(false)).collect();
            for _ in 0..50 {
                pool.run(pieces, &NEVER, &|Turn { thread, piece }| {
                    assert!(!busy[thread].swap(true, Ordering::Relaxed), "thread {thread} has two pieces");
                    counts[piece].fetch_add(1, Ordering::Relaxed);
                    busy[thread].store(false, Ordering::Relaxed);
                });
            }
            assert!(counts.iter().all(|c| c.load(Ordering::Relaxed) == 50));
        }
    }

    #[test]
    fn pieces_are_left_out_when_nobody_wants_them() {
        for threads in [1, 4] {
            let (pool, abort, count) = (Pool::new(threads, "test"), AtomicBool::new(false), AtomicUsize::new(0));
            pool.run(1000, &abort, &|_| {
                count.fetch_add(1, Ordering::Relaxed);
                abort.store(true, Ordering::Relaxed);
            });
            assert!((1..=threads).contains(&count.load(Ordering::Relaxed)), "{count:?} of {threads} threads");
        }
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_goes_on() {
        let pool = Pool::new(3, "test");
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            pool.run(10, &NEVER, &|turn| assert!(turn.piece != 5, "on purpose"));
        }));
        assert!(caught.is_err());
        let sum = AtomicUsize::new(0);
        pool.run(10, &NEVER, &|turn| {
            sum.fetch_add(turn.piece, Ordering::Relaxed);
        });
        assert_eq!(sum.load(Ordering::Relaxed), 45);
    }
}
