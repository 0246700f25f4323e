//! What clients can take or delay. SECURITY.md has the same numbers.

use std::time::Duration;

/// What clients of one server may take. The defaults are for some dozens of people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Texts that wait for others to end, of all clients; one more is refused with 429. A request with `n` has as many texts.
    pub waiting: usize,
    /// The same of one client: of a key, or of an address where there are no keys.
    pub waiting_each: usize,
    /// Bytes of a request's body: some hundred thousand words.
    pub body: usize,
    /// Bytes of all bodies that are being read and encoded, with what they become when they are parsed, and of answers that wait to be taken.
    pub bodies: usize,
    /// The same of one client.
    pub bodies_each: usize,
    /// How long a body may take to come.
    pub body_time: Duration,
    /// How long the head of a request may take to come, and an idle connection may stay.
    pub head_time: Duration,
    /// How long a client may take nothing of what is sent to it.
    pub write_time: Duration,
    /// Connections at a time.
    pub connections: usize,
    /// The same of one address.
    pub connections_each: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            waiting: 64,
            waiting_each: 32,
            body: 4 << 20,
            bodies: 64 << 20,
            bodies_each: 32 << 20,
            body_time: Duration::from_secs(30),
            head_time: Duration::from_secs(30),
            write_time: Duration::from_secs(60),
            connections: 1024,
            connections_each: 512,
        }
    }
}

/// Bytes of a request's head.
pub(crate) const HEAD: usize = 32 << 10;
/// Header lines of a request.
pub(crate) const HEADERS: usize = 64;
/// Texts of one request.
pub(crate) const TEXTS: usize = 128;
/// Texts of one request that are embedded.
pub(crate) const EMBEDDINGS: usize = 2048;
/// Stop strings of one request, and bytes of one of them: each is looked for behind every token.
pub(crate) const STOPS: usize = 16;
/// Bytes of a stop string.
pub(crate) const STOP_BYTES: usize = 1 << 10;
/// Bytes of a request's `cache_salt`.
pub(crate) const SALT_BYTES: usize = 256;
/// Bytes of a request's variables for the template of the model, as JSON: a template may write them again and again.
pub(crate) const VARIABLE_BYTES: usize = 4 << 10;
/// Tokens of one request whose logits something is added to.
pub(crate) const BIASES: usize = 1024;
/// Tokens of `/detokenize`: each may stand for a long text.
pub(crate) const TOKENS: usize = 1 << 17;
/// Tokens that `/tokenize` tells the pieces of.
pub(crate) const PIECES: usize = 1 << 16;
/// Lists and objects of a body: a small one takes hundreds of bytes when it is parsed.
pub(crate) const CONTAINERS: usize = 1 << 16;
/// Log-probabilities of an answer that is not a stream, or of the prompts of one that is, those of the most probable tokens among them: as JSON each takes about a kilobyte for a moment.
pub(crate) const LOG_PROBS: usize = 1 << 16;
/// Tools of one request, and calls of one message.
pub(crate) const TOOLS: usize = 512;
/// Bytes of all tools of one request as JSON: they are kept until its texts have ended.
pub(crate) const TOOL_BYTES: usize = 256 << 10;
/// Messages of one chat.
pub(crate) const MESSAGES: usize = 4096;
/// Tokens that penalties look back at, at most.
pub(crate) const LOOK_BACK: i64 = 4096;
/// A stream says so often that it is still there while its text waits.
pub(crate) const KEEP_ALIVE: Duration = Duration::from_secs(10);
/// So long after the last sign of a client its system is asked whether it is still there.
pub(crate) const PROBE: Duration = Duration::from_secs(30);
/// Between such questions.
pub(crate) const PROBE_EVERY: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_in_security_md_is_true() {
        let text = include_str!("../../SECURITY.md");
        let (_, below) = text.split_once("\n## Limits of `outboard serve`\n").unwrap();
        let table: Vec<&str> = below.lines().take_while(|line| !line.starts_with('#')).collect();
        let bytes = |n: usize| {
            if n < 1 << 20 {
                format!("{:.1} KiB", n as f64 / 1024.0)
            } else {
                format!("{:.1} MiB", n as f64 / 1_048_576.0)
            }
        };
        let seconds = |time: Duration| format!("{} s", time.as_secs());
        let l = Limits::default();
        assert_eq!(l.waiting_each * 2, l.waiting);
        for (what, client, server) in [
            ("connections", l.connections_each.to_string(), l.connections.to_string()),
            ("texts that wait", "half of `--max-waiting`".into(), format!("`--max-waiting` ({})", l.waiting)),
            ("bytes of a request's head", bytes(HEAD), String::new()),
            ("header lines", HEADERS.to_string(), String::new()),
            ("bytes of a body", bytes(l.body), String::new()),
            ("bytes of bodies that are worked on, and of answers about tokens", bytes(l.bodies_each), bytes(l.bodies)),
            ("lists and objects of a body", CONTAINERS.to_string(), String::new()),
            ("time for a head, or without a request", seconds(l.head_time), String::new()),
            ("time for a body", seconds(l.body_time), String::new()),
            ("time in which nothing is taken of an answer", seconds(l.write_time), String::new()),
            ("texts of a request", TEXTS.to_string(), String::new()),
            ("texts of a request that are embedded", EMBEDDINGS.to_string(), String::new()),
            ("stop strings of a request", STOPS.to_string(), String::new()),
            ("bytes of a stop string", bytes(STOP_BYTES), String::new()),
            ("tokens with a bias", BIASES.to_string(), String::new()),
            ("tokens of `/detokenize`", TOKENS.to_string(), String::new()),
            ("tokens of `/tokenize` with pieces", PIECES.to_string(), String::new()),
            (
                "log-probabilities of an answer that is no stream, or with prompts (`echo`)",
                LOG_PROBS.to_string(),
                String::new(),
            ),
            ("messages of a chat", MESSAGES.to_string(), String::new()),
            ("tools of a request", TOOLS.to_string(), String::new()),
            ("bytes of its tools", bytes(TOOL_BYTES), String::new()),
            ("bytes of a form", bytes(outboard::llm::constraint::MOST_FORM_BYTES), String::new()),
        ] {
            let row = format!("| {what} | {client} | {server} |").replace("|  |", "| |");
            assert!(table.contains(&row.as_str()), "there should be {row}");
        }
    }
}
