//! The stage that sends, and how devices of an endpoint hand one another what has come.

use super::target::{Target, random_ticket};
use super::{Batch, Item, Upload};
use crate::lock;
use crate::queue::RemoteQueue;
use outboard_core::{Device, Queue, Result};
use outboard_proto::limits::MIN_BLOB;
use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;

impl<'d> Upload<'d> {
    /// Sends items as they come.
    pub(super) fn send_all(&self, batch: &Batch<'_>, sender: usize, sending: &Mutex<Receiver<&Item>>) -> Result<()> {
        loop {
            let next = lock(sending).recv();
            match next {
                Ok(item) if !batch.has_failed() => self.send(sender, item)?,
                _ => return Ok(()),
            }
        }
    }

    /// Sends one item to its first place, from where the other devices of the endpoint get it.
    fn send(&self, sender: usize, item: &Item) -> Result<()> {
        let source = self.target(item.first.device)?;
        let queue = source.sending(sender)?;
        let digest = item.digest.get().filter(|_| item.len() >= MIN_BLOB && source.device.keeps_blobs());
        queue.send(&item.first.slice, item.data.clone(), digest.copied(), self.progress)?;
        self.announce(item, Some(queue))?;
        self.hand_on(item, queue, |target| target.sending(sender))
    }

    /// Says that an item is in its first place, or on its way there on a queue.
    pub(super) fn announce(&self, item: &Item, on: Option<&RemoteQueue>) -> Result<()> {
        if let Some(common) = item.common.as_ref().filter(|c| c.origin == self.number) {
            common.is_there(on.map(RemoteQueue::signal).transpose()?);
        }
        Ok(())
    }

    /// Goes on with an item that another server has lent and that is there, or that comes from its origin on the queue for that.
    pub(super) fn received(&self, item: &Item) -> Result<()> {
        let queue = self.target(item.first.device)?.taking()?;
        item.from_peer.store(true, Ordering::Relaxed);
        // Without an event: one of this queue could be behind something that waits for what others are to take from here.
        self.announce(item, None)?;
        (self.progress)(item.len());
        self.hand_on(item, queue, Target::taking)
    }

    /// Gives an item that comes on `queue` to its further places, which take it on a queue `of` their devices.
    fn hand_on<'t>(
        &'t self,
        item: &Item,
        queue: &RemoteQueue,
        of: impl Fn(&'t Target<'d>) -> Result<&'t RemoteQueue>,
    ) -> Result<()> {
        let (first, source) = (&item.first, self.target(item.first.device)?);
        for other in &item.others {
            let target = self.target(other.device)?;
            let peer = source.device.peer().zip(target.device.peer());
            match peer.filter(|(peer, _)| peer.reaches(target.device)) {
                _ if other.device == first.device => queue.copy(&first.slice, &other.slice)?,
                Some((from, to)) => {
                    self.count_handed(item.len())?;
                    let ticket = random_ticket()?;
                    from.offer(queue, ticket, &first.slice, target.device)?;
                    to.accept(of(target)?, ticket, &other.slice)?;
                }
                None => of(target)?.send(&other.slice, item.data.clone(), None, &|_| {})?,
            }
            (self.progress)(item.len());
        }
        Ok(())
    }
}
