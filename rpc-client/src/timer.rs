//! The time of heartbeats. A client that stood still itself, stopped or without a processor, cannot say that its server was silent: what the server
//! sent meanwhile lies in the socket, unread. So when a time is over, there is another look at the socket before anything is concluded from it.

use hyper::rt::{Sleep, Timer};
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// Time for that look. If it takes twice as long, the client stood still again, and looks again.
const LOOK: Duration = Duration::from_millis(20);

/// A timer for hyper.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LooksAgain;

#[derive(Debug)]
struct Look {
    sleep: Pin<Box<tokio::time::Sleep>>,
    /// The time itself is over, and the sleep is that of the look.
    is_over: bool,
}

impl Look {
    fn until(deadline: Instant) -> Look {
        Look { sleep: Box::pin(tokio::time::sleep_until(deadline.into())), is_over: false }
    }

    fn reset(&mut self, deadline: Instant) {
        self.sleep.as_mut().reset(deadline.into());
        self.is_over = false;
    }
}

impl Future for Look {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        while self.sleep.as_mut().poll(cx).is_ready() {
            let deadline = self.sleep.deadline();
            if self.is_over && deadline.elapsed() < LOOK {
                return Poll::Ready(());
            }
            self.is_over = true;
            self.sleep.as_mut().reset(tokio::time::Instant::now() + LOOK);
        }
        Poll::Pending
    }
}

impl Sleep for Look {}

impl Timer for LooksAgain {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Sleep>> {
        self.sleep_until(Instant::now() + duration)
    }

    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn Sleep>> {
        Box::pin(Look::until(deadline))
    }

    fn reset(&self, sleep: &mut Pin<Box<dyn Sleep>>, deadline: Instant) {
        match sleep.as_mut().downcast_mut_pin::<Look>() {
            Some(look) => look.get_mut().reset(deadline),
            None => *sleep = self.sleep_until(deadline),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_that_was_over_while_the_thread_stood_still_is_looked_at_again() {
        crate::transport::runtime().unwrap().block_on(async {
            let timer = LooksAgain;
            let mut sleep = timer.sleep(Duration::from_millis(30));
            let mut poll = async || std::future::poll_fn(|cx| Poll::Ready(sleep.as_mut().poll(cx))).await;
            assert!(poll().await.is_pending());
            std::thread::sleep(Duration::from_millis(60));
            tokio::task::yield_now().await;
            assert!(poll().await.is_pending(), "the socket is looked at first");
            std::thread::sleep(3 * LOOK);
            tokio::task::yield_now().await;
            assert!(poll().await.is_pending(), "it stood still there, too");
            sleep.as_mut().await;
            let start = Instant::now();
            timer.reset(&mut sleep, start + Duration::from_millis(30));
            sleep.await;
            assert!(start.elapsed() >= Duration::from_millis(30) + LOOK, "{:?}", start.elapsed());
        });
    }
}
