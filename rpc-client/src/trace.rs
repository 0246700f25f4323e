//! When the commands of this session ran on a server, by the clock of this process.

use crate::device::RemoteDevice;
use outboard_core::Result;
use outboard_proto::v1;
use std::time::{Duration, Instant};

/// Longest name of a command that is taken, in bytes; longer ones are cut.
const MAX_WHAT: usize = 32;

/// Whether a server goes on recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tracing {
    /// It records what its queues do from now on.
    GoOn,
    /// It records nothing more.
    Stop,
}

/// One command that a queue has run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteSpan {
    /// The queue, by [`outboard_core::Queue::uid`].
    pub queue: u64,
    /// Id of its device, as in [`outboard_core::DeviceInfo`].
    pub device: String,
    /// Which command.
    pub what: String,
    /// When it began to run, in microseconds of the server's clock.
    pub start_us: u64,
    /// When it was done.
    pub end_us: u64,
}

/// What an endpoint has recorded since the last call, for all of its devices together.
#[derive(Clone, Debug)]
pub struct RemoteTrace {
    /// The spans, each queue's in their order.
    pub spans: Vec<RemoteSpan>,
    /// Spans that were lost because they were not fetched in time.
    pub dropped: u64,
    /// The server's clock at [`RemoteTrace::at`], in microseconds.
    pub now_us: u64,
    /// The middle of the call.
    pub at: Instant,
    /// How far `at` may be off, either way: half of the call's time.
    pub error: Duration,
}

impl RemoteTrace {
    /// A time of the server's clock by the clock of this process: `at` is when the server's clock was `now_us`. `None` if this
    /// process's clock cannot say it.
    pub fn local(&self, server_us: u64) -> Option<Instant> {
        match server_us.checked_sub(self.now_us) {
            Some(later) => self.at.checked_add(Duration::from_micros(later)),
            None => self.at.checked_sub(Duration::from_micros(self.now_us - server_us)),
        }
    }
}

impl RemoteDevice {
    /// Fetches what the queues of this session have done since the last call. The server keeps some seconds' worth, and nothing
    /// before the first call with [`Tracing::GoOn`].
    ///
    /// The clocks are put side by side by the middle of the call: of several answers, that with the smallest
    /// [`RemoteTrace::error`] maps the clock best.
    pub fn trace(&self, then: Tracing) -> Result<RemoteTrace> {
        let connection = self.session().connection();
        let record = then == Tracing::GoOn;
        let request = v1::TraceRequest { session: Some(connection.session.clone()), record };
        let start = Instant::now();
        let (answer, end) = self.call("trace", connection.options.call_timeout, |mut client| async move {
            let answer = client.trace(request).await?.into_inner();
            Ok(tonic::Response::new((answer, Instant::now())))
        })?;
        let error = (end - start) / 2;
        let mut spans = Vec::new();
        for queue in answer.queues.into_iter().filter(|queue| self.session().devices.contains(&queue.device)) {
            let device = format!("{}/{}", connection.name, queue.device);
            // What ends before it begins is no span.
            for span in queue.spans.into_iter().filter(|s| s.start_us <= s.end_us) {
                let what = span.what.chars().filter(|c| !c.is_control()).take(MAX_WHAT).collect();
                let (start_us, end_us) = (span.start_us, span.end_us);
                spans.push(RemoteSpan { queue: queue.queue, device: device.clone(), what, start_us, end_us });
            }
        }
        Ok(RemoteTrace { spans, dropped: answer.dropped, now_us: answer.now_us, at: start + error, error })
    }
}
