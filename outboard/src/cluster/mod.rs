//! What a runner's devices hold and do: what lies where now, and what is measured while somebody looks.

mod monitor;
mod server;
mod spans;

pub(crate) use monitor::{Monitor, Told};

use outboard_core::{DeviceInfo, MemoryInfo};
use outboard_llm::{DeviceLoad, Stall};
use outboard_rpc_client::NetStats;
use std::time::{Duration, SystemTime};

/// The devices of a [`Runner`](crate::Runner), as [`Runner::cluster`](crate::Runner::cluster) knows them.
#[derive(Clone, Debug)]
pub struct Cluster {
    /// In the order in which the model was placed on them, those that are lost among them.
    pub devices: Vec<DeviceState>,
    /// The servers that the others than this host's are of, in the same order.
    pub servers: Vec<ServerState>,
    /// Tokens of all texts so far.
    pub tokens: u64,
    /// The same in a second, over the last ones; `None` until that was measured.
    pub tokens_per_second: Option<f64>,
    /// How long a token took over the last seconds in which texts were under way, prompts that were read meanwhile included: the parts of every device
    /// add up to it. With several texts at a time a step makes a token of each.
    pub token_time: Option<Duration>,
    /// What was lost, the oldest first; not more than the last ones.
    pub losses: Vec<Loss>,
    /// Who keeps texts waiting, if that takes long.
    pub stall: Option<Stall>,
}

/// A device.
#[derive(Clone, Debug)]
pub struct DeviceState {
    /// What it is.
    pub info: DeviceInfo,
    /// Its server's place in [`Cluster::servers`]; `None` for a device of this host.
    pub server: Option<usize>,
    /// What it holds of the model; `None` while it is lost.
    pub load: Option<DeviceLoad>,
    /// Its memory when it was last asked.
    pub memory: Option<MemoryInfo>,
    /// Where the time of a token went.
    pub token: Option<TokenTime>,
}

/// A device's part of the time of a token. The three add up to [`Cluster::token_time`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenTime {
    /// It computed.
    pub compute: Duration,
    /// No device computed: what was needed was on its way, or this process was at work.
    pub wire: Duration,
    /// It waited while another device computed.
    pub waiting: Duration,
}

/// A server.
#[derive(Clone, Debug)]
pub struct ServerState {
    /// Where it is.
    pub endpoint: String,
    /// Whether it answers; `None` until it was asked.
    pub reach: Option<Reach>,
    /// The shortest of the last calls that it has answered.
    pub round_trip: Option<Duration>,
    /// Bytes over its link since it was connected to.
    pub bytes: NetStats,
    /// The same in a second, between the last two calls.
    pub bytes_per_second: Option<NetStats>,
}

/// Whether a server answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reach {
    /// It does.
    Answers,
    /// It has been asked so long ago, and has said nothing yet.
    Silent(Duration),
    /// It is lost, and why; the next text, or the one under way, looks for it.
    Lost(String),
}

/// Something was lost, and texts went on.
#[derive(Clone, Debug)]
pub struct Loss {
    /// When they went on.
    pub at: SystemTime,
    /// What had happened, and how they went on.
    pub what: String,
    /// How long they stood still.
    pub took: Duration,
}
