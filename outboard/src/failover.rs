//! What happens when a server is lost while texts are under way.

use crate::devices::Servers;
use outboard_core::{Device, at_once};
use outboard_llm::{Failover, Recovery};
use outboard_rpc_client::{ClientOptions, Endpoint, connect};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// How long a server that was lost may take to answer: one that has come back does at once, and the texts wait.
const COME_BACK: Duration = Duration::from_secs(1);

/// Is told how texts go on after something was lost. It is called by the thread that they are generated on, which waits for it.
pub type OnRecovery = dyn FnMut(&Recovery) + Send;

/// Keeps texts going when servers are lost: connects to those that have come back; the model is divided anew over what is there.
pub struct Reconnect {
    servers: Servers,
    patience: Duration,
    on_recovery: Box<OnRecovery>,
}

impl Reconnect {
    /// To these servers.
    pub fn new(servers: &Servers, on_recovery: impl FnMut(&Recovery) + Send + 'static) -> Reconnect {
        let options = ClientOptions { connect_timeout: COME_BACK, ..servers.options.clone() };
        let servers = Servers { endpoints: servers.endpoints.clone(), options };
        Reconnect { servers, patience: Duration::ZERO, on_recovery: Box::new(on_recovery) }
    }

    /// Waits so long for lost servers to come back where the devices that are left have no room for the model.
    #[must_use]
    pub fn with_patience(mut self, patience: Duration) -> Reconnect {
        self.patience = patience;
        self
    }
}

impl fmt::Debug for Reconnect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reconnect").field("servers", &self.servers).finish_non_exhaustive()
    }
}

impl Failover for Reconnect {
    fn replace(&mut self, lost: &[String]) -> Vec<Arc<dyn Device>> {
        let of = |id: &String, endpoint: &Endpoint| id.rsplit_once('/').is_some_and(|(e, _)| e == endpoint.to_string());
        let is_gone = |endpoint: &&Endpoint| lost.iter().any(|id| of(id, endpoint));
        let gone: Vec<_> = self.servers.endpoints.iter().filter(is_gone).collect();
        // Each for itself: those that are still away do not matter to the others.
        let found = at_once(&gone, |&endpoint| connect(std::slice::from_ref(endpoint), &self.servers.options));
        found.into_iter().flatten().flatten().filter(|d| lost.contains(&d.info().id)).collect()
    }

    fn patience(&self) -> Duration {
        self.patience
    }

    fn recovered(&mut self, recovery: &Recovery) {
        (self.on_recovery)(recovery);
    }
}
