//! Answers as they come: server-sent events, in the form that an API has.

use crate::engine::Answers;
use crate::error::{ApiError, Result};
use crate::limits::KEEP_ALIVE;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_core::Stream;
use http::header::{CACHE_CONTROL, HeaderName, HeaderValue};
use outboard::Piece;
use serde_json::Value;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

/// Events that are to be sent.
pub(crate) type Out = VecDeque<Event>;

/// How an API says what comes of a request's texts.
pub(crate) trait Writer: Send + Unpin + 'static {
    /// Before anything has come.
    fn begin(&mut self, _out: &mut Out) {}
    /// What is left of that; called again as long as it gives something, so that no more is kept than is being sent.
    fn go_on_beginning(&mut self, _out: &mut Out) {}
    /// A piece of the text with this number; the last one has the end.
    fn piece(&mut self, number: usize, piece: Piece, out: &mut Out);
    /// All have ended.
    fn end(&mut self, out: &mut Out);
    /// What is said while nothing comes; a comment, if nothing else is.
    fn ping(&self) -> Event {
        Event::default().comment("")
    }
    /// There will be no more, and this is why.
    fn failed(&mut self, error: &ApiError, out: &mut Out);
}

/// An event without a name.
pub(crate) fn data(value: &Value) -> Event {
    Event::default().data(value.to_string())
}

/// An event with a name, which its data says, too.
pub(crate) fn named(name: &str, value: &Value) -> Event {
    Event::default().event(name).data(value.to_string())
}

/// The answer whose events a writer makes.
pub(crate) fn respond(answers: Answers, mut writer: impl Writer) -> Response {
    let mut ready = Out::new();
    writer.begin(&mut ready);
    let keep_alive = KeepAlive::new().interval(KEEP_ALIVE).event(writer.ping());
    let events = Events { answers: Some(answers), writer, ready };
    let mut response = Sse::new(events).keep_alive(keep_alive).into_response();
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // For proxies that would wait for more.
    response.headers_mut().insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    response
}

/// Gives a writer all that comes of a request's texts, for an answer that is sent when it is complete. Its events are not read.
pub(crate) async fn feed(mut answers: Answers, writer: &mut impl Writer) -> Result<()> {
    let mut unread = Out::new();
    while let Some((number, piece)) = answers.next().await {
        writer.piece(number, piece?, &mut unread);
        unread.clear();
    }
    Ok(())
}

struct Events<W> {
    /// `None` when all has been said.
    answers: Option<Answers>,
    writer: W,
    ready: Out,
}

impl<W: Writer> Stream for Events<W> {
    type Item = std::result::Result<Event, Infallible>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Events { answers, writer, ready } = self.get_mut();
        loop {
            if let Some(event) = ready.pop_front() {
                return Poll::Ready(Some(Ok(event)));
            }
            writer.go_on_beginning(ready);
            if !ready.is_empty() {
                continue;
            }
            let Some(texts) = answers else { return Poll::Ready(None) };
            match Pin::new(texts).poll_next(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Some((number, Ok(piece)))) => writer.piece(number, piece, ready),
                Poll::Ready(Some((_, Err(error)))) => {
                    writer.failed(&error, ready);
                    *answers = None;
                }
                Poll::Ready(None) => {
                    writer.end(ready);
                    *answers = None;
                }
            }
        }
    }
}
