//! Whom a server lets in.

use crate::peer_list::PeerList;
use outboard_net::{ClientTls, ServerTls, Tokens};
use std::sync::Arc;
use tonic::Status;
use tonic::metadata::MetadataMap;

/// What protects a server. The default is nothing, which is for loopback only.
#[derive(Clone, Debug, Default)]
pub struct Trust {
    /// Its certificate, and the CA of its clients' certificates if they need one. With it, everything is encrypted, and the
    /// server listens on QUIC as well.
    pub tls: Option<ServerTls>,
    /// The tokens of its clients, if they need one.
    pub tokens: Option<Arc<Tokens>>,
    /// How it knows the servers that it sends tensors to, and what it shows them: its own certificate, if it has one.
    pub peers: ClientTls,
    /// Which other servers it may connect to.
    pub may_dial: PeerList,
}

impl Trust {
    /// Whether clients must prove who they are.
    pub fn knows_clients(&self) -> bool {
        self.tokens.is_some() || self.tls.as_ref().is_some_and(ServerTls::asks_clients)
    }

    /// Checks the token of a call. `Ok(None)` if none is needed.
    pub(crate) fn check(&self, metadata: &MetadataMap) -> Result<Option<Arc<str>>, Denied> {
        let Some(tokens) = &self.tokens else { return Ok(None) };
        let text = metadata.get("authorization").ok_or(Denied::Missing)?;
        let token = text
            .to_str()
            .ok()
            .and_then(|text| text.split_once(' '))
            .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
            .map(|(_, token)| token.trim());
        token.and_then(|token| tokens.name_of(token)).map(Some).ok_or(Denied::Wrong)
    }
}

/// Why a client is not let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Denied {
    /// It has shown no token.
    Missing,
    /// It has shown one that is not known here.
    Wrong,
}

impl Denied {
    /// What the client is told.
    pub(crate) fn status(self) -> Status {
        Status::unauthenticated(match self {
            Denied::Missing => "it wants a token; give yours with --token-file, or in OUTBOARD_TOKEN",
            Denied::Wrong => "it does not know this token; it may have been replaced",
        })
    }
}
