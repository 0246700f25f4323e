//! Which other servers this one may connect to, as its user has listed them.

use ipnet::IpNet;
use outboard_core::{Error, Result};
use std::fmt;
use std::net::{IpAddr, SocketAddr};

/// Names and addresses of other servers. The default is any server that a client names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PeerList(Option<Listed>);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Listed {
    names: Vec<String>,
    nets: Vec<IpNet>,
}

/// What a list says of a name before it is looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// All addresses that it has are good.
    Any,
    /// Those that are in the list.
    Listed,
    /// None is.
    None,
}

impl PeerList {
    /// Reads host names, IP addresses and CIDR blocks, such as `gpu1.lan`, `10.0.0.7`, `10.0.0.0/24` or `fd00::/8`. An empty list is
    /// one that allows no server.
    pub fn parse<'a>(items: impl IntoIterator<Item = &'a str>) -> Result<PeerList> {
        let mut listed = Listed::default();
        for item in items.into_iter().map(str::trim).filter(|item| !item.is_empty()) {
            let bare = item.strip_prefix('[').and_then(|i| i.strip_suffix(']')).unwrap_or(item);
            if let Ok(address) = bare.parse::<IpAddr>() {
                listed.nets.push(address.to_canonical().into());
            } else if let Ok(net) = item.parse::<IpNet>() {
                listed.nets.push(net);
            } else if is_name(item) {
                listed.names.push(plain(item));
            } else {
                return Err(Error::Request(format!(
                    "--peers {item}: that is no host name, IP address or CIDR block; write for example gpu1.lan, 10.0.0.7 or 10.0.0.0/24, \
                     without a port"
                )));
            }
        }
        Ok(PeerList(Some(listed)))
    }

    /// What is known of a host before it is looked up.
    pub(crate) fn verdict(&self, host: &str) -> Verdict {
        match &self.0 {
            None => Verdict::Any,
            Some(listed) if listed.names.contains(&plain(host)) => Verdict::Any,
            Some(listed) if listed.nets.is_empty() => Verdict::None,
            Some(_) => Verdict::Listed,
        }
    }

    /// Whether an address is in a listed block.
    pub(crate) fn has(&self, address: &SocketAddr) -> bool {
        let ip = address.ip().to_canonical();
        self.0.as_ref().is_none_or(|listed| listed.nets.iter().any(|net| net.contains(&ip)))
    }
}

impl fmt::Display for PeerList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(Listed { names, nets }) = &self.0 else { return f.write_str("any server") };
        let all: Vec<String> = names.iter().cloned().chain(nets.iter().map(IpNet::to_string)).collect();
        f.write_str(if all.is_empty() { "none".into() } else { all.join(", ") }.as_str())
    }
}

/// A name as it is compared.
fn plain(host: &str) -> String {
    host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase()
}

/// Whether it could be the name of a host. What consists of digits and dots is an address that is written wrongly.
fn is_name(text: &str) -> bool {
    let letters = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    !text.is_empty() && text.chars().all(letters) && !text.chars().all(|c| c.is_ascii_digit() || c == '.')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(text: &str) -> PeerList {
        PeerList::parse(text.split(',')).unwrap()
    }

    fn has(list: &PeerList, address: &str) -> bool {
        list.has(&SocketAddr::new(address.parse().unwrap(), 1))
    }

    #[test]
    fn lists_are_of_names_addresses_and_blocks() {
        let all = list("gpu1.lan, GPU2., 10.0.0.7,192.168.4.0/22,fd00::/8,[::1]");
        for name in ["gpu1.lan", "GPU1.LAN", "gpu1.lan.", "gpu2"] {
            assert_eq!(all.verdict(name), Verdict::Any, "{name}");
        }
        for name in ["gpu1", "gpu3.lan", "evil.gpu1.lan", "10.0.0.7", ""] {
            assert_eq!(all.verdict(name), Verdict::Listed, "{name}");
        }
        for address in ["10.0.0.7", "::ffff:10.0.0.7", "192.168.7.255", "fd12::5", "::1"] {
            assert!(has(&all, address), "{address}");
        }
        for address in ["10.0.0.8", "192.168.8.0", "127.0.0.1", "fe80::1", "::ffff:10.0.0.8", "::10.0.0.7"] {
            assert!(!has(&all, address), "{address}");
        }
        assert_eq!(all.to_string(), "gpu1.lan, gpu2, 10.0.0.7/32, 192.168.4.0/22, fd00::/8, ::1/128");
    }

    #[test]
    fn no_list_is_any_server_and_an_empty_one_is_none() {
        let any = PeerList::default();
        assert!(any.verdict("x") == Verdict::Any && has(&any, "8.8.8.8") && any.to_string() == "any server");
        let none = list("");
        assert!(none.verdict("x") == Verdict::None && !has(&none, "127.0.0.1") && none.to_string() == "none");
        assert_eq!(list("a,b").verdict("c"), Verdict::None);
    }

    #[test]
    fn what_is_neither_is_refused() {
        for text in ["10.0.0.0/33", "10.0.0.256", "a:1", "grpcs://a", "a b", "1.2.3", "fd00::/129", "[fd00::", "a/8"] {
            let error = PeerList::parse([text]).unwrap_err().to_string();
            assert!(error.contains("--peers") && error.contains(text), "{error}");
        }
    }
}
