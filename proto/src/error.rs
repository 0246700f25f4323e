//! Errors on the wire: by blame, with their fields, so that the other side can rebuild them.

use crate::limits::MAX_ERROR_TEXT;
use crate::v1;
use bytes::Bytes;
use outboard_core::Error;
use prost::Message;
use std::time::Duration;
use tonic::{Code, Status};
use v1::error::Kind;

/// The wire's form of an error. Long texts are cut.
pub fn to_wire(error: &Error) -> v1::Error {
    let kind = match error {
        Error::Request(text) => Kind::Request(cut(text)),
        Error::Device { device, op, detail } => Kind::Device(v1::DeviceError {
            device: cut(device),
            op: op.as_deref().map(cut).unwrap_or_default(),
            detail: cut(detail),
        }),
        Error::OutOfMemory { device, needed, free } => {
            Kind::OutOfMemory(v1::OutOfMemory { device: cut(device), needed: *needed, free: *free })
        }
        Error::Timeout { what, after } => Kind::Timeout(v1::TimeoutError {
            what: cut(what),
            after_ms: u64::try_from(after.as_millis()).unwrap_or(u64::MAX),
        }),
        Error::Cancelled => Kind::Cancelled(v1::Cancelled {}),
        Error::Misuse(text) => Kind::Misuse(cut(text)),
        Error::Peer { endpoint, detail } => Kind::Peer(v1::PeerError { endpoint: cut(endpoint), detail: cut(detail) }),
    };
    v1::Error { kind: Some(kind) }
}

/// The error that a message from `endpoint` stands for: names of devices get the endpoint in front, and what the server
/// found wrong with a request names it, too. What has an endpoint in front already came from there through another server.
pub fn from_wire(error: v1::Error, endpoint: &str) -> Error {
    let id = |device: String| match device {
        device if device.is_empty() => endpoint.to_owned(),
        device if device.contains('/') => device,
        device => format!("{endpoint}/{device}"),
    };
    match rebuilt(error) {
        Some(Error::Request(text)) => Error::Request(format!("{endpoint}: {text}")),
        Some(Error::Device { device, op, detail }) => Error::Device { device: id(device), op, detail },
        Some(Error::OutOfMemory { device, needed, free }) => Error::OutOfMemory { device: id(device), needed, free },
        Some(Error::Timeout { what, after }) => Error::Timeout { what: format!("{endpoint}: {what}"), after },
        Some(Error::Cancelled) => Error::Cancelled,
        Some(Error::Misuse(text)) => Error::Misuse(format!("{endpoint}: {text}")),
        Some(Error::Peer { endpoint: of, detail }) => {
            Error::Peer { endpoint: of, detail: format!("{detail} (said {endpoint})") }
        }
        None => Error::Peer {
            endpoint: endpoint.to_owned(),
            detail: "answered with an error of a kind that this release does not know; install the same release on both sides"
                .to_owned(),
        },
    }
}

/// The error that a message of this host stands for. `None` for a kind that this release does not know.
pub fn rebuilt(error: v1::Error) -> Option<Error> {
    Some(match error.kind? {
        Kind::Request(text) => Error::Request(cut(&text)),
        Kind::Device(e) => {
            let op = Some(cut(&e.op)).filter(|op| !op.is_empty());
            Error::Device { device: cut(&e.device), op, detail: cut(&e.detail) }
        }
        Kind::OutOfMemory(e) => Error::OutOfMemory { device: cut(&e.device), needed: e.needed, free: e.free },
        Kind::Timeout(e) => Error::Timeout { what: cut(&e.what), after: Duration::from_millis(e.after_ms) },
        Kind::Cancelled(_) => Error::Cancelled,
        Kind::Misuse(text) => Error::Misuse(cut(&text)),
        Kind::Peer(e) => Error::Peer { endpoint: cut(&e.endpoint), detail: cut(&e.detail) },
    })
}

/// An error as the status of a call: a code that any gRPC client understands, our fields as details.
pub fn to_status(error: &Error) -> Status {
    let code = match error {
        Error::Request(_) | Error::Misuse(_) => Code::InvalidArgument,
        Error::Device { .. } => Code::Internal,
        Error::OutOfMemory { .. } => Code::ResourceExhausted,
        Error::Timeout { .. } => Code::DeadlineExceeded,
        Error::Cancelled => Code::Cancelled,
        Error::Peer { .. } => Code::Unavailable,
    };
    Status::with_details(code, cut(&error.to_string()), Bytes::from(to_wire(error).encode_to_vec()))
}

