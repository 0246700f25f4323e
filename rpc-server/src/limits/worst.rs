//! The most that others can hold of a server outside the memory of its devices, computed from the limits.
//!
//! Each [`Case`] is a sum of parts: how many there can be of something, and what each holds. Memory is what is filled, not what is
//! reserved: address space costs nothing. A part that other limits bound as well is counted where it is bound closest.
//!
//! What each thing holds beside its buffers was measured (threads, sessions, headers) and rounded up. Buffers of the system, such as
//! those of sockets, are not memory of this process: `net.ipv4.tcp_mem` bounds them.

use super::*;
use crate::places::Numbers;
use outboard_host::OFFERED_BYTES;
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

/// What lies in inboxes: tensors, and what is known of each, or an error in its place.
fn inbox(bytes: u64, count: u64) -> [Part; 2] {
    [
        Part { what: "bytes from other servers that are not accepted", number: bytes, each: Holds::memory(1) },
        Part { what: "such tensors", number: count, each: Holds::memory(ERROR + 320) },
    ]
}

/// A call that places blobs: its places, decoded.
const BLOB_CALL: Holds = Holds::memory(MAX_BLOBS_BYTES as u64 * 2);

/// Messages of calls: read, and decoded beside that.
fn messages(kib: usize) -> Part {
    Part { what: "larger messages", number: kib as u64, each: Holds::memory(2 * KIB) }
}

/// One client.
pub fn account(limits: &Limits) -> Case {
    let client = &limits.client;
    Case {
        who: "one client",
        parts: vec![
            Part { what: "connections", number: client.connections as u64, each: connection() },
            Part { what: "connections with bulk data", number: WIDE_CONNECTIONS as u64, each: wide() },
            Part {
                what: "streams and calls",
                number: CALLS as u64,
                each: Holds::memory(CALL + 2 * SMALL_MESSAGE as u64),
            },
            messages(MESSAGES_KIB),
            Part { what: "sessions", number: client.sessions as u64, each: SESSION },
            Part { what: "queues", number: client.queues as u64, each: queue() },
            Part {
                what: "payloads beyond those of each queue, in KiB",
                number: PAYLOAD_KIB as u64,
                each: Holds::memory(kept(KIB)),
            },
            Part { what: "bytes of graphs", number: client.graphs, each: Holds::memory(1) },
            Part { what: "buffers", number: client.buffers as u64, each: Holds::memory(BUFFER_BYTES) },
            Part { what: "bytes offered to other devices", number: OFFERED_BYTES / 2, each: Holds::memory(1) },
            Part {
                what: "calls begun before authentication",
                number: (EARLY_CALLS * client.connections) as u64,
                each: Holds::memory(CALL),
            },
            Part { what: "links to other servers", number: LINKS as u64 / 2, each: link() },
            Part { what: "names that are looked up", number: LOOKUPS / 2, each: THREAD },
            Part {
                what: "links from other servers",
                number: (INBOUND_LINKS / 2).min(client.connections as u64),
                each: INBOUND_LINK,
            },
            Part { what: "calls about weights", number: BLOB_CALLS_CLIENT as u64, each: BLOB_CALL },
            Part { what: "queues that receive weights", number: BLOB_RECEIVERS_CLIENT as u64, each: THREAD },
            Part { what: "files of the cache", number: BLOB_FILES_CLIENT as u64, each: FILE },
            Part {
                what: "half of the cache, and what comes beside it",
                number: 1,
                each: Holds { disk: 50 + 100 / BLOB_WRITING_CLIENT_PART, ..Holds::default() },
            },
        ]
        .into_iter()
        .chain(inbox(INBOX_BYTES / 2, INBOX_COUNT / 2))
        .collect(),
    }
}

/// All clients together, and those who have not shown who they are.
pub fn server(limits: &Limits) -> Case {
    let numbers = Numbers::new(limits);
    Case {
        who: "all together",
        parts: vec![
            Part { what: "before authentication", number: 1, each: strangers(limits).total() },
            Part { what: "connections", number: numbers.clients() as u64, each: connection() },
            Part { what: "connections with bulk data", number: ALL_WIDE_CONNECTIONS as u64, each: wide() },
            Part {
                what: "streams and calls",
                number: ALL_CALLS as u64,
                each: Holds::memory(CALL + 2 * SMALL_MESSAGE as u64),
            },
            messages(ALL_MESSAGES_KIB),
            Part { what: "sessions", number: limits.sessions as u64, each: SESSION },
            Part { what: "queues", number: limits.queues as u64, each: queue() },
            Part {
                what: "payloads beyond those of each queue, in KiB",
                number: ALL_PAYLOAD_KIB as u64,
                each: Holds::memory(kept(KIB)),
            },
            Part { what: "bytes of graphs", number: limits.graphs, each: Holds::memory(1) },
            Part { what: "buffers", number: limits.buffers as u64, each: Holds::memory(BUFFER_BYTES) },
            Part { what: "bytes offered to other devices", number: OFFERED_BYTES, each: Holds::memory(1) },
            Part {
                what: "calls begun before authentication",
                number: (EARLY_CALLS * numbers.clients()) as u64,
                each: Holds::memory(CALL),
            },
            Part { what: "links to other servers", number: LINKS as u64, each: link() },
            Part { what: "names that are looked up", number: LOOKUPS, each: THREAD },
            Part { what: "links from other servers", number: INBOUND_LINKS, each: INBOUND_LINK },
            Part { what: "calls about weights", number: ALL_CALLS as u64, each: BLOB_CALL },
            Part { what: "queues that receive weights", number: limits.queues as u64, each: THREAD },
            Part {
                what: "threads that place weights",
                number: BLOB_THREADS as u64,
                each: THREAD.and(Holds::memory(16 * MIB)),
            },
            Part { what: "files of the cache", number: BLOB_FILES as u64, each: FILE },
            Part {
                what: "the cache, and what comes beside it",
                number: 1,
                each: Holds { disk: 100 + 100 / BLOB_WRITING_PART, ..Holds::default() },
            },
        ]
        .into_iter()
        .chain(inbox(INBOX_BYTES, INBOX_COUNT))
        .collect(),
    }
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
