//! The tables of SECURITY.md: all limits, and what they add up to. A test compares them with what it says.

use super::*;
use crate::places::Numbers;
use outboard_core::error::Bytes as Size;
use outboard_core::local::OFFERED_BYTES;
use outboard_net::limits::QUIC_INCOMING_BYTES;

/// What a limit is of: all that one of these has.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Of {
    Connection,
    Session,
    Client,
    Server,
}

const COLUMNS: [Of; 4] = [Of::Connection, Of::Session, Of::Client, Of::Server];

fn row(what: &str, limits: &[(Of, String)]) -> String {
    let cell = |of: &Of| limits.iter().find(|(other, _)| other == of).map_or("", |(_, limit)| limit.as_str());
    let cells: Vec<_> = COLUMNS.iter().map(cell).collect();
    format!("| {what} | {} |", cells.join(" | "))
}

fn n(number: impl Into<u64>) -> String {
    number.into().to_string()
}

fn count(number: usize) -> String {
    number.to_string()
}

fn size(bytes: impl Into<u64>) -> String {
    Size(bytes.into()).to_string()
}

fn kib(kib: usize) -> String {
    size((kib as u64) << 10)
}

fn secs(time: Duration) -> String {
    format!("{} s", time.as_secs_f64())
}

/// Those that hold before a client has shown who it is.
fn before(limits: &Limits) -> Vec<String> {
    use Of::*;
    let numbers = Numbers::new(limits);
    vec![
        row("connections", &[(Client, count(numbers.strangers_of_one)), (Server, count(numbers.strangers))]),
        row("QUIC handshakes of addresses that are not proven", &[(Server, count(numbers.handshakes))]),
        row("QUIC packets that wait for one", &[(Server, size(QUIC_INCOMING_BYTES))]),
        row("time to show who it is", &[(Connection, secs(STRANGER))]),
        row("bytes that are read", &[(Connection, size(early_bytes(&limits.session) as u64))]),
        row("calls that are carried out at a time, or go on afterwards", &[(Connection, count(EARLY_CALLS))]),
        row("wrong tokens", &[(Connection, n(WRONG_TOKENS))]),
        row(
            "wait after a wrong token, doubling with each",
            &[(Client, format!("{} to {}", secs(WRONG_TOKEN_DELAY), secs(LONGEST_TOKEN_DELAY)))],
        ),
    ]
}

/// Those that hold afterwards.
fn after(limits: &Limits) -> Vec<String> {
    [connections(limits), work(limits), transfers(limits), weights()].concat()
}

fn connections(limits: &Limits) -> Vec<String> {
    use Of::*;
    let (numbers, client) = (Numbers::new(limits), &limits.client);
    vec![
        row("connections", &[(Client, count(client.connections)), (Server, count(numbers.clients()))]),
        row(
            "of these, with much in flight",
            &[(Client, count(WIDE_CONNECTIONS)), (Server, count(ALL_WIDE_CONNECTIONS))],
        ),
        row("streams and calls", &[(Connection, n(STREAMS)), (Client, count(CALLS)), (Server, count(ALL_CALLS))]),
        row("time without a call", &[(Connection, secs(IDLE))]),
        row("sessions", &[(Client, count(client.sessions)), (Server, count(limits.sessions))]),
        row("messages above 16 KiB", &[(Client, kib(MESSAGES_KIB)), (Server, kib(ALL_MESSAGES_KIB))]),
        row("connections for metrics", &[(Server, count(METRICS_CONNECTIONS))]),
    ]
}

