//! Answers that may be large and are made at once: they count until they are taken, so that who asks for many and reads none holds little.

use crate::error::Result;
use crate::room::Room;
use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::header::{CONTENT_TYPE, HeaderValue};
use hyper::body::{Body as HttpBody, Bytes, Frame, SizeHint};
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

/// Bytes that are given to a connection at a time, beside what waits there already.
const PART: usize = 16 << 10;

/// Longest answer that takes no room: nobody's text is lost for as much as a connection has on its way.
const SMALL: usize = 64 << 10;

/// An answer of JSON. A large one takes room of its client's until it is taken, and fails if there is none.
pub(crate) fn json_answer(json: String, mut room: Room) -> Result<Response> {
    if json.len() > SMALL {
        room.grow(json.len())?;
    }
    let body = Body::new(Kept { json: json.into_bytes(), taken: 0, _room: room });
    Ok(([(CONTENT_TYPE, HeaderValue::from_static("application/json"))], body).into_response())
}

struct Kept {
    json: Vec<u8>,
    taken: usize,
    _room: Room,
}

impl HttpBody for Kept {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<std::result::Result<Frame<Bytes>, Infallible>>> {
        let rest = self.json.get(self.taken..).unwrap_or_default();
        // A copy: what a connection still has of it keeps no more than itself.
        let part = Bytes::copy_from_slice(rest.get(..PART).unwrap_or(rest));
        self.taken += part.len();
        Poll::Ready((!part.is_empty()).then(|| Ok(Frame::data(part))))
    }

    fn is_end_stream(&self) -> bool {
        self.taken >= self.json.len()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.json.len().saturating_sub(self.taken) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::Client;
    use crate::room::Rooms;
    use http_body_util::BodyExt;

    #[test]
    fn an_answer_counts_until_it_is_taken() {
        let rooms = Rooms::new(1 << 20, 1 << 20);
        let json: String = (0..100_000).map(|i| char::from(b'a' + (i % 26) as u8)).collect();
        let answer = json_answer(json.clone(), rooms.enter(Client::Unknown)).unwrap();
        assert!(json_answer("x".repeat(1 << 20), rooms.enter(Client::Unknown)).is_err());
        let mut all = rooms.enter(Client::Unknown);
        all.grow((1 << 20) - 100_000).unwrap();
        assert!(json_answer("x".repeat(SMALL), rooms.enter(Client::Unknown)).is_ok());
        drop(all);
        assert_eq!(answer.body().size_hint().exact(), Some(100_000));
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let whole = runtime.block_on(answer.into_body().collect()).unwrap().to_bytes();
        assert_eq!(whole, json.as_bytes());
        assert!(json_answer("x".repeat(1 << 20), rooms.enter(Client::Unknown)).is_ok());
    }
}
