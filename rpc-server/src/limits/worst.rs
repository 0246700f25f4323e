//! The most that others can hold of a server outside the memory of its devices, computed from the limits.
//!
//! Each [`Case`] is a sum of parts: how many there can be of something, and what each holds. Memory is what is filled, not what is
//! reserved: address space costs nothing. A part that other limits bound as well is counted where it is bound closest.
//!
//! What each thing holds beside its buffers was measured (threads, sessions, headers) and rounded up. Buffers of the system, such as
//! those of sockets, are not memory of this process: `net.ipv4.tcp_mem` bounds them.

use super::*;
use crate::places::Numbers;
use outboard_core::local::OFFERED_BYTES;
use outboard_net::limits::{QUIC_EARLY_SEND_WINDOW, QUIC_EARLY_WINDOW, QUIC_INCOMING_BYTES, TLS_BUFFER};
use outboard_proto::limits::{HTTP2_BULK_WINDOW, HTTP2_FRAME, MAX_ERROR_TEXT, MAX_TRACE_SPANS};
use std::fmt;

/// What is held outside the memory of devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holds {
    /// Bytes.
    pub memory: u64,
    /// Threads.
    pub threads: u64,
    /// File descriptors.
    pub descriptors: u64,
    /// Disk, in hundredths of the limit of the cache.
    pub disk: u64,
}

impl Holds {
    const fn memory(memory: u64) -> Holds {
        Holds { memory, threads: 0, descriptors: 0, disk: 0 }
    }

    const fn and(self, other: Holds) -> Holds {
        Holds {
            memory: self.memory + other.memory,
            threads: self.threads + other.threads,
            descriptors: self.descriptors + other.descriptors,
            disk: self.disk + other.disk,
        }
    }

    const fn times(self, n: u64) -> Holds {
        Holds {
            memory: self.memory * n,
            threads: self.threads * n,
            descriptors: self.descriptors * n,
            disk: self.disk * n,
        }
    }
}

/// One kind of thing that is held.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// What it is, as the table of limits says it.
    pub what: &'static str,
    /// How many there can be.
    pub number: u64,
    /// What each holds.
    pub each: Holds,
}

/// All that somebody can hold.
#[derive(Clone, Debug)]
pub struct Case {
    /// Who, as the table of limits says it.
    pub who: &'static str,
    /// Of what it is the sum.
    pub parts: Vec<Part>,
}

impl Case {
    /// The sum.
    pub fn total(&self) -> Holds {
        self.parts.iter().fold(Holds::default(), |sum, part| sum.and(part.each.times(part.number)))
    }
}

impl fmt::Display for Case {
    /// A row of a table in Markdown.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Holds { memory, threads, descriptors, disk } = self.total();
        let who = self.who;
        write!(f, "| {who} | {} MiB | {threads} | {descriptors} | {disk} % |", memory.div_ceil(MIB))
    }
}

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// A thread: what it fills of its stack, and what the allocator keeps for it.
const THREAD: Holds = Holds { memory: 160 * KIB, threads: 1, descriptors: 0, disk: 0 };
/// A connection without its buffers: a thread with an event loop, a socket, and the state of HTTP/2.
const CONNECTION: Holds =
    THREAD.and(Holds { memory: 96 * KIB, threads: 0, descriptors: CONNECTION_DESCRIPTORS as u64, disk: 0 });
/// An open file.
const FILE: Holds = Holds { memory: 4 * KIB, threads: 0, descriptors: 1, disk: 0 };
/// A hundredth of the limit of the cache.
const DISK: Holds = Holds { memory: 0, threads: 0, descriptors: 0, disk: 1 };
/// An error on the wire.
const ERROR: u64 = MAX_ERROR_TEXT as u64 + 256;
/// What TLS holds: its buffers, each way, and the state of a handshake. QUIC has none of these, and other windows.
const TLS: Holds = Holds::memory(2 * TLS_BUFFER as u64 + 64 * KIB);
/// Headers of one request, as the map that they are decoded to: 124 of the shortest fit into [`HEADERS`].
const HEADER_MAP: u64 = 20 * KIB;
/// Bytes of the shortest frame that opens a stream with such headers.
const SHORTEST_HEADERS: u64 = 130;
/// A call that waits or is carried out, without its message: a task, and the headers that matter.
const CALL: u64 = 8 * KIB;
/// A session: its thread, its books, and the spans of a trace.
const SESSION: Holds = THREAD.and(Holds::memory(
    64 * KIB
        + MAX_TRACE_SPANS as u64 * 96
        + 2 * PENDING_FREE_BYTES as u64
        + WANTED as u64 * 320
        + USED_TICKETS as u64 * 48,
));
/// A frame that is not whole yet.
const FRAME: u64 = HTTP2_FRAME as u64;
/// A payload is kept as a part of the frame that it came in, of which it is 7 eighths at least.
const fn kept(payload: u64) -> u64 {
    payload + payload / 7
}