fn work(limits: &Limits) -> Vec<String> {
    use Of::*;
    let (client, session) = (&limits.client, &limits.session);
    vec![
        row("memory of a device", &[(Client, "`--client-memory`".into()), (Server, "`--memory-limit`".into())]),
        row(
            "queues",
            &[(Session, count(session.queues)), (Client, count(client.queues)), (Server, count(limits.queues))],
        ),
        row(
            "buffers",
            &[(Session, count(session.buffers)), (Client, count(client.buffers)), (Server, count(limits.buffers))],
        ),
        row("compiled graphs", &[(Session, count(session.executables))]),
        row("their bytes, encoded", &[(Session, size(session.graph_bytes))]),
        row("their bytes, compiled", &[(Client, size(client.graphs)), (Server, size(limits.graphs))]),
        row("requests to free that wait", &[(Session, count(PENDING_FREES))]),
        row("their bytes", &[(Session, size(PENDING_FREE_BYTES as u64))]),
        row("commands of one queue on the way", &[(Session, n(COMMANDS_IN_FLIGHT))]),
        row(
            "payloads on the way, beside 1 MiB of each queue",
            &[(Client, kib(PAYLOAD_KIB)), (Server, kib(ALL_PAYLOAD_KIB))],
        ),
    ]
}

fn transfers(limits: &Limits) -> Vec<String> {
    use Of::*;
    let (client, session) = (&limits.client, &limits.session);
    vec![
        row(
            "bytes offered to other devices of the server",
            &[
                (Session, size(session.offered_bytes)),
                (Client, size(client.offered_bytes)),
                (Server, size(OFFERED_BYTES)),
            ],
        ),
        row(
            "links to other servers",
            &[(Session, count(LINKS_PER_SESSION)), (Client, count(LINKS / 2)), (Server, count(LINKS))],
        ),
        row(
            "links from other servers",
            &[
                (Session, count(INBOUND_LINKS_PER_SESSION)),
                (Client, n((INBOUND_LINKS / 2).min(client.connections as u64))),
                (Server, n(INBOUND_LINKS)),
            ],
        ),
        row("names of other servers that are looked up", &[(Client, n(LOOKUPS / 2)), (Server, n(LOOKUPS))]),
        row(
            "tensors from other servers that nobody has accepted",
            &[(Session, n(INBOX_COUNT_PER_SESSION)), (Client, n(INBOX_COUNT / 2)), (Server, n(INBOX_COUNT))],
        ),
        row(
            "their bytes",
            &[(Session, size(INBOX_BYTES_PER_SESSION)), (Client, size(INBOX_BYTES / 2)), (Server, size(INBOX_BYTES))],
        ),
        row("tensors that were accepted and have not come", &[(Session, count(WANTED))]),
    ]
}

fn weights() -> Vec<String> {
    use Of::*;
    vec![
        row("calls about weights", &[(Session, count(BLOB_CALLS_SESSION)), (Client, count(BLOB_CALLS_CLIENT))]),
        row("queues that receive weights", &[(Client, count(BLOB_RECEIVERS_CLIENT))]),
        row("files that come to the cache", &[(Client, count(BLOB_FILES_CLIENT)), (Server, count(BLOB_FILES))]),
        row(
            "their part of `--cache-limit`",
            &[(Client, format!("1/{BLOB_WRITING_CLIENT_PART}")), (Server, format!("1/{BLOB_WRITING_PART} more"))],
        ),
        row("the cache, if others need it", &[(Client, "1/2".into()), (Server, "`--cache-limit`".into())]),
        row("weights with wrong digests, before none are kept", &[(Client, n(WRONG_DIGESTS))]),
    ]
}

/// What they add up to.
fn worst_cases(limits: &Limits) -> Vec<String> {
    use worst::{account, server, stranger, strangers};
    [stranger(limits), strangers(limits), account(limits), server(limits)].iter().map(ToString::to_string).collect()
}

/// The rows of a table below a heading, without its head.
fn table<'t>(text: &'t str, heading: &str) -> Vec<&'t str> {
    let lines = text.lines().skip_while(|line| *line != heading).skip(1);
    lines.take_while(|line| !line.starts_with('#')).filter(|line| line.starts_with('|')).skip(2).collect()
}

#[test]
fn the_tables_in_security_md_are_true() {
    let text = include_str!("../../../SECURITY.md");
    let limits = Limits::default();
    for (heading, rows) in [
        ("### Before authentication", before(&limits)),
        ("### After authentication", after(&limits)),
        ("### The worst case", worst_cases(&limits)),
    ] {
        assert_eq!(table(text, heading), rows, "the table below {heading} should be\n{}\n", rows.join("\n"));
    }
}
