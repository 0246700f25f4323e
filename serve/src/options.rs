//! Whom a service answers, and what they may take: what a program says that starts one.

use crate::form_process::FormProcesses;
use crate::limits::Limits;
use crate::page::Page;
use crate::queue::Client;
use http::{HeaderValue, Uri};
use outboard::{Error, Result};
use outboard_net::Tokens;
use std::sync::Arc;

/// What programs may be told about the host that they have asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Hosts {
    /// A request says an address or `localhost`. For servers on loopback that ask for no key: a page of somebody else, whose name has been made to
    /// mean this host, is not answered.
    #[default]
    Local,
    /// The same, a name of a private network (one without a dot, or in `.local`, `.lan`, `.internal`, `.home.arpa`), or one of these. For servers that
    /// ask for no key on other addresses: nobody outside can make such a name mean the server.
    Private(Vec<String>),
    /// Any name.
    Any,
}

/// Whom a service answers, and what they may take.
#[derive(Clone, Debug, Default)]
pub struct ServeOptions {
    /// What clients may take.
    pub limits: Limits,
    /// Keys that clients must show; nobody needs one without this.
    pub keys: Option<Arc<Tokens>>,
    /// Names of the model, the first of which is what clients are told. None: the name of its file, without `.gguf`. Of several models each has its own
    /// ([`ServedModel`](crate::ServedModel)), and there are none here.
    pub names: Vec<String>,
    /// Names of this host that requests may say. With keys, any.
    pub hosts: Hosts,
    /// Origins whose pages may use it from a browser, such as `https://chat.lan`, or `*` for any. None: only pages that it serves itself.
    pub origins: Vec<String>,
    /// Whether there is a page for browsers.
    pub page: Page,
    /// Whose texts share beginnings.
    pub beginnings: Beginnings,
    /// Where forms of texts are compiled and followed. None: in this process, and what is known to cost too much is refused alone.
    pub form_processes: Option<FormProcesses>,
}

impl ServeOptions {
    /// Whether all of them can be used: a service with others cannot be made.
    pub fn check(&self) -> Result<()> {
        self.origins().map(drop)
    }

    /// Origins whose pages may use it, as browsers write them.
    pub(crate) fn origins(&self) -> Result<Vec<HeaderValue>> {
        let origin = |text: &String| {
            let wrong =
                || Error::Request(format!("\"{text}\" is no origin of pages: https://chat.lan is one, * is all"));
            origin_of(text).and_then(|origin| HeaderValue::from_str(&origin).ok()).ok_or_else(wrong)
        };
        self.origins.iter().map(origin).collect()
    }
}

/// An origin as browsers write it: scheme, host and port, or `*`.
fn origin_of(text: &str) -> Option<String> {
    if text == "*" {
        return Some(text.to_owned());
    }
    let uri: Uri = text.parse().ok()?;
    let (scheme, host) = (uri.scheme_str()?, uri.authority()?.as_str());
    let is_one = matches!(uri.path(), "" | "/") && uri.query().is_none() && !host.contains(['@', '*']);
    is_one.then(|| format!("{scheme}://{host}").to_ascii_lowercase())
}

/// Whose texts use what the cache has of others that begin alike. A client can tell by its own how another one's begin: by what `cached_tokens` says, and by
/// the time to the first token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Beginnings {
    /// Those of all clients: what many have in common is read once.
    #[default]
    OfAll,
    /// Those of one client: of a key, or of an address where there are no keys.
    OfEachClient,
}

impl Beginnings {
    /// What texts have in common that share beginnings, where a request has said something for this itself (`cache_salt`); `None` is one of its own.
    pub(crate) fn salt(self, client: &Client, said: Option<&str>) -> Option<Arc<str>> {
        let client = match self {
            Beginnings::OfAll => None,
            Beginnings::OfEachClient => Some(client),
        };
        (client.is_some() || said.is_some()).then(|| format!("{client:?} {said:?}").into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_are_written_as_browsers_do() {
        for (said, origin) in [
            ("*", Some("*")),
            ("https://chat.lan", Some("https://chat.lan")),
            ("https://Chat.LAN:8443/", Some("https://chat.lan:8443")),
            ("chrome-extension://abc", Some("chrome-extension://abc")),
            ("https://chat.lan/page", None),
            ("https://chat.lan/?a", None),
            ("https://*.lan", None),
            ("https://me@chat.lan", None),
            ("chat.lan", None),
            ("://", None),
            ("", None),
        ] {
            assert_eq!(origin_of(said).as_deref(), origin, "{said}");
        }
    }
}
