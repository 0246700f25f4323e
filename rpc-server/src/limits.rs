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
    /// How long a link that no session uses is kept.
    pub linger: Duration,
}

impl Default for PeerLimits {
    fn default() -> Self {
        PeerLimits {
            accept: Duration::from_secs(300),
            push: Duration::from_secs(120),
            no_link: Duration::from_secs(5),
            linger: Duration::from_secs(30),
        }
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

/// Threads that place and check blobs, of the whole server: each reads, hashes, and copies to a device at memory speed. Calls take
/// turns on them, so that their number costs others time, not threads, queues or files.
pub(crate) const BLOB_THREADS: usize = 4;
/// Bytes of one call before the next one has its turn, if any waits: some hundredths of a second of work.
pub(crate) const BLOB_TURN_BYTES: u64 = 32 << 20;
/// Blobs of one call before the next one has its turn: opening a file costs as much as hashing a hundred kilobytes.
pub(crate) const BLOB_TURN_BLOBS: usize = 256;
/// Calls about blobs of one session that are worked on, or in the line for it; others wait for these. A client that loads has two or
/// three, and one for each server that borrows from this one.
pub(crate) const BLOB_CALLS_SESSION: usize = 16;
/// Calls about blobs of one client at a time, those that wait included: some 300 kB each.
pub(crate) const BLOB_CALLS_CLIENT: usize = 256;
/// Queues of one client at a time that receive blobs; each has one more thread, and a file while a blob comes. A client that loads
/// has two for each device.
pub(crate) const BLOB_RECEIVERS_CLIENT: usize = 128;
/// Blobs of one client that are being written to the cache or wait for the disk; each is an open file. What comes then waits for
/// the disk, or is not kept.
pub(crate) const BLOB_FILES_CLIENT: usize = 64;
/// The same of all clients together; what comes then is not kept.
pub(crate) const BLOB_FILES: usize = 256;
/// Blobs of one client that are being written have at most this part of the cache's limit, by the lengths that it has said; others
/// are not kept. A blob that is larger is not kept either.
pub(crate) const BLOB_WRITING_CLIENT_PART: u64 = 3;
/// Blobs of all clients that are being written have at most this part of the cache's limit, beside it, by the bytes that have come.
pub(crate) const BLOB_WRITING_PART: u64 = 2;
/// Blobs of a client without their digests, before nothing that it sends is kept any more: a load whose file has changed sends one or
/// two before it fails.
pub(crate) const WRONG_DIGESTS: u32 = 4;
/// How long after the last of them nothing is kept.
pub(crate) const DISTRUST: Duration = Duration::from_secs(600);
/// Longest wait of a queue for the disk to take more of what its client has sent; then the next blob is not kept.
pub(crate) const DISK_WAIT: Duration = Duration::from_secs(60);