/// One connection whose client has not shown who it is.
pub fn stranger(limits: &Limits) -> Case {
    let quic = Holds::memory(u64::from(QUIC_EARLY_WINDOW) + u64::from(QUIC_EARLY_SEND_WINDOW) + 64 * KIB);
    let early = early_bytes(&limits.session) as u64;
    Case {
        who: "one connection before authentication",
        parts: vec![
            Part { what: "the connection", number: 1, each: CONNECTION },
            Part {
                what: "buffers of TLS, or QUIC",
                number: 1,
                each: if TLS.memory > quic.memory { TLS } else { quic },
            },
            Part { what: "bytes that are read from it", number: early, each: Holds::memory(1) },
            // What is in the window is copied to the message that it is of.
            Part { what: "bytes that are copied", number: EARLY_WINDOW.into(), each: Holds::memory(1) },
            Part {
                what: "headers that are read at a time",
                number: EARLY_READ as u64 / SHORTEST_HEADERS + 1,
                each: Holds::memory(HEADER_MAP),
            },
            Part { what: "calls", number: STREAMS.into(), each: Holds::memory(CALL) },
            Part { what: "answers", number: EARLY_CALLS as u64, each: Holds::memory(2 * SMALL_MESSAGE as u64) },
        ],
    }
}

/// All connections whose clients have not shown who they are.
pub fn strangers(limits: &Limits) -> Case {
    let numbers = Numbers::new(limits);
    let handshake = CONNECTION.and(Holds::memory(u64::from(QUIC_EARLY_WINDOW) + u64::from(QUIC_EARLY_SEND_WINDOW)));
    let handles = resume_handles(&limits.session) as u64 + 128;
    Case {
        who: "all connections before authentication",
        parts: vec![
            Part { what: "connections", number: numbers.strangers as u64, each: stranger(limits).total() },
            // One at a time. A vector is twice as large when it grows.
            Part { what: "handles of a message, decoded", number: handles, each: Holds::memory(3 * 8) },
            Part { what: "QUIC handshakes", number: numbers.handshakes as u64, each: handshake },
            Part { what: "QUIC packets before that", number: QUIC_INCOMING_BYTES, each: Holds::memory(1) },
            Part { what: "addresses of wrong tokens", number: GUESSING_ADDRESSES as u64, each: Holds::memory(128) },
        ],
    }
}

/// What one connection of a client holds beside its calls.
fn connection() -> Holds {
    let windows = u64::from(WINDOW) + u64::from(QUIC_NARROW.receive) + u64::from(QUIC_NARROW.send);
    let headers = u64::from(STREAMS) * HEADER_MAP;
    CONNECTION.and(TLS).and(Holds::memory(windows + FRAME + headers))
}

/// What one connection with bulk data holds more: on TCP, or the QUIC connection below some streams.
fn wide() -> Holds {
    let quic = u64::from(QUIC_WIDE.receive) + u64::from(QUIC_WIDE.send);
    Holds::memory(u64::from(HTTP2_BULK_WINDOW).max(quic))
}

/// What one queue holds: its threads, commands that wait, payloads of its own each way, and what waits for the socket.
fn queue() -> Holds {
    let commands = u64::from(COMMANDS_IN_FLIGHT) * 512;
    let ahead = READ_AHEAD_BYTES as u64 + READ_AHEAD as u64 * 256 + 2 * MAX_COMMAND as u64;
    let own = kept(u64::from(OWN_KIB + CHUNK_KIB) * KIB);
    let replies = 2 * SEND_BUFFER as u64 + CHUNK as u64 + MAX_INLINE as u64;
    THREAD.and(Holds::memory(commands + ahead + own + replies))
}

/// What a link to another server holds: its thread, windows, and news. The tensors on it are payloads of queues.
fn link() -> Holds {
    let buffers = u64::from(LINK_DOWN_WINDOW) + LINK_SEND_BUFFER as u64 + FRAME + u64::from(LINK_HEADERS);
    CONNECTION.and(TLS).and(Holds::memory(buffers + LANE_NEWS as u64 * ERROR))
}

/// What a link from another server holds beside its connection: transfers that are under way, and refusals.
const INBOUND_LINK: Holds = Holds::memory(COMING as u64 * 128 + REFUSALS as u64 * ERROR);

