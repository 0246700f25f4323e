//! Whose blobs a cache has, and what each client is writing to it. No I/O here.
//!
//! A blob is its client's that has put it in or used it, until another one uses it as well. Of what clients had put in before this
//! server was started nothing is known: it is nobody's until it is used.

use crate::limits::{BLOB_FILES, BLOB_FILES_CLIENT, BLOB_WRITING_CLIENT_PART, DISTRUST, WRONG_DIGESTS};
use outboard_core::Digest;
use std::collections::HashMap;
use std::time::Instant;

/// Clients that are known, before those of which there is nothing to be known are forgotten.
const KEPT: usize = 1024;

/// A client, by the number of its account.
pub(super) type ClientId = u64;

#[derive(Debug)]
pub(super) struct Ledger {
    /// Most bytes and files of the cache.
    limit: (u64, usize),
    blobs: HashMap<Digest, Known>,
    clients: HashMap<ClientId, Client>,
    /// Files of all clients that are being written or on their way to the disk.
    unfinished: usize,
}

#[derive(Debug)]
struct Known {
    len: u64,
    /// Whose it is; nobody's alone if several have used it.
    owner: Option<ClientId>,
}

#[derive(Debug, Default)]
struct Client {
    /// Bytes and files of blobs that are its own.
    kept: (u64, usize),
    /// Bytes and files that are being written. Bytes count from the beginning, as many as the client has said will come.
    writing: (u64, usize),
    /// Files that are whole and wait for the disk.
    committing: usize,
    /// Blobs that did not have their digests, and when the last one came.
    wrong: Option<(u32, Instant)>,
}

/// Whether a client may write a blob.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admitted {
    /// It counts as being written from now on.
    Now,
    /// When the disk has taken more of what the client has sent.
    Later,
    /// It is not kept.
    Never,
}

impl Client {
    fn is_distrusted(&self, now: Instant) -> bool {
        self.wrong.is_some_and(|(count, last)| count >= WRONG_DIGESTS && now.duration_since(last) < DISTRUST)
    }

    fn is_full(&self) -> bool {
        self.writing.1 + self.committing >= BLOB_FILES_CLIENT
    }

    fn is_empty(&self, now: Instant) -> bool {
        let remembered = self.wrong.is_some_and(|(_, last)| now.duration_since(last) < DISTRUST);
        self.kept.1 == 0 && self.writing.1 == 0 && self.committing == 0 && !remembered
    }
}

impl Ledger {
    pub(super) fn new(bytes: u64, files: usize) -> Ledger {
        Ledger { limit: (bytes, files), blobs: HashMap::new(), clients: HashMap::new(), unfinished: 0 }
    }

    fn client(&mut self, client: ClientId) -> &mut Client {
        if self.clients.len() >= KEPT && !self.clients.contains_key(&client) {
            let now = Instant::now();
            self.clients.retain(|_, c| !c.is_empty(now));
        }
        self.clients.entry(client).or_default()
    }

    /// A client begins to write a blob, if it may.
    pub(super) fn begin(&mut self, client: ClientId, len: u64, now: Instant) -> Admitted {
        let most = self.limit.0 / BLOB_WRITING_CLIENT_PART;
        let crowded = self.unfinished >= BLOB_FILES;
        let c = self.client(client);
        if crowded || c.is_distrusted(now) || c.writing.0.saturating_add(len) > most {
            return Admitted::Never;
        }
        if c.is_full() {
            return if c.committing > 0 { Admitted::Later } else { Admitted::Never };
        }
        c.writing = (c.writing.0 + len, c.writing.1 + 1);
        self.unfinished += 1;
        Admitted::Now
    }

    /// It has ended, whole or not.
    pub(super) fn end(&mut self, client: ClientId, len: u64) {
        let c = self.client(client);
        c.writing = (c.writing.0.saturating_sub(len), c.writing.1.saturating_sub(1));
        self.unfinished = self.unfinished.saturating_sub(1);
    }

    /// A blob of a client is whole and waits for the disk.
    pub(super) fn commit(&mut self, client: ClientId) {
        self.client(client).committing += 1;
        self.unfinished += 1;
    }

    /// The disk has it, or has refused it.
    pub(super) fn committed(&mut self, client: ClientId) {
        let c = self.client(client);
        c.committing = c.committing.saturating_sub(1);
        self.unfinished = self.unfinished.saturating_sub(1);
    }

    /// A blob of a client did not have its digest. `true` if nothing is taken from it from now on, for a while.
    pub(super) fn wrong(&mut self, client: ClientId, now: Instant) -> bool {
        let c = self.client(client);
        let before = c.wrong.filter(|(_, last)| now.duration_since(*last) < DISTRUST).map_or(0, |(count, _)| count);
        c.wrong = Some((before.saturating_add(1), now));
        before + 1 == WRONG_DIGESTS
    }

    /// A client has put in a blob, or uses it.
    pub(super) fn used(&mut self, digest: Digest, len: u64, client: ClientId) {
        match self.blobs.get_mut(&digest) {
            Some(Known { owner: Some(owner), .. }) if *owner == client => {}
            Some(Known { owner: None, .. }) => {}
            Some(known) => {
                let (owner, len) = (known.owner.take(), known.len);
                self.give_back(owner, len);
            }
            None => {
                self.blobs.insert(digest, Known { len, owner: Some(client) });
                let c = self.client(client);
                c.kept = (c.kept.0 + len, c.kept.1 + 1);
            }
        }
    }

