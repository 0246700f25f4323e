//! Deadlines and sizes of connections. Everything that a peer can take or delay is here.

use std::time::Duration;

/// How long a TLS or QUIC handshake may take: two or three round trips and some signatures, so that only a peer that has stalled
/// takes longer, and shorter than the client's deadline for all of connecting, so that its error names the handshake.
pub const HANDSHAKE: Duration = Duration::from_secs(3);
/// How long a server keeps the connection of a client whose handshake has failed. To close a TCP socket with unread bytes resets
/// it, and the alert that says why would be lost; on QUIC the packet that says it may be lost.
pub const LINGER: Duration = Duration::from_millis(500);
/// Bytes that are read in this time, at most.
pub const LINGER_BYTES: usize = 64 << 10;
/// Largest file of certificates or keys in bytes; a bundle of all public CAs has some 230 KB.
pub const PEM_FILE: u64 = 4 << 20;
/// After this long the next address of a host is tried as well, as RFC 8305 recommends.
pub const NEXT_ADDRESS: Duration = Duration::from_millis(250);
/// Addresses of a host that are tried.
pub const ADDRESSES: usize = 8;

/// With `auto://`, a network whose round trip is at least this long, or whose first packets take this long because one was lost,
/// gets QUIC: there a lost packet costs most, and there a heavy stream holds up the others longest. Below, TCP is faster, because
/// the kernel does its work.
pub const AUTO_RTT: Duration = Duration::from_millis(5);
/// With `auto://`, TLS on TCP takes over if QUIC gives no answer for this long: firewalls often drop UDP without a word. Short
/// enough to leave time for TLS before a server that opens a link to another one gives up.
pub const AUTO_QUIC: Duration = Duration::from_millis(700);

/// Bytes that TLS works on at a time, either way: with one system call for each record of 16 KiB, these take longer than the cipher.
pub const TLS_BUFFER: usize = 256 << 10;

/// Streams of one QUIC connection at a time: one for commands, the others for bulk data.
pub const QUIC_STREAMS: u32 = 16;
/// Bytes in flight on one QUIC stream, each way; the same as a bulk stream's HTTP/2 window, which is the tighter bound.
pub const QUIC_STREAM_WINDOW: u32 = 16 << 20;
/// Bytes in flight on a QUIC connection, each way: more than one stream of bulk data can take, so that commands have room beside it.
pub const QUIC_WINDOW: u32 = 32 << 20;
/// The same from a client at a server before that says more with [`crate::QuicConnection::set_windows`]: until the client has shown
/// who it is.
pub const QUIC_EARLY_WINDOW: u32 = 512 << 10;
/// The same to a client: some answers.
pub const QUIC_EARLY_SEND_WINDOW: u32 = 64 << 10;
/// A QUIC connection that heard nothing for this long is gone. Clients find out sooner, by HTTP/2 pings on the stream of commands.
pub const QUIC_IDLE: Duration = Duration::from_secs(10);
/// UDP payload of a QUIC packet in bytes, before discovery of what the path takes: what QUIC may assume.
pub const QUIC_INITIAL_MTU: u16 = 1200;
/// Largest UDP payload that discovery tries: an Ethernet frame. Larger ones with segmentation offload have stalled.
pub const QUIC_MTU: u16 = 1452;
/// Connections whose handshake has not begun to be answered; more are dropped.
pub const QUIC_INCOMING: usize = 128;
/// Bytes that clients may send before their handshake is answered, all together.
pub const QUIC_INCOMING_BYTES: u64 = 4 << 20;
/// Buffer of a UDP socket in bytes, each way, as far as the system allows it: some milliseconds at 1 GB/s.
pub const UDP_BUFFER: usize = 4 << 20;
/// How long an end that closes QUIC connections waits for the other to hear of it, at most.
pub const QUIC_GOODBYE: Duration = Duration::from_millis(100);
/// How long the event loop of a closed QUIC connection lives on, to send the packet that says so.
pub const QUIC_LAST_PACKET: Duration = Duration::from_millis(5);
