//! Calls that wait for answers of a helper, and what belongs to them until then.

use crate::message::Done;
use crate::stream::{Kept, Room};
use bytes::Bytes;
use outboard_core::Error;
use outboard_core::device::Completer;
use outboard_core::local::{Funds, Payment};
use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// What one client has of a helper, as far as its end matters.
#[derive(Debug, Default)]
pub(crate) struct HelperClient {
    /// The helper was ended for its silence while it had an answer to give to this client.
    hung: OnceLock<Duration>,
}

impl HelperClient {
    /// For how long it was silent, if it was ended for that while it had an answer to give to this client.
    pub(crate) fn hung(&self) -> Option<Duration> {
        self.hung.get().copied()
    }

    /// The helper was ended for being silent so long, and had an answer to give to this client.
    pub(crate) fn has_hung(&self, silence: Duration) {
        // The first time is the one that counts.
        let _ = self.hung.set(silence);
    }
}

/// The calls of a helper.
#[derive(Default)]
pub(crate) struct Calls {
    pub(crate) waiting: HashMap<u64, Waiting>,
    /// What everybody is told from its end on.
    pub(crate) ended: Option<Error>,
}

/// A call without an answer.
pub(crate) struct Waiting {
    pub(crate) to: Completer<Reply>,
    pub(crate) in_flight: InFlight,
    pub(crate) payments: Vec<Payment>,
    /// Bytes that they are for.
    pub(crate) paid: u64,
}

/// What belongs to a call until its answer is there.
#[derive(Default)]
pub(crate) struct InFlight {
    /// What must live that long.
    pub(crate) _keeps: Vec<Kept>,
    /// The bytes that it has under way.
    pub(crate) _room: Option<Room>,
    /// Who pays for memory that it takes.
    pub(crate) payer: Option<Funds>,
    /// Whose call it is, if it is one client's.
    pub(crate) client: Option<Arc<HelperClient>>,
}

/// An answer.
pub(crate) struct Reply {
    pub(crate) done: Done,
    pub(crate) bytes: Bytes,
    /// For what it has taken, and how many bytes that is.
    pub(crate) payments: Vec<Payment>,
    pub(crate) paid: u64,
    /// When it came.
    pub(crate) at: Instant,
}
