//! Addresses of servers as users write them.

use outboard_proto::DEFAULT_PORT;
use std::fmt;
use std::str::FromStr;

/// How bytes get to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Carrier {
    /// gRPC on TCP, not encrypted: `host:port`.
    Tcp,
    /// gRPC on TLS on TCP: `grpcs://host:port`.
    Tls,
    /// The same on streams of a QUIC connection: `quic://host:port`.
    Quic,
    /// QUIC where the network is long or loses packets, TLS on TCP elsewhere: `auto://host:port`.
    Auto,
}

impl Carrier {
    /// What stands before the host in an endpoint.
    fn scheme(self) -> &'static str {
        match self {
            Carrier::Tcp => "",
            Carrier::Tls => "grpcs://",
            Carrier::Quic => "quic://",
            Carrier::Auto => "auto://",
        }
    }

    /// What it is called in reports.
    pub fn name(self) -> &'static str {
        match self {
            Carrier::Tcp => "TCP",
            Carrier::Tls => "TLS on TCP",
            Carrier::Quic => "QUIC",
            Carrier::Auto => "not chosen yet",
        }
    }

    /// Whether nobody on the way can read or change what is sent.
    pub fn is_encrypted(self) -> bool {
        self != Carrier::Tcp
    }
}

/// Where a server listens. Prints as `host:port`, `grpcs://host:port`, `quic://host:port` or `auto://host:port`, with IPv6 addresses in brackets.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint {
    carrier: Carrier,
    host: String,
    port: u16,
}

/// What is wrong with the text of an endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointError(String);

impl fmt::Display for EndpointError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for EndpointError {}

impl Endpoint {
    /// Parses `host`, `host:port`, `[ipv6]` or `[ipv6]:port`, with `grpcs://`, `quic://` or `auto://` before it, or nothing for a connection
    /// without encryption. The port is 50052 if there is none.
    pub fn parse(text: &str) -> Result<Endpoint, EndpointError> {
        let text = text.trim();
        let fail = |why: &str| {
            let form =
                "write host:port, grpcs://host:port, quic://host:port or auto://host:port, such as 10.0.0.2:50052";
            Err(EndpointError(format!("endpoint {text:?}: {why}; {form}")))
        };
        let (carrier, text) = match text.split_once("://") {
            None => (Carrier::Tcp, text),
            Some(("grpcs", rest)) => (Carrier::Tls, rest),
            Some(("quic", rest)) => (Carrier::Quic, rest),
            Some(("auto", rest)) => (Carrier::Auto, rest),
            Some((scheme, _)) => return fail(&format!("there is no carrier {scheme}://")),
        };
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => match rest.split_once(']') {
                Some((host, port)) if host.parse::<std::net::Ipv6Addr>().is_ok() => {
                    (host, port.strip_prefix(':').ok_or(port))
                }
                _ => return fail("there is no IPv6 address in the brackets"),
            },
            None => match text.split_once(':') {
                Some((_, port)) if port.contains(':') => return fail("an IPv6 address goes into brackets"),
                Some((host, port)) => (host, Ok(port)),
                None => (text, Err("")),
            },
        };
        let port = match port {
            Ok(port) => port.parse().ok().filter(|&p| p != 0),
            Err("") => Some(DEFAULT_PORT),
            Err(_) => None,
        };
        let Some(port) = port else { return fail("the port is not a number from 1 to 65535") };
        if host.is_empty() || host.chars().any(|c| c.is_whitespace() || c.is_control() || "/@,[]".contains(c)) {
            return fail("there is no host name");
        }
        Ok(Endpoint { carrier, host: host.to_owned(), port })
    }

    /// Parses a list with commas between the endpoints. The same endpoint twice is an error.
    pub fn parse_list(text: &str) -> Result<Vec<Endpoint>, EndpointError> {
        let mut all: Vec<Endpoint> = Vec::new();
        for part in text.split(',').filter(|part| !part.trim().is_empty()) {
            let endpoint = Endpoint::parse(part)?;
            if all.contains(&endpoint) {
                return Err(EndpointError(format!("endpoint {endpoint} is given twice")));
            }
            all.push(endpoint);
        }
        Ok(all)
    }

    /// The way to it.
    pub fn carrier(&self) -> Carrier {
        self.carrier
    }

    /// `host:port`, whatever the carrier.
    pub fn authority(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }

    /// The same server by another carrier.
    pub fn by(&self, carrier: Carrier) -> Endpoint {
        Endpoint { carrier, ..self.clone() }
    }

    /// Name or address of the host, without brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.port
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.carrier.scheme(), self.authority())
    }
}

impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Endpoint, EndpointError> {
        Endpoint::parse(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_what_people_write() {
        for (text, printed) in [
            ("localhost", "localhost:50052"),
            ("10.0.0.2:7", "10.0.0.2:7"),
            (" host ", "host:50052"),
            ("[::1]", "[::1]:50052"),
            ("[fe80::1]:99", "[fe80::1]:99"),
            ("grpcs://gpu.lan", "grpcs://gpu.lan:50052"),
            ("quic://[::1]:7", "quic://[::1]:7"),
            ("auto://gpu.lan", "auto://gpu.lan:50052"),
        ] {
            let endpoint = Endpoint::parse(text).unwrap();
            assert_eq!(endpoint.to_string(), printed);
            assert_eq!(Endpoint::parse(printed).unwrap(), endpoint);
        }
        let list = Endpoint::parse_list("a:1, b,[::1]:3").unwrap();
        assert_eq!(list.len(), 3);
        assert!(Endpoint::parse_list("a,a:50052").is_err());
    }

    #[test]
    fn refuses_the_rest() {
        for text in ["", ":1", "a:", "a:0", "a:70000", "a:b", "::1", "[::1", "[x]:1", "[::1]9", "a b:1", "u@h:1", "a/b"]
        {
            assert!(Endpoint::parse(text).is_err(), "{text}");
        }
        for text in ["ftp://a:1", "grpcs://", "://a:1", "grpcs://quic://a", "quic:a:1"] {
            assert!(Endpoint::parse(text).is_err(), "{text}");
        }
    }
}