    /// A blob is gone.
    pub(super) fn forget(&mut self, digest: &Digest) {
        if let Some(known) = self.blobs.remove(digest) {
            self.give_back(known.owner, known.len);
        }
    }

    fn give_back(&mut self, owner: Option<ClientId>, len: u64) {
        if let Some(owner) = owner {
            let c = self.client(owner);
            c.kept = (c.kept.0.saturating_sub(len), c.kept.1.saturating_sub(1));
        }
    }

    /// Forgets all blobs but those that are there: other servers may have removed some.
    pub(super) fn retain(&mut self, is_there: impl Fn(&Digest) -> bool) {
        let gone: Vec<Digest> = self.blobs.keys().filter(|digest| !is_there(digest)).copied().collect();
        gone.iter().for_each(|digest| self.forget(digest));
    }

    /// Whether a client would have more than half of the cache with so many bytes more.
    pub(super) fn is_greedy(&self, client: ClientId, bytes: u64) -> bool {
        let (kept, files) = self.clients.get(&client).map_or((0, 0), |c| c.kept);
        kept.saturating_add(bytes) > self.limit.0 / 2 || files >= self.limit.1 / 2
    }

    /// Whether a blob is used by others than this client.
    pub(super) fn is_of_others(&self, digest: &Digest, client: ClientId) -> bool {
        self.blobs.get(digest).is_some_and(|known| known.owner != Some(client))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(n: u8) -> Digest {
        Digest([n; 32])
    }

    #[test]
    fn a_blob_is_its_clients_until_others_use_it() {
        let mut ledger = Ledger::new(1000, 100);
        ledger.used(digest(1), 400, 7);
        ledger.used(digest(1), 400, 7);
        assert!(!ledger.is_greedy(7, 100) && ledger.is_greedy(7, 101) && !ledger.is_greedy(8, 500));
        assert!(!ledger.is_of_others(&digest(1), 7) && ledger.is_of_others(&digest(1), 8));
        // What nobody has used is nobody's.
        assert!(!ledger.is_of_others(&digest(2), 7));
        ledger.used(digest(1), 400, 8);
        assert!(ledger.is_of_others(&digest(1), 7) && ledger.is_of_others(&digest(1), 8));
        assert!(!ledger.is_greedy(7, 500));
        ledger.used(digest(2), 300, 7);
        ledger.retain(|&d| d == digest(1));
        assert!(!ledger.is_greedy(7, 500) && !ledger.is_of_others(&digest(2), 8));
        // Files count, too.
        (10..60).for_each(|n| ledger.used(digest(n), 1, 9));
        assert!(ledger.is_greedy(9, 0));
        ledger.forget(&digest(10));
        assert!(!ledger.is_greedy(9, 0));
    }

    #[test]
    fn what_is_being_written_is_bounded_for_each_client_and_for_all() {
        use Admitted::*;
        let now = Instant::now();
        let mut ledger = Ledger::new(3 * BLOB_WRITING_CLIENT_PART, 1 << 20);
        assert_eq!([2, 1, 1].map(|len| ledger.begin(1, len, now)), [Now, Now, Never]);
        ledger.end(1, 2);
        assert_eq!(ledger.begin(1, 2, now), Now);
        assert_eq!([4, u64::MAX].map(|len| ledger.begin(2, len, now)), [Never; 2]);
        let mut ledger = Ledger::new(1 << 40, 1 << 20);
        let clients = (0..).take_while(|&client| {
            let n = (0..BLOB_FILES).take_while(|_| ledger.begin(client, 1, now) == Now).count();
            n == BLOB_FILES_CLIENT
        });
        assert_eq!(clients.count(), BLOB_FILES / BLOB_FILES_CLIENT);
        // Whole, and on their way to the disk, they are still files.
        ledger.end(0, 1);
        ledger.commit(0);
        assert_eq!(ledger.begin(1, 1, now), Never);
        ledger.end(1, 1);
        assert_eq!((ledger.begin(0, 1, now), ledger.begin(1, 1, now)), (Later, Now));
        ledger.end(1, 1);
        ledger.committed(0);
        assert_eq!(ledger.begin(0, 1, now), Now);
    }

    #[test]
    fn wrong_digests_are_forgiven_after_a_while() {
        use Admitted::*;
        let (start, mut ledger) = (Instant::now(), Ledger::new(1 << 40, 1 << 20));
        for n in 1..=WRONG_DIGESTS + 2 {
            assert!(n > WRONG_DIGESTS || ledger.begin(1, 1, start) == Now);
            assert_eq!(ledger.wrong(1, start), n == WRONG_DIGESTS);
        }
        assert_eq!((ledger.begin(1, 1, start), ledger.begin(2, 1, start)), (Never, Now));
        assert_eq!(ledger.begin(1, 1, start + DISTRUST), Now);
        assert!(!ledger.wrong(1, start + DISTRUST));
        assert_eq!(ledger.begin(1, 1, start + DISTRUST), Now);
    }

    #[test]
    fn clients_that_have_nothing_are_forgotten() {
        let mut ledger = Ledger::new(1 << 40, 1 << 20);
        ledger.used(digest(1), 1, 5);
        for client in 10..10 + 3 * KEPT as u64 {
            assert_eq!(ledger.begin(client, 1, Instant::now()), Admitted::Now);
            ledger.end(client, 1);
        }
        assert!(ledger.clients.len() <= KEPT && ledger.clients.contains_key(&5));
    }
}
