//! Work that takes long, such as finding the tokens of a text: on threads of its own, which clients take turns at.
//!
//! A piece of work that nobody waits for any more is not begun. One that has begun goes on to its end and holds its place and the room of its
//! request until then. Short pieces and forms have places that long ones never take, and no client has all places for long ones or for forms.

use crate::error::{ApiError, Result};
use crate::queue::{Most, Queue};
use crate::room::Room;
use http::StatusCode;
use std::sync::Arc;

/// Pieces of long work at a time.
const LONG: usize = 2;
/// The same of one client: it goes on even when nobody waits for it any more.
const LONG_EACH: usize = 1;
/// Pieces of short work at a time.
const SHORT: usize = 2;
/// Forms at a time, and of one client: other processes work on them, for which these wait.
pub(crate) const FORMS: usize = 2;
const FORMS_EACH: usize = 1;
/// Threads that all of it takes.
pub(crate) const THREADS: usize = LONG + SHORT + FORMS;
/// Work on a request of more bytes is long.
const LARGE: usize = 64 << 10;

/// How long a piece of work takes, as far as can be said before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Length {
    Short,
    Long,
    /// Of a form that is compiled: nobody can say.
    Form,
}

impl Length {
    /// Of work that reads the request once.
    pub(crate) fn of(room: &Room) -> Length {
        if room.bytes() > LARGE { Length::Long } else { Length::Short }
    }
}

/// Places for work.
#[derive(Debug)]
pub(crate) struct Workers {
    long: Arc<Queue>,
    short: Arc<Queue>,
    forms: Arc<Queue>,
}

impl Workers {
    pub(crate) fn new() -> Workers {
        // Each one that waits has a connection, of which there are limits.
        let queue = |places, places_each| {
            Queue::new(Most { places, places_each, waiting: usize::MAX, waiting_each: usize::MAX })
        };
        Workers { long: queue(LONG, LONG_EACH), short: queue(SHORT, SHORT), forms: queue(FORMS, FORMS_EACH) }
    }

    /// Does something for the request that has this room, when it is its client's turn.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        length: Length,
        room: &Arc<Room>,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let failed = || ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "the request could not be worked on");
        let queue = match length {
            Length::Long => &self.long,
            Length::Short => &self.short,
            Length::Form => &self.forms,
        };
        let turn = queue.enter(room.client(), 1).ok().and_then(|mut turns| turns.pop()).ok_or_else(failed)?;
        let held = (turn.await, room.clone());
        let work = move || {
            let _held = held;
            work()
        };
        tokio::task::spawn_blocking(work).await.map_err(|_| failed())?
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::Client;
    use crate::room::Rooms;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::channel;
    use std::time::Duration;

    /// The room of a request of so many bytes.
    fn room(rooms: &Arc<Rooms>, name: &str, bytes: usize) -> Arc<Room> {
        let mut room = rooms.enter(Client::Key(name.into()));
        room.grow(bytes).unwrap();
        Arc::new(room)
    }

    #[test]
    fn work_that_nobody_waits_for_is_not_begun_and_holds_up_nobody() {
        let runtime = tokio::runtime::Builder::new_current_thread().max_blocking_threads(THREADS).enable_time().build();
        runtime.unwrap().block_on(async {
            let (workers, rooms) = (Arc::new(Workers::new()), Rooms::new(1 << 30, 1 << 30));
            let begun = Arc::new(AtomicUsize::new(0));
            let mut ends = Vec::new();
            let mut tasks: Vec<_> = (0..20)
                .map(|_| {
                    let (workers, room, begun) = (workers.clone(), room(&rooms, "many", LARGE + 1), begun.clone());
                    let (end, ended) = channel::<()>();
                    ends.push(end);
                    tokio::spawn(async move {
                        let work = move || {
                            begun.fetch_add(1, Ordering::Relaxed);
                            let _ = ended.recv();
                            Ok(())
                        };
                        workers.run(Length::of(&room), &room, work).await
                    })
                })
                .collect();
            while begun.load(Ordering::Relaxed) < LONG_EACH {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            // Another client's long work does not wait for it.
            let other = room(&rooms, "other", LARGE + 1);
            let long = workers.run(Length::of(&other), &other, || Ok(6));
            assert_eq!(tokio::time::timeout(Duration::from_secs(20), long).await.unwrap(), Ok(6));
            drop(other);
            let one = room(&rooms, "one", 10);
            let short = workers.run(Length::of(&one), &one, || Ok(7));
            assert_eq!(tokio::time::timeout(Duration::from_secs(20), short).await.unwrap(), Ok(7));
            let form = workers.run(Length::Form, &one, || Ok(9));
            assert_eq!(tokio::time::timeout(Duration::from_secs(20), form).await.unwrap(), Ok(9));
            drop(one);
            tasks.iter().for_each(tokio::task::JoinHandle::abort);
            for task in tasks.drain(..) {
                let _ = task.await;
            }
            let held = (LARGE + 1) * LONG_EACH;
            assert!(rooms.enter(Client::Unknown).grow((1 << 30) - held + 1).is_err(), "what has begun holds its room");
            assert!(rooms.enter(Client::Unknown).grow((1 << 30) - held).is_ok(), "what has not, holds none");
            drop(ends);
            let after = workers.run(Length::Long, &room(&rooms, "many", 1), || Ok(8)).await;
            assert_eq!((after, begun.load(Ordering::Relaxed)), (Ok(8), LONG_EACH));
        });
    }
}
