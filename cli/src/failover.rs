//! What `run` says and reports when it has lost a server.

use crate::print;
use outboard::devices::Servers;
use outboard::{Reconnect, Recovery};
use outboard_output as output;
use serde::Serialize;
use std::sync::{Arc, Mutex, PoisonError};

/// What a run has gone through, for its report.
#[derive(Clone, Serialize)]
pub(crate) struct Recovered {
    error: String,
    /// Whether the servers still had everything.
    resumed: bool,
    /// Tokens that were read again.
    tokens: usize,
    ms: f64,
}

/// The recoveries of a run.
#[derive(Clone, Default)]
pub(crate) struct Recoveries(Arc<Mutex<Vec<Recovered>>>);

impl Recoveries {
    pub(crate) fn list(&self) -> Vec<Recovered> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Keeps a run going, and takes note of it here.
    pub(crate) fn reconnect(&self, servers: &Servers) -> Reconnect {
        let recoveries = self.clone();
        Reconnect::new(servers, move |recovery| recoveries.note(recovery))
    }

    fn note(&self, recovery: &Recovery) {
        let _ = output::errln(format_args!("warning: {}", output::one_line(&recovery.to_string())));
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(Recovered {
            error: output::one_line(&recovery.error.to_string()),
            resumed: recovery.devices.is_none(),
            tokens: recovery.tokens,
            ms: print::ms(recovery.took),
        });
    }
}