/// What clients hold of one kind, and how much of it one of them may have, and all together.
struct Kind {
    what: &'static str,
    client: u64,
    all: u64,
    each: Holds,
}

/// All that clients hold. A part that only the server has is 0 for a client.
fn kinds(limits: &Limits) -> Vec<Kind> {
    let numbers = Numbers::new(limits);
    let (client, byte) = (&limits.client, Holds::memory(1));
    let kind = |what, client: u64, all: u64, each| Kind { what, client, all, each };
    let count = |what, client: usize, all: usize, each| kind(what, client as u64, all as u64, each);
    // What a client may have as long as it leaves as much to others.
    let shared = |what, all: u64, each| kind(what, all / 2, all, each);
    let inbound = (INBOUND_LINKS / 2).min(client.connections as u64);
    let early = |connections: usize| EARLY_CALLS * connections;
    vec![
        count("connections", client.connections, numbers.clients(), connection()),
        count("connections with bulk data", WIDE_CONNECTIONS, ALL_WIDE_CONNECTIONS, wide()),
        count("streams and calls", CALLS, ALL_CALLS, Holds::memory(CALL + 2 * SMALL_MESSAGE as u64)),
        // Read, and decoded beside that.
        count("larger messages", MESSAGES_KIB, ALL_MESSAGES_KIB, Holds::memory(2 * KIB)),
        count("sessions", client.sessions, limits.sessions, SESSION),
        count("queues", client.queues, limits.queues, queue()),
        count("payloads beyond those of each queue, in KiB", PAYLOAD_KIB, ALL_PAYLOAD_KIB, Holds::memory(kept(KIB))),
        kind("bytes of graphs", client.graphs, limits.graphs, byte),
        count("buffers", client.buffers, limits.buffers, Holds::memory(BUFFER_BYTES)),
        shared("bytes offered to other devices", OFFERED_BYTES, byte),
        count(
            "calls begun before authentication",
            early(client.connections),
            early(numbers.clients()),
            Holds::memory(CALL),
        ),
        shared("links to other servers", LINKS as u64, link()),
        shared("names that are looked up", LOOKUPS, THREAD),
        kind("links from other servers", inbound, INBOUND_LINKS, INBOUND_LINK),
        shared("bytes from other servers that are not accepted", INBOX_BYTES, byte),
        // What is known of each, or an error in its place.
        shared("such tensors", INBOX_COUNT, Holds::memory(ERROR + 320)),
        // Their places, decoded.
        count("calls about weights", BLOB_CALLS_CLIENT, ALL_CALLS, Holds::memory(MAX_BLOBS_BYTES as u64 * 2)),
        count("queues that receive weights", BLOB_RECEIVERS_CLIENT, limits.queues, THREAD),
        count("threads that place weights", 0, BLOB_THREADS, THREAD.and(Holds::memory(16 * MIB))),
        count("files of the cache", BLOB_FILES_CLIENT, BLOB_FILES, FILE),
        kind("hundredths of the cache", 50, 100, DISK),
        kind("and of what comes beside it", 100 / BLOB_WRITING_CLIENT_PART, 100 / BLOB_WRITING_PART, DISK),
    ]
}

/// One client.
pub fn account(limits: &Limits) -> Case {
    let part = |Kind { what, client, each, .. }| Part { what, number: client, each };
    Case { who: "one client", parts: kinds(limits).into_iter().map(part).collect() }
}

/// All clients together, and those who have not shown who they are.
pub fn server(limits: &Limits) -> Case {
    let before = Part { what: "before authentication", number: 1, each: strangers(limits).total() };
    let part = |Kind { what, all, each, .. }| Part { what, number: all, each };
    let parts = [before].into_iter().chain(kinds(limits).into_iter().map(part)).collect();
    Case { who: "all together", parts }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_case_is_reasonable() {
        let limits = Limits::default();
        for case in [stranger(&limits), strangers(&limits), account(&limits), server(&limits)] {
            println!("{case}");
            for Part { what, number, each } in &case.parts {
                println!("    {what}: {number} x {} KiB", each.memory as f64 / KIB as f64);
            }
        }
        assert!(stranger(&limits).total().memory <= 6 * MIB);
        assert!(strangers(&limits).total().memory <= 512 * MIB);
        // What a client that has shown who it is can hold beside the memory of devices.
        assert!(account(&limits).total().memory <= 4608 * MIB);
        let most = server(&limits).total();
        assert!(most.memory <= 22 << 30);
        assert!(most.descriptors <= ((limits.connections + LINKS) * CONNECTION_DESCRIPTORS + BLOB_FILES) as u64);
    }
}
