//! What clients may take of a server, beyond the limits of the wire in [`outboard_proto::limits`].

#[cfg(test)]
mod table;
pub mod worst;

use outboard_net::Windows;
use outboard_net::limits::QUIC_STREAM_WINDOW;
use outboard_proto::limits::{CHUNK, MAX_BLOBS_BYTES, MAX_ERROR_TEXT, MAX_FREE, MAX_INLINE, MAX_TOKEN};
use std::time::Duration;

/// Limits of one server.
#[derive(Clone, Debug)]
pub struct Limits {
    /// How long a session lives after the last sign of its client.
    pub lease: Duration,
    /// Connections at a time; each has a thread with an event loop. There are fewer where the process may not have so many file
    /// descriptors.
    pub connections: usize,
    /// Of those, connections whose client has not shown yet who it is. When all are taken, the oldest of the address that has the
    /// most of them makes room for the next one.
    pub strangers: usize,
    /// Sessions at a time; each has a thread.
    pub sessions: usize,
    /// Queues at a time; each has a thread.
    pub queues: usize,
    /// Buffers at a time.
    pub buffers: usize,
    /// Bytes that the compiled graphs of all clients take.
    pub graphs: u64,
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
    /// Connections at a time: three for each of thirty processes.
    pub connections: usize,
    /// Sessions at a time.
    pub sessions: usize,
    /// Queues at a time; each has a thread.
    pub queues: usize,
    /// Buffers at a time, some 512 bytes each beside their memory.
    pub buffers: usize,
    /// Bytes that its compiled graphs take, counted by their tensors and twice their encoded bytes: those of some hundred large models.
    pub graphs: u64,
    /// Bytes that were offered to other devices of this server and not yet accepted.
    pub offered_bytes: u64,
}

/// Limits of one session.
#[derive(Clone, Debug)]
pub struct SessionLimits {
    /// Buffers at a time, some 512 bytes each beside their memory: ten for each tensor of a large model. Clients of this release take
    /// some dozens.
    pub buffers: usize,
    /// Compiled graphs at a time.
    pub executables: usize,
    /// Bytes of their encoded graphs. What they take in memory is counted for the client: [`ClientLimits::graphs`].
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
            strangers: 96,
            sessions: 256,
            queues: 1024,
            buffers: 1 << 19,
            graphs: 2 << 30,
            client: ClientLimits::default(),
            session: SessionLimits::default(),
            peers: PeerLimits::default(),
        }
    }
}

