//! What clients may take of a server, beyond the limits of the wire in [`outboard_proto::limits`].

use std::time::Duration;

/// Limits of one server.
#[derive(Clone, Debug)]
pub struct Limits {
    /// How long a session lives after the last sign of its client.
    pub lease: Duration,
    /// Connections at a time; each has a thread.
    pub connections: usize,
    /// Sessions at a time; each has a thread.
    pub sessions: usize,
    /// What one client may take, all of its sessions together.
    pub client: ClientLimits,
    /// What one session may take.
    pub session: SessionLimits,
    /// How long tensors from other servers are waited for.
    pub peers: PeerLimits,
}

/// Limits of one client: those who show the same certificate or token, or, where clients need neither, who come from the same address.
#[derive(Clone, Debug)]
pub struct ClientLimits {
    /// Bytes on each device; `None` is all there are.
    pub memory: Option<u64>,
    /// Connections at a time, and those of one address: half of all by default, so that no client keeps all others out.
    pub connections: usize,
    /// Sessions at a time.
    pub sessions: usize,
    /// Queues at a time; each has a thread.
    pub queues: usize,
}

/// Limits of one session.
#[derive(Clone, Debug)]
pub struct SessionLimits {
    /// Buffers at a time, some 300 bytes each beside their memory: ten for each tensor of a large model. Clients of this release take
    /// some dozens.
    pub buffers: usize,
    /// Compiled graphs at a time.
    pub executables: usize,
    /// Bytes of their encoded graphs. In memory they take several times as much, which is on no device's account.
    pub graph_bytes: u64,
    /// Queues at a time: several for each device.
    pub queues: usize,
    /// Bytes that were offered to other devices and not yet accepted.
    pub offered_bytes: u64,
}

/// Deadlines of tensors between servers.
#[derive(Clone, Debug)]
pub struct PeerLimits {
    /// From the acceptance of a tensor to its bytes, while the server that sends it is connected: it may have a long prefill to
    /// compute first.
    pub accept: Duration,
    /// From the last byte of a tensor to its acceptance. The client that sends one asks for the other at once, but its commands may
    /// stand behind others.
    pub push: Duration,
    /// How long a server that is to send a tensor may have no connection to this one.
    pub no_link: Duration,
}

impl Default for PeerLimits {
    fn default() -> Self {
        PeerLimits { accept: Duration::from_secs(300), push: Duration::from_secs(120), no_link: Duration::from_secs(5) }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            lease: Duration::from_secs(10),
            connections: 512,
            sessions: 256,
            client: ClientLimits::default(),
            session: SessionLimits::default(),
            peers: PeerLimits::default(),
        }
    }
}

impl Default for ClientLimits {
    fn default() -> Self {
        ClientLimits { memory: None, connections: 256, sessions: 128, queues: 512 }
    }
}

impl Default for SessionLimits {
    fn default() -> Self {
        SessionLimits {
            buffers: 1 << 16,
            executables: 4096,
            graph_bytes: 256 << 20,
            queues: 128,
            offered_bytes: 256 << 20,
        }
    }
}

/// Queues of one client that may each have [`KIB_IN_FLIGHT`] on the way: those of a run, and two for the weights, of several devices.
pub(crate) const WIDE_QUEUES: usize = 16;
/// Kibibytes of payload that wait in each further queue of a client; more than a chunk.
pub(crate) const NARROW_KIB: u32 = 4 << 10;
/// Connections to the address for metrics at a time; more wait to be accepted.
pub(crate) const METRICS_CONNECTIONS: usize = 16;
/// How long one of them may take for its request and the answer.
pub(crate) const METRICS_TIMEOUT: Duration = Duration::from_secs(10);
/// Largest head of their requests in bytes.
pub(crate) const METRICS_HEAD: usize = 16 << 10;
/// Names of clients, or addresses of servers, that have metrics of their own; the others share those named `other`.
pub(crate) const METRICS_NAMES: usize = 256;