/// The error of a call to `endpoint` that gave `status`.
pub fn from_status(status: &Status, endpoint: &str) -> Error {
    match v1::Error::decode(status.details()) {
        Ok(error) if error.kind.is_some() => from_wire(error, endpoint),
        _ => Error::Peer { endpoint: endpoint.to_owned(), detail: cut(&describe(status)) },
    }
}

fn describe(status: &Status) -> String {
    match status.message() {
        "" => format!("the call failed: {}", status.code().description()),
        text => text.to_owned(),
    }
}

/// A text cut to its limit, as [`shown`] does it.
fn cut(text: &str) -> String {
    shown(text, MAX_ERROR_TEXT)
}

/// A text of a peer as it may stand on somebody's terminal or in a log: on one line, without control characters (which move cursors
/// and worse), cut to `max` bytes at a boundary of characters.
pub fn shown(text: &str, max: usize) -> String {
    let end = (0..=text.len().min(max)).rev().find(|&i| text.is_char_boundary(i)).unwrap_or(0);
    text.get(..end).unwrap_or_default().replace(char::is_control, " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_come_back_with_the_endpoint() {
        let device = Error::Device { device: "CPU0".into(), op: Some("MUL_MAT ffn".into()), detail: "lost".into() };
        let oom = Error::OutOfMemory { device: "CPU1".into(), needed: 9, free: 1 };
        let late = Error::Timeout { what: "an event".into(), after: Duration::from_secs(2) };
        let texts = [device.clone(), oom, late, Error::Request("no".into()), Error::Misuse("bug".into())]
            .map(|e| from_wire(to_wire(&e), "a:1").to_string());
        assert_eq!(texts[0], "a:1/CPU0, MUL_MAT ffn: lost");
        let through = from_wire(to_wire(&from_wire(to_wire(&device), "a:1")), "b:2");
        assert_eq!(through.to_string(), texts[0]);
        assert_eq!(texts[1], "a:1/CPU1: not enough memory: 9 B needed, 1 B free");
        assert_eq!(texts[2], "waited 2.0 s for a:1: an event");
        assert_eq!(texts[3], "a:1: no");
        assert_eq!(texts[4], "misuse: a:1: bug");
        assert_eq!(from_wire(to_wire(&Error::Cancelled), "a:1"), Error::Cancelled);
        assert!(matches!(from_wire(v1::Error::default(), "a:1"), Error::Peer { .. }));
    }

    #[test]
    fn status_carries_the_fields() {
        let oom = Error::OutOfMemory { device: "CPU1".into(), needed: 9, free: 1 };
        let status = to_status(&oom);
        assert_eq!(status.code(), Code::ResourceExhausted);
        assert_eq!(from_status(&status, "a:1"), Error::OutOfMemory { device: "a:1/CPU1".into(), needed: 9, free: 1 });
        let plain = from_status(&Status::unimplemented(""), "a:1").to_string();
        assert!(plain.starts_with("a:1: "), "{plain}");
    }

    #[test]
    fn nothing_that_a_terminal_obeys_comes_through() {
        let evil = || "\u{1b}]0;owned\u{7}\r\nerror: all is well\u{9b}2J".to_owned();
        let device = v1::DeviceError { device: evil(), op: evil(), detail: evil() };
        let peer = v1::PeerError { endpoint: evil(), detail: evil() };
        let late = v1::TimeoutError { what: evil(), after_ms: 1 };
        let (memory, busy) = (v1::OutOfMemory { device: evil(), needed: 2, free: 1 }, Kind::Misuse(evil()));
        let kinds = [Kind::Request(evil()), Kind::Device(device), Kind::Timeout(late), Kind::Peer(peer), busy];
        for kind in kinds.into_iter().chain([Kind::OutOfMemory(memory)]) {
            let text = from_wire(v1::Error { kind: Some(kind) }, "a:1").to_string();
            assert!(!text.contains(char::is_control) && text.contains("owned"), "{text:?}");
        }
        let text = from_status(&Status::internal(evil()), "a:1").to_string();
        assert!(!text.contains(char::is_control), "{text:?}");
    }

    #[test]
    fn long_texts_are_cut() {
        let e = to_wire(&Error::Request("\u{e9}".repeat(MAX_ERROR_TEXT)));
        assert!(matches!(e.kind, Some(Kind::Request(t)) if t.len() <= MAX_ERROR_TEXT));
    }
}