impl Default for ClientLimits {
    fn default() -> Self {
        ClientLimits {
            memory: None,
            connections: 96,
            sessions: 64,
            queues: 128,
            buffers: 1 << 17,
            graphs: 256 << 20,
            offered_bytes: 512 << 20,
        }
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

/// Connections to the address for metrics at a time; more wait to be accepted.
pub(crate) const METRICS_CONNECTIONS: usize = 16;
/// How long one of them may take for its request and the answer.
pub(crate) const METRICS_TIMEOUT: Duration = Duration::from_secs(10);
/// Largest head of their requests in bytes.
pub(crate) const METRICS_HEAD: usize = 16 << 10;
/// Names of clients, or addresses of servers, that have metrics of their own; the others share those named `other`.
pub(crate) const METRICS_NAMES: usize = 256;

/// File descriptors of one connection: its socket, and three of its event loop.
pub(crate) const CONNECTION_DESCRIPTORS: usize = 4;
/// File descriptors that this process has beside its connections, links and files: standard streams, sockets that listen, their
/// event loops, those for metrics.
pub(crate) const OTHER_DESCRIPTORS: usize = 32 + METRICS_CONNECTIONS;
/// Fewest connections of a server, whatever its limit of file descriptors.
pub(crate) const FEWEST_CONNECTIONS: usize = 8;
/// Of the strangers of a server, one address may be this part: 3 of 4. Who connects many times at once is not slowed down.
pub(crate) const STRANGERS_OF_ONE: (usize, usize) = (3, 4);
/// QUIC handshakes at a time of clients whose address is only claimed, so far: anybody can send a packet in another's name. They are
/// on nobody's account. Beyond them a client proves its address first, which takes it one more round trip.
pub(crate) const HANDSHAKES: usize = 32;
/// How long a new connection waits for one that makes room for it.
pub(crate) const ROOM_TIMEOUT: Duration = Duration::from_secs(1);

/// Bytes that a server reads from a connection before its client has shown who it is, beside those of [`resume_bytes`]: of
/// handshakes, headers, and a first message. More waits until it has.
pub(crate) const EARLY_BYTES: usize = 256 << 10;
/// Calls that are carried out at a time on a connection before its client has shown who it is; others wait.
pub(crate) const EARLY_CALLS: usize = 8;
/// A connection is closed after this long if its client has not shown who it is. Where anybody may come, it may ask for the list of
/// devices again in that time, and stay.
pub(crate) const STRANGER: Duration = Duration::from_secs(10);
/// Wrong tokens on a connection before it is closed.
pub(crate) const WRONG_TOKENS: u32 = 3;
/// How long the answer to a token waits after a wrong one from the same address, right or wrong. Doubles with each wrong one.
pub(crate) const WRONG_TOKEN_DELAY: Duration = Duration::from_millis(100);
/// The longest such wait: shorter than a client waits for its session.
pub(crate) const LONGEST_TOKEN_DELAY: Duration = Duration::from_secs(2);
/// After this long without a wrong token, the wait is half as long.
pub(crate) const TOKEN_DELAY_HALVES: Duration = Duration::from_secs(10);
/// Addresses whose wrong tokens are remembered.
pub(crate) const GUESSING_ADDRESSES: usize = 4096;
/// How long a connection lives after its last answer, for that to arrive.
pub(crate) const LAST_ANSWER: Duration = Duration::from_millis(100);

/// Streams at a time on one connection: the queues of a session, and some calls.
pub(crate) const STREAMS: u32 = 160;
/// Streams and calls of one client at a time, on all of its connections.
pub(crate) const CALLS: usize = 512;
/// The same of all clients.
pub(crate) const ALL_CALLS: usize = 4096;
/// Largest header list of a request in bytes: several times that of a client with a token.
pub(crate) const HEADERS: u32 = 4 << 10;
/// Longest value of a header that is kept, in bytes: the longest token, and the word before it.
pub(crate) const HEADER_VALUE: usize = MAX_TOKEN + 16;
/// Bytes in flight to a connection whose client has not shown who it is: a request and more. HTTP/2 knows no less.
pub(crate) const EARLY_WINDOW: u32 = 64 << 10;
/// Bytes that are read at a time from such a connection, so that what they make is dealt with before there is more.
pub(crate) const EARLY_READ: usize = 4 << 10;
/// Bytes in flight on one stream: some thousand commands, or a graph.
pub(crate) const STREAM_WINDOW: u32 = 512 << 10;
/// Bytes in flight to a connection of a client: enough for some streams that wait and are not read.
pub(crate) const WINDOW: u32 = 3 << 20;
/// Bytes in flight on a QUIC connection of a client, each way, below those of its streams.
pub(crate) const QUIC_NARROW: Windows = Windows { receive: 512 << 10, send: 512 << 10 };
/// The same where it carries bulk data: one stream of that, and room for commands beside it.
pub(crate) const QUIC_WIDE: Windows = Windows { receive: QUIC_STREAM_WINDOW + (4 << 20), send: 12 << 20 };
/// Connections of one client that may have the windows of bulk data, [`outboard_proto::limits::HTTP2_BULK_WINDOW`]: more matters only
/// where a network is long as well as fast, and there few clients fill it.
pub(crate) const WIDE_CONNECTIONS: usize = 8;
/// The same of all clients.
pub(crate) const ALL_WIDE_CONNECTIONS: usize = 64;
/// Bytes that wait for the socket on one stream, beside one message or chunk.
pub(crate) const SEND_BUFFER: usize = 256 << 10;

/// Largest message of a call that does not need more, in bytes. Messages up to this size are on no account.
pub(crate) const SMALL_MESSAGE: usize = 16 << 10;
/// Largest question about blobs, or list of them, in bytes.
pub(crate) const BLOBS_MESSAGE: usize = MAX_BLOBS_BYTES + SMALL_MESSAGE;
/// Largest command of a queue, in bytes: a payload in the stream, and names.
pub(crate) const MAX_COMMAND: usize = MAX_INLINE + (8 << 10);
/// Largest request to free, in bytes: as many handles and fences as it may have.
pub(crate) const MAX_FREE_BYTES: usize = 2 * MAX_FREE * VARINT + MAX_FENCES * (2 * VARINT + 4) + 64;
/// Fences of one request to free: every queue that is known of a session.
pub(crate) const MAX_FENCES: usize = KNOWN_QUEUES;
/// Queues of one session that are known, with some that are closed: late waits and frees name those.
pub(crate) const KNOWN_QUEUES: usize = 1024;
/// Bytes of the longest number on the wire.
const VARINT: usize = 10;
/// Kibibytes of one client's larger messages that are read or worked on at a time: some graphs of the largest size.
pub(crate) const MESSAGES_KIB: usize = 48 << 10;
/// The same of all clients.
pub(crate) const ALL_MESSAGES_KIB: usize = 256 << 10;
/// How long a larger message waits for that room.
pub(crate) const MESSAGE_ROOM: Duration = Duration::from_secs(10);
/// How long the message of a call may take to come: the largest graph at 1 MB/s.
pub(crate) const CALL_MESSAGE: Duration = Duration::from_secs(20);
/// Requests of one session that wait for its thread; others are not read.
pub(crate) const SESSION_JOBS: usize = 8;
/// How long a control stream waits for an earlier one of its session to end: there is one at a time.
pub(crate) const CONTROL_TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes of one session's requests to free that wait for their fences; then its control stream waits.
pub(crate) const PENDING_FREE_BYTES: usize = 256 << 10;

/// Bytes that a tensor of a compiled graph is counted as: measured, 370 to 470 with one or two sources, and 110 for each
/// further one, of which few have more than four.
pub(crate) const TENSOR_BYTES: u64 = 1 << 10;
/// The same of a compiled graph without tensors.
pub(crate) const EXECUTABLE_BYTES: u64 = 4 << 10;
/// Bytes of a buffer beside its memory.
pub(crate) const BUFFER_BYTES: u64 = 512;

/// Bytes that a graph takes in memory: its tensors, and twice its encoded bytes for names and parameters.
pub(crate) fn graph_bytes(tensors: usize, encoded: usize) -> u64 {
    EXECUTABLE_BYTES + TENSOR_BYTES * tensors as u64 + 2 * encoded as u64
}

/// Bytes of the largest request to take up a session: all handles that it can have.
pub(crate) fn resume_bytes(session: &SessionLimits) -> usize {
    resume_handles(session) * VARINT + 128
}

/// Handles of that request.
pub(crate) fn resume_handles(session: &SessionLimits) -> usize {
    session.buffers + session.executables
}

/// Bytes that are read from a connection before its client has shown who it is.
pub(crate) fn early_bytes(session: &SessionLimits) -> usize {
    EARLY_BYTES + resume_bytes(session)
}

/// A connection that has no session and has asked for nothing for this long is closed.
pub(crate) const IDLE: Duration = Duration::from_secs(30);
/// A connection is closed this long after its last session has ended.
pub(crate) const AFTER_SESSIONS: Duration = Duration::from_secs(2);
/// How long a stream may take to say whose it is.
pub(crate) const FIRST_MESSAGE: Duration = Duration::from_secs(5);
/// Commands of one session's queue that the device's queue holds at a time: some steps ahead. Devices need not take more
/// than 1024 without blocking, and markers come on top.
pub(crate) const COMMANDS_IN_FLIGHT: u32 = 512;
/// Kibibytes of payload that one queue's device queue holds: enough to keep it busy, not a whole upload.
pub(crate) const KIB_IN_FLIGHT: u32 = 32 << 10;
/// Beside those, kibibytes that each queue has for itself, so that it can go on whatever others do: a chunk. The rest it shares.
pub(crate) const OWN_KIB: u32 = 1 << 10;
/// Kibibytes of payload that the queues of one client share, beyond what each has for itself.
pub(crate) const PAYLOAD_KIB: usize = 128 << 10;
/// The same of all clients.
pub(crate) const ALL_PAYLOAD_KIB: usize = 1 << 20;
/// After this many commands, or kibibytes, a marker tells how far the device is.
pub(crate) const MARK_COMMANDS: u32 = 64;
/// See [`MARK_COMMANDS`].
pub(crate) const MARK_KIB: u32 = 4 << 10;
/// Chunks that wait between a bulk stream and its queue. Each queue has room for one of its own; the others take room that is shared.
pub(crate) const BULK_CHUNKS: usize = 4;
/// Kibibytes that a chunk counts as while it waits there.
pub(crate) const CHUNK_KIB: u32 = (CHUNK >> 10) as u32;
/// How long a client has to find out that a bulk stream has ended in the middle of something, before its queue says so.
pub(crate) const CUT_STREAM: Duration = Duration::from_secs(1);
/// Replies that wait for a control stream; a client that does not read stops it.
pub(crate) const REPLIES: usize = 64;
/// Commands that are read while one waits for others: enough to see a client go that has enqueued some steps.
pub(crate) const READ_AHEAD: usize = 512;
/// And their bytes.
pub(crate) const READ_AHEAD_BYTES: usize = 256 << 10;
/// How long a free, or another queue, waits for a queue that it names and that is not open yet: streams do not wait for one another.
pub(crate) const OPEN_TIMEOUT: Duration = Duration::from_secs(5);
/// Frees of one session that wait for their fences; then its control stream waits. See [`PENDING_FREE_BYTES`].
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
/// turns on them, so that their number costs others time, not threads, queues or files. A client may have what it leaves to others
/// ([`crate::fair`]), so half if it is alone.
pub(crate) const BLOB_THREADS: usize = 12;
/// Bytes of one call before the next one has its turn, if any waits: some hundredths of a second of work.
pub(crate) const BLOB_TURN_BYTES: u64 = 32 << 20;
/// Blobs of one call before the next one has its turn: opening a file costs as much as hashing a hundred kilobytes.
pub(crate) const BLOB_TURN_BLOBS: usize = 256;
/// Calls about blobs of one session that are worked on, or in the line for it; others wait for these. A client that loads has two or
/// three, and one for each server that borrows from this one.
pub(crate) const BLOB_CALLS_SESSION: usize = 16;
/// Calls about blobs of one client at a time, those that wait included: half a megabyte each.
pub(crate) const BLOB_CALLS_CLIENT: usize = 256;
/// Queues of one client at a time that receive blobs; each has one more thread, and a file while a blob comes. A client that loads
/// has two for each device.
pub(crate) const BLOB_RECEIVERS_CLIENT: usize = 64;
/// Blobs of one client that are being written to the cache or wait for the disk; each is an open file. What comes then waits for
/// the disk, or is not kept.
pub(crate) const BLOB_FILES_CLIENT: usize = 64;
/// The same of all clients together; what comes then is not kept.
pub(crate) const BLOB_FILES: usize = 192;
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

/// Links to other servers at a time, fewer where the process may not have so many file descriptors. Each has a thread, a socket, and
/// three descriptors of an event loop. A client may have what it leaves to others ([`crate::fair`]), so half if it is alone.
pub(crate) const LINKS: usize = 256;
/// Fewest links of a server, whatever its limit of file descriptors.
pub(crate) const FEWEST_LINKS: usize = 4;
/// Links of one session at a time, and so servers that it sends to.
pub(crate) const LINKS_PER_SESSION: usize = 64;
/// Links from other servers at a time, each on a connection, shared like [`LINKS`].
pub(crate) const INBOUND_LINKS: u64 = 256;
/// Links from other servers of one session at a time: one from each, and some that are lost and not yet known to be.
pub(crate) const INBOUND_LINKS_PER_SESSION: usize = 64;
/// Names of other servers that are looked up at a time, shared like [`LINKS`]. Each has a thread for as long as the system takes, which
/// may be half a minute where nobody answers.
pub(crate) const LOOKUPS: u64 = 32;
/// From the first packet of a link to the welcome. Clients wait this long to learn whether two servers reach each other.
pub(crate) const LINK_TIMEOUT: Duration = Duration::from_millis(1500);
/// How often the other side of a link is asked whether it is there.
pub(crate) const LINK_PING: Duration = Duration::from_secs(1);
/// The other side of a link is lost if nothing goes through for this long, in either direction.
pub(crate) const LINK_DEAD: Duration = Duration::from_secs(4);
/// A link over which nothing was sent for this long is closed, though its session lives. Longer than a tensor is waited for
/// ([`PeerLimits::accept`]): the end of a link fails what is expected on it.
pub(crate) const LINK_UNUSED: Duration = Duration::from_secs(15 * 60);
/// Bytes of a link that wait for the socket.
pub(crate) const LINK_SEND_BUFFER: usize = 1 << 20;
/// Bytes of answers in flight to a link: there are few.
pub(crate) const LINK_DOWN_WINDOW: u32 = 256 << 10;
/// Largest header list of an answer to a link: an error of [`MAX_ERROR_TEXT`] bytes, encoded.
pub(crate) const LINK_HEADERS: u32 = 4 * MAX_ERROR_TEXT as u32;
/// Bytes that wait on one link: more than the queues of a client may have on the way, so that its client waits before that.
pub(crate) const LANE_BYTES: u64 = 1 << 30;
/// News of transfers that will not come that wait on one link. More means a network that takes nothing: the link is given up, which
/// fails what is expected on it.
pub(crate) const LANE_NEWS: usize = 512;
/// Refusals that wait for another server; those beyond that are only logged.
pub(crate) const REFUSALS: usize = 256;
/// Transfers on one link that are under way at a time.
pub(crate) const COMING: usize = 1024;
/// Bytes of tensors from other servers that came and are not accepted, or that came faster than their queue takes them; declared ones
/// until they are accepted. Shared by clients like [`LINKS`].
pub(crate) const INBOX_BYTES: u64 = 1 << 30;
/// Such tensors, of which each may bring an error of 2 KiB in place of bytes.
pub(crate) const INBOX_COUNT: u64 = 16 << 10;
/// Bytes of one session among [`INBOX_BYTES`]: twice what a client hands over before it waits.
pub(crate) const INBOX_BYTES_PER_SESSION: u64 = 512 << 20;
/// Tensors of one session among [`INBOX_COUNT`].
pub(crate) const INBOX_COUNT_PER_SESSION: u64 = 2 << 10;
/// Tensors of one session that are accepted and have not come, some 300 bytes each.
pub(crate) const WANTED: usize = 8 << 10;
/// Tickets of one session that are remembered after their use, 8 bytes each.
pub(crate) const USED_TICKETS: usize = 2 << 10;
/// A tensor of which nothing more comes for this long, while its link lives, has failed.
pub(crate) const STALLED: Duration = Duration::from_secs(10);
/// Pieces of tensors up to this many bytes are joined where they wait, so that they do not keep the larger buffers that they came in.
pub(crate) const SMALL_PIECE: usize = 16 << 10;
