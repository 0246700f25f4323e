//! What `run` does when it loses a server: says so, and looks whether it has come back.

use crate::args::DeviceArgs;
use crate::print;
use outboard_core::{Device, at_once};
use outboard_llm::{Failover, Recovery};
use outboard_output as output;
use outboard_rpc_client::{ClientOptions, Endpoint, connect};
use serde::Serialize;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How long a server that was lost may take to answer: one that has come back does at once, and the run waits.
const COME_BACK: Duration = Duration::from_secs(1);

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
}

/// Keeps a run going.
pub(crate) struct Servers {
    endpoints: Vec<Endpoint>,
    options: ClientOptions,
    recoveries: Recoveries,
}

impl Servers {
    pub(crate) fn new(args: &DeviceArgs, recoveries: &Recoveries) -> anyhow::Result<Servers> {
        let options = ClientOptions { connect_timeout: COME_BACK, ..args.options()? };
        Ok(Servers { endpoints: args.rpc.0.clone(), options, recoveries: recoveries.clone() })
    }
}

impl Failover for Servers {
    fn replace(&mut self, lost: &[String]) -> Vec<Arc<dyn Device>> {
        let of = |id: &String, endpoint: &Endpoint| id.rsplit_once('/').is_some_and(|(e, _)| e == endpoint.to_string());
        let gone: Vec<_> = self.endpoints.iter().filter(|endpoint| lost.iter().any(|id| of(id, endpoint))).collect();
        // Each for itself: those that are still away do not matter to the others.
        let found = at_once(&gone, |&endpoint| connect(std::slice::from_ref(endpoint), &self.options));
        found.into_iter().flatten().flatten().filter(|d| lost.contains(&d.info().id)).collect()
    }

    fn recovered(&mut self, recovery: &Recovery) {
        let _ = output::errln(format_args!("warning: {}", output::one_line(&recovery.to_string())));
        self.recoveries.0.lock().unwrap_or_else(PoisonError::into_inner).push(Recovered {
            error: output::one_line(&recovery.error.to_string()),
            resumed: recovery.devices.is_none(),
            tokens: recovery.tokens,
            ms: print::ms(recovery.took),
        });
    }
}
