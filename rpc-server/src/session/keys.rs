//! Who may use a session: its secret, which changes whenever its client takes it up again.
//!
//! So whatever is still on its way on lost connections comes too late: it names a secret that is not good any more.

use crate::lock;
use bytes::Bytes;
use outboard_proto::grant::{Proofs, Route, Secret};
use std::sync::Mutex;
use subtle::ConstantTimeEq;
use tokio::sync::watch;

/// The secrets of one session.
pub(crate) struct Keys {
    secrets: Mutex<Secrets>,
    /// How often the session was taken up again.
    age: watch::Sender<u64>,
}

struct Secrets {
    now: Secret,
    /// With this it was taken up last. The client may not have got the new one.
    before: Option<Secret>,
}

impl Secrets {
    /// This secret, if the session can be taken up again with it.
    fn usable(&self, secret: &[u8]) -> Option<Secret> {
        [Some(self.now), self.before].into_iter().flatten().find(|known| known[..].ct_eq(secret).into())
    }
}

impl Default for Keys {
    fn default() -> Keys {
        Keys { secrets: Mutex::new(Secrets { now: rand::random(), before: None }), age: watch::Sender::new(0) }
    }
}

impl Keys {
    /// The secret, for its client.
    pub(crate) fn secret(&self) -> Bytes {
        Bytes::copy_from_slice(&lock(&self.secrets).now)
    }

    /// The age of the session if this is its secret.
    pub(crate) fn age(&self, secret: &[u8]) -> Option<u64> {
        let secrets = lock(&self.secrets);
        bool::from(secrets.now[..].ct_eq(secret)).then(|| *self.age.borrow())
    }

    /// Whether the session can be taken up again with this secret.
    pub(crate) fn may_renew(&self, secret: &[u8]) -> bool {
        lock(&self.secrets).usable(secret).is_some()
    }

    /// The age of the session now.
    pub(crate) fn age_now(&self) -> u64 {
        *self.age.borrow()
    }

    /// The age of the session, and what proves that this server knows it, if its client wants this link, as the grant shows.
    pub(crate) fn link(&self, route: Route, grant: &[u8]) -> Option<(u64, Secret)> {
        let secrets = lock(&self.secrets);
        let proofs = Proofs::new(&secrets.now, route);
        bool::from(proofs.grant.ct_eq(grant)).then(|| (*self.age.borrow(), proofs.welcome))
    }

    /// Takes the session up again: with its secret, or with the one before. Gives its new age; streams of its old one end.
    pub(crate) fn renew(&self, secret: &[u8]) -> Option<u64> {
        let mut secrets = lock(&self.secrets);
        let used = secrets.usable(secret)?;
        *secrets = Secrets { now: rand::random(), before: Some(used) };
        self.age.send_modify(|age| *age += 1);
        Some(*self.age.borrow())
    }

    /// Does something, which must not take long, if the session has this age, and keeps it from being taken up again meanwhile.
    pub(crate) fn while_at<T>(&self, age: u64, work: impl FnOnce() -> T) -> Option<T> {
        let _unchanged = lock(&self.secrets);
        (*self.age.borrow() == age).then(work)
    }

    /// Whether the session was taken up again since it had this age.
    pub(crate) fn is_renewed(&self, age: u64) -> bool {
        *self.age.borrow() != age
    }

    /// Completes when the session is taken up again.
    pub(crate) async fn until_renewed(&self, age: u64) {
        // An error means that the sender is gone, which `self` holds.
        let _ = self.age.subscribe().wait_for(|&now| now != age).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outboard_proto::SECRET_BYTES;

    #[test]
    fn links_need_the_secret_of_now() {
        let keys = Keys::default();
        let first: Secret = keys.secret().as_ref().try_into().unwrap();
        let route = Route { from: 1, to: 2, session: 3 };
        let Proofs { grant, welcome } = Proofs::new(&first, route);
        assert_eq!(keys.link(route, &grant), Some((0, welcome)));
        assert_eq!(keys.link(Route { from: 2, ..route }, &grant), None);
        for wrong in [&welcome[..], &grant[1..], &[0; 32], &[]] {
            assert_eq!(keys.link(route, wrong), None);
        }
        keys.renew(&first).unwrap();
        assert_eq!(keys.link(route, &grant), None);
        let second: Secret = keys.secret().as_ref().try_into().unwrap();
        let again = Proofs::new(&second, route);
        assert_eq!(keys.link(route, &again.grant), Some((1, again.welcome)));
    }

    #[test]
    fn an_old_secret_is_good_only_for_another_try() {
        let keys = Keys::default();
        let first = keys.secret();
        assert_eq!((keys.age(&first), keys.age(&[0; SECRET_BYTES]), keys.age(&first[1..])), (Some(0), None, None));
        assert_eq!(keys.renew(&[0; SECRET_BYTES]), None);
        assert_eq!(keys.renew(&first), Some(1));
        let second = keys.secret();
        assert_eq!((keys.age(&first), keys.age(&second)), (None, Some(1)));
        // The answer with the second secret has not come.
        assert_eq!(keys.renew(&first), Some(2));
        assert_eq!((keys.age(&second), keys.renew(&second)), (None, None));
        let third = keys.secret();
        assert_eq!(keys.renew(&third), Some(3));
        assert_eq!(keys.renew(&first), None);
        assert!(keys.is_renewed(2) && !keys.is_renewed(3));
        assert!(keys.may_renew(&third) && keys.may_renew(&keys.secret()) && !keys.may_renew(&first));
        assert_eq!((keys.while_at(2, || 7), keys.while_at(3, || 7)), (None, Some(7)));
    }
}
