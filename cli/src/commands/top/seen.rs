//! What `/cluster` of `outboard serve` says: docs/serve.md has its fields.

use serde::Deserialize;

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Cluster {
    pub(super) build_info: String,
    pub(super) draining: bool,
    pub(super) model: Model,
    /// The names of all.
    #[serde(default)]
    pub(super) models: Vec<String>,
    pub(super) tokens: u64,
    pub(super) tokens_per_second: Option<f64>,
    pub(super) token_ms: Option<f64>,
    pub(super) waiting: usize,
    pub(super) slots: Vec<Slot>,
    pub(super) hosts: Vec<Host>,
    pub(super) losses: Vec<Loss>,
    pub(super) stall: Option<Stall>,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Model {
    pub(super) name: String,
    pub(super) architecture: String,
    pub(super) layers: usize,
    pub(super) size: u64,
    pub(super) n_ctx: usize,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Slot {
    pub(super) id: usize,
    pub(super) is_processing: bool,
    #[serde(default)]
    pub(super) prompt_tokens: usize,
    #[serde(default)]
    pub(super) tokens: usize,
    #[serde(default)]
    pub(super) seconds: f64,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Host {
    /// `None` for the host of the service.
    pub(super) endpoint: Option<String>,
    pub(super) state: State,
    pub(super) detail: Option<String>,
    pub(super) round_trip_ms: Option<f64>,
    pub(super) bytes_per_second: Option<Rates>,
    pub(super) devices: Vec<Device>,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub(super) enum State {
    Here,
    Answers,
    Silent,
    Lost,
    #[serde(other)]
    Unknown,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Rates {
    pub(super) sent: u64,
    pub(super) received: u64,
    pub(super) to_servers: u64,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Device {
    pub(super) name: String,
    pub(super) holds: Option<Holds>,
    pub(super) memory: Option<Memory>,
    pub(super) token: Option<Token>,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Holds {
    pub(super) layers: Vec<(usize, usize)>,
    pub(super) weight_bytes: u64,
    pub(super) cache_bytes: u64,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Memory {
    pub(super) free: u64,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Token {
    pub(super) compute_ms: f64,
    pub(super) wire_ms: f64,
    pub(super) waiting_ms: f64,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Loss {
    pub(super) at: u64,
    pub(super) what: String,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Stall {
    pub(super) who: String,
    pub(super) doing: String,
    pub(super) seconds: u64,
}
