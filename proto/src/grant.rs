//! What proves on a link between two servers that a client wants it: derived from the secret that the client shares with the server
//! that receives. `peer.proto` describes it for clients in other languages.

use crate::SECRET_BYTES;

const GRANT: &[u8] = b"outboard.v1 peer grant";
const WELCOME: &[u8] = b"outboard.v1 peer welcome";

/// A proof, or the secret that it is derived from. Compare two in constant time.
pub type Secret = [u8; SECRET_BYTES];

/// A link from one server to a session on another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Route {
    /// Incarnation of the server that sends.
    pub from: u64,
    /// Incarnation of the server that receives.
    pub to: u64,
    /// Id of the client's session on the server that receives.
    pub session: u64,
}

/// The two proofs of a link.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Proofs {
    /// What the sender shows, so that the receiver knows that its session's client wants the link.
    pub grant: Secret,
    /// What the receiver answers, so that the sender knows that it is the server that the client knows.
    pub welcome: Secret,
}

impl Proofs {
    /// The proofs of a link, from the secret of the session that it leads to.
    pub fn new(secret: &Secret, route: Route) -> Proofs {
        Proofs { grant: derive(secret, GRANT, route), welcome: derive(secret, WELCOME, route) }
    }
}

impl std::fmt::Debug for Proofs {
    /// Proofs are credentials.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Proofs(..)")
    }
}

fn derive(secret: &Secret, what: &[u8], route: Route) -> Secret {
    let mut hasher = blake3::Hasher::new_keyed(secret);
    hasher.update(what);
    for number in [route.from, route.to, route.session] {
        hasher.update(&number.to_le_bytes());
    }
    *hasher.finalize().as_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUTE: Route = Route { from: 1, to: 2, session: 3 };

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|b| format!("{b:02x}")).collect()
    }

    #[test]
    fn proofs_are_those_that_the_description_gives() {
        let Proofs { grant, welcome } = Proofs::new(&[7; 32], ROUTE);
        let description = include_str!("../proto/outboard/v1/peer.proto");
        for (name, proof) in [("grant  ", grant), ("welcome", welcome)] {
            let line = format!("//   {name} = {}\n", hex(&proof));
            assert!(description.contains(&line), "{line}");
        }
        // The input as one piece, as another implementation would write it.
        let input = b"outboard.v1 peer grant\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\0";
        assert_eq!(grant, *blake3::keyed_hash(&[7; 32], input).as_bytes());
    }

    #[test]
    fn every_part_of_a_link_counts() {
        let proofs = Proofs::new(&[7; 32], ROUTE);
        assert_ne!(proofs.grant, proofs.welcome);
        let mut other = vec![Proofs::new(&[8; 32], ROUTE)];
        let turned = Route { from: 2, to: 1, ..ROUTE };
        let routes = [Route { from: 9, ..ROUTE }, Route { to: 9, ..ROUTE }, Route { session: 9, ..ROUTE }, turned];
        other.extend(routes.map(|route| Proofs::new(&[7; 32], route)));
        for other in other {
            assert!(other.grant != proofs.grant && other.welcome != proofs.welcome);
        }
        assert!(!format!("{proofs:?}").contains('7'));
    }
}