/// Streams at a time on one connection: one per queue, and some calls.
pub(crate) const STREAMS: u32 = 256;
/// Largest header list of a request in bytes.
pub(crate) const HEADERS: u32 = 16 << 10;
/// A connection that has no session and has asked for nothing for this long is closed.
pub(crate) const IDLE: Duration = Duration::from_secs(30);
/// A connection is closed this long after its last session has ended.
pub(crate) const AFTER_SESSIONS: Duration = Duration::from_secs(2);
/// How long a stream may take to say whose it is.
pub(crate) const FIRST_MESSAGE: Duration = Duration::from_secs(5);
/// Commands of one session's queue that the device's queue holds at a time: some steps ahead. Devices need not take more
/// than 1024 without blocking, and markers come on top.
pub(crate) const COMMANDS_IN_FLIGHT: u32 = 512;
/// Kibibytes of payload that wait in a device's queue: enough to keep it busy, not a whole upload.
pub(crate) const KIB_IN_FLIGHT: u32 = 32 << 10;
/// After this many commands, or kibibytes, a marker tells how far the device is.
pub(crate) const MARK_COMMANDS: u32 = 64;
/// See [`MARK_COMMANDS`].
pub(crate) const MARK_KIB: u32 = 4 << 10;
/// Chunks that wait between a bulk stream and its queue, in each direction.
pub(crate) const BULK_CHUNKS: usize = 4;
/// How long a client has to find out that a bulk stream has ended in the middle of something, before its queue says so.
pub(crate) const CUT_STREAM: Duration = Duration::from_secs(1);
/// Replies that wait for a control stream; a client that does not read stops it.
pub(crate) const REPLIES: usize = 64;
/// Commands that are read while one waits for others: enough to see a client go that has enqueued some steps.
pub(crate) const READ_AHEAD: usize = 512;
/// And their bytes.
pub(crate) const READ_AHEAD_BYTES: usize = 1 << 20;
/// How long a free, or another queue, waits for a queue that it names and that is not open yet: streams do not wait for one another.
pub(crate) const OPEN_TIMEOUT: Duration = Duration::from_secs(5);
/// Frees of one session that wait for their fences; then its control stream waits.
pub(crate) const PENDING_FREES: usize = 256;
/// How long a question about blobs waits for model files that are still being looked at: less than sending them takes.
pub(crate) const MODELS_WAIT: Duration = Duration::from_secs(3);
/// How often sessions and connections are looked at, to end those whose client is gone.
pub(crate) const TICK: Duration = Duration::from_millis(250);
/// How long [`crate::Server::stop`] waits for connections and sessions to end.
pub(crate) const STOP_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a session that is taken up again waits for the devices to leave what its lost queues have given them: longer than any
/// one command, of which the rest is dropped.
pub(crate) const QUIET_TIMEOUT: Duration = Duration::from_secs(8);
/// How long an allocation that found no memory waits for buffers that are being freed.
/// Longer than they wait for queues that are not open yet.
pub(crate) const FREES_TIMEOUT: Duration = Duration::from_secs(8);

/// Links to other servers at a time. Each has a thread, a socket, and three descriptors of an event loop. A client may have what it
/// leaves to others ([`crate::fair`]), so half if it is alone.
pub(crate) const LINKS: u64 = 256;
/// Links of one session at a time, and so servers that it sends to.
pub(crate) const LINKS_PER_SESSION: usize = 64;
/// Links from other servers at a time, each on a connection, shared like [`LINKS`].
pub(crate) const INBOUND_LINKS: u64 = 256;
/// Links from other servers of one session at a time: one from each, and some that are lost and not yet known to be.
pub(crate) const INBOUND_LINKS_PER_SESSION: usize = 64;
/// Names of other servers that are looked up at a time, shared like [`LINKS`]. Each has a thread for as long as the system takes, which
/// may be half a minute where nobody answers.
pub(crate) const LOOKUPS: u64 = 32;
/// Addresses of another server that are tried.
pub(crate) const PEER_ADDRESSES: usize = 8;
/// From the first packet of a link to the welcome. Clients wait this long to learn whether two servers reach each other.
pub(crate) const LINK_TIMEOUT: Duration = Duration::from_millis(1500);
/// How often the other side of a link is asked whether it is there.
pub(crate) const LINK_PING: Duration = Duration::from_secs(1);
/// The other side of a link is lost if nothing goes through for this long, in either direction.
pub(crate) const LINK_DEAD: Duration = Duration::from_secs(4);
/// A link over which nothing was sent for this long is closed, though its session lives. Longer than a tensor is waited for
/// ([`PeerLimits::accept`]): the end of a link fails what is expected on it.
pub(crate) const LINK_UNUSED: Duration = Duration::from_secs(15 * 60);
/// Bytes that wait on one link: what the queues of a session may have on the way, 16 wide ones and 112 narrow ones. Each queue's own
/// limit makes its client wait before that.
pub(crate) const LANE_BYTES: u64 = 1 << 30;
/// News of transfers that will not come that wait on one link, of at most 8 KiB. More means a network that takes nothing: the link is
/// given up, which fails what is expected on it.
pub(crate) const LANE_NEWS: usize = 4096;
/// Refusals that wait for another server; those beyond that are only logged.
pub(crate) const REFUSALS: usize = 256;
/// Transfers on one link that are under way at a time.
pub(crate) const COMING: usize = 1024;
/// Bytes of tensors from other servers that came and are not accepted, or that came faster than their queue takes them; declared ones
/// until they are accepted. Shared by clients like [`LINKS`].
pub(crate) const EARLY_BYTES: u64 = 2 << 30;
/// Such tensors, of which each may bring an error of 2 KiB in place of bytes.
pub(crate) const EARLY_COUNT: u64 = 16 << 10;
/// Bytes of one session among [`EARLY_BYTES`]: twice what a client hands over before it waits.
pub(crate) const EARLY_BYTES_PER_SESSION: u64 = 512 << 20;
/// Tensors of one session among [`EARLY_COUNT`].
pub(crate) const EARLY_COUNT_PER_SESSION: u64 = 2 << 10;
/// Tensors of one session that are accepted and have not come, some 300 bytes each.
pub(crate) const WANTED: usize = 8 << 10;
/// Tickets of one session that are remembered after their use, 8 bytes each.
pub(crate) const USED_TICKETS: usize = 2 << 10;
/// A tensor of which nothing more comes for this long, while its link lives, has failed.
pub(crate) const STALLED: Duration = Duration::from_secs(10);
/// Pieces of tensors up to this many bytes are copied where they wait, so that they do not keep a larger buffer that they came in.
pub(crate) const SMALL_PIECE: usize = 16 << 10;
