//! What a peer may choose, and how much of it. Checked before anything is allocated.

/// Largest message on any stream or call, in bytes: a graph of [`outboard_core::graph::MAX_TENSORS`] tensors of some 200 bytes
/// and the places of its tensors.
pub const MAX_MESSAGE: usize = 20 << 20;
/// Largest encoded graph, in bytes.
pub const MAX_GRAPH: usize = 16 << 20;
/// Largest encoded tensor of a graph, in bytes: name, 8 sources and the parameters of an op take some hundred.
pub const MAX_TENSOR: usize = 4 << 10;
/// Largest encoded `Places`, in bytes: four varints for each tensor of the largest graph.
pub const MAX_PLACES: usize = 3 << 20;
/// Payloads up to this many bytes travel with the command; larger ones on a bulk connection, so that no command waits longer
/// than it takes to send this much.
pub const MAX_INLINE: usize = 64 << 10;
/// Bytes of a chunk on the bulk stream: large enough that headers do not matter, small enough to share a link fairly.
pub const CHUNK: usize = 1 << 20;
/// Largest message on a bulk stream that is no chunk, in bytes: the one that opens it.
pub const MAX_BULK_OPEN: usize = 256;
/// Largest message between servers that is no chunk, in bytes: an error with its text.
pub const MAX_PEER_MESSAGE: usize = 8 << 10;
/// Longest address of a server in bytes: the longest name of the DNS, and a port.
pub const MAX_ADDRESS: usize = 260;
/// Longest name of a device, client or feature in bytes.
pub const MAX_NAME: usize = 256;
/// Shortest bearer token in bytes: 16 random characters cannot be guessed, ten can.
pub const MIN_TOKEN: usize = 16;
/// Longest bearer token in bytes.
pub const MAX_TOKEN: usize = 512;
/// Longest text of an error in bytes; longer ones are cut.
pub const MAX_ERROR_TEXT: usize = 2048;
/// Handles in one `Free`.
pub const MAX_FREE: usize = 4096;
/// Transfers that were offered and not yet accepted, of one session.
pub const MAX_TICKETS: usize = 1024;
/// Spans that a server keeps for one session until they are fetched: some seconds of decoding, about 1 MiB.
pub const MAX_TRACE_SPANS: usize = 1 << 14;
/// Blobs of which one message asks, or that it places.
pub const MAX_BLOBS: usize = 4096;
/// Largest encoded `Blobs`, in bytes: a digest and three varints for each.
pub const MAX_BLOBS_BYTES: usize = MAX_BLOBS * (32 + 3 * 10) + 64;
/// Smaller contents are no blobs, in bytes: asking for one would cost nearly as much as sending it. All that are smaller in a
/// model make less than a megabyte.
pub const MIN_BLOB: u64 = 4 << 10;

/// Size of HTTP/2 frames in bytes, both ways: measured, 16 KiB costs half of the throughput.
pub const HTTP2_FRAME: u32 = 1 << 20;
/// Bytes in flight on one stream of a bulk connection.
pub const HTTP2_BULK_STREAM_WINDOW: u32 = 16 << 20;
/// Bytes in flight on a bulk connection.
pub const HTTP2_BULK_WINDOW: u32 = 32 << 20;
