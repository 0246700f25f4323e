//! Deadlines and names of a client.

use outboard_core::{Error, Result};
use outboard_net::ClientTls;
use outboard_proto::limits::{MAX_TOKEN, MIN_TOKEN};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// How a client connects and how long it waits.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// Name in the logs of servers.
    pub name: String,
    /// From the first packet to the answer to hello.
    pub connect_timeout: Duration,
    /// For an allocation, a compilation or a question about memory or supported ops.
    pub call_timeout: Duration,
    /// A server that was not heard for about this long is lost.
    pub dead_after: Duration,
    /// A server that is heard, but gets no further for this long with what is waited for, is lost, too. What computes gets further, however
    /// long it takes.
    pub stall_after: Duration,
    /// Lowest and highest protocol version to ask for.
    pub versions: (u32, u32),
    /// Which servers to trust, and the client's certificate.
    pub tls: ClientTls,
    /// Proves to servers who the client is. Never sent unencrypted to another host.
    pub token: Option<Token>,
}

/// A secret that a server knows the client by. Does not print.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(Arc<str>);

impl Token {
    /// A token, with white space around it left out. The error does not repeat it.
    pub fn new(text: &str) -> Result<Token> {
        let text = text.trim();
        if !text.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(Error::Request("a token has printable ASCII characters only, and no spaces".into()));
        }
        if !(MIN_TOKEN..=MAX_TOKEN).contains(&text.len()) {
            return Err(Error::Request(format!(
                "a token has {MIN_TOKEN} to {MAX_TOKEN} characters, this one {}",
                text.len()
            )));
        }
        Ok(Token(text.into()))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

impl Default for ClientOptions {
    fn default() -> Self {
        ClientOptions {
            name: format!("outboard {}, process {}", env!("CARGO_PKG_VERSION"), std::process::id()),
            connect_timeout: Duration::from_secs(5),
            call_timeout: Duration::from_secs(60),
            dead_after: Duration::from_millis(1800),
            stall_after: Duration::from_secs(60),
            versions: (outboard_proto::MIN_VERSION, outboard_proto::MAX_VERSION),
            tls: ClientTls::default(),
            token: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_do_not_show() {
        let token = Token::new(" 0123456789abcdef\n").unwrap();
        assert_eq!((token.as_str(), format!("{token:?}").as_str()), ("0123456789abcdef", "Token(..)"));
        for bad in ["", "short", "0123456789 abcdef", "0123456789abcde\u{e9}", &"x".repeat(MAX_TOKEN + 1)] {
            let error = Token::new(bad).unwrap_err().to_string();
            assert!(bad.is_empty() || !error.contains(bad), "{error}");
        }
    }
}
