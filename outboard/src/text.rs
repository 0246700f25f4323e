//! A text as it comes: an iterator for threads, a stream for tasks.

use crate::error::{Error, Result};
use crate::runner::Shared;
use futures_core::Stream;
use outboard_llm::Generation;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};

/// Where pieces go. There are no more of them than tokens in a context, whether they are read or not.
pub(crate) type Pieces = UnboundedSender<Result<Piece>>;

/// What has come of a text.
#[derive(Clone, Debug, Default)]
pub struct Piece {
    /// Text; empty where a character, or what may be the beginning of a stop string, is not complete.
    pub text: String,
    /// The token that it came with; the last piece has none.
    pub token: Option<u32>,
    /// The token's log-probability, if that was asked for.
    pub log_prob: Option<f32>,
    /// The most probable tokens in its place, most probable first, with their log-probabilities, if they were asked for.
    pub top_log_probs: Vec<(u32, f32)>,
    /// In the last piece the whole: text, tokens, why it ended, how long it took.
    pub end: Option<Box<Generation>>,
}

/// A text that is being generated: an [`Iterator`] that blocks until something comes, or a [`TextStream`] for tasks. After an error, or the piece with
/// [`Piece::end`], there is nothing more. Dropping it ends the text, and others have its place.
#[must_use = "a text that is dropped is ended"]
pub struct Text {
    // Before the runner, which waits for the thread.
    pieces: UnboundedReceiver<Result<Piece>>,
    state: State,
    _runner: Arc<Shared>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    UnderWay,
    Ended,
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Text").field("state", &self.state).finish_non_exhaustive()
    }
}

impl Text {
    pub(crate) fn new(pieces: UnboundedReceiver<Result<Piece>>, runner: Arc<Shared>) -> Text {
        Text { pieces, state: State::UnderWay, _runner: runner }
    }

    /// Waits for all of it.
    pub fn complete(mut self) -> Result<Generation> {
        for piece in &mut self {
            if let Some(end) = piece?.end {
                return Ok(*end);
            }
        }
        Err(Error::Cancelled)
    }

    /// The same for tasks.
    pub fn stream(self) -> TextStream {
        TextStream(self)
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Piece>>> {
        if self.state == State::Ended {
            return Poll::Ready(None);
        }
        let Poll::Ready(piece) = self.pieces.poll_recv(cx) else { return Poll::Pending };
        let piece = piece.unwrap_or_else(|| Err(Error::Bug("the thread that generates texts has ended".into())));
        if piece.as_ref().map_or(true, |piece| piece.end.is_some()) {
            self.state = State::Ended;
        }
        Poll::Ready(Some(piece))
    }
}

/// Wakes a thread that waits.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Waits in this thread for what comes to a task. Not `blocking_recv`, which panics in one.
pub(crate) fn wait_for<T>(mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>) -> T {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut cx = Context::from_waker(&waker);
    loop {
        match poll(&mut cx) {
            Poll::Ready(came) => return came,
            Poll::Pending => std::thread::park(),
        }
    }
}

impl Iterator for Text {
    type Item = Result<Piece>;

    fn next(&mut self) -> Option<Result<Piece>> {
        wait_for(|cx| self.poll(cx))
    }
}

/// A [`Text`] as a [`Stream`]: it needs no particular runtime.
#[derive(Debug)]
#[must_use = "a text that is dropped is ended"]
pub struct TextStream(Text);

impl Stream for TextStream {
    type Item = Result<Piece>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Piece>>> {
        self.get_mut().0.poll(cx)
    }
}
