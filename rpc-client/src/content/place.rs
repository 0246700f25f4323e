//! The stage that lets the server place what it has.

use super::{Batch, Item, Routes, Upload, requests};
use crate::lock;
use outboard_core::Result;
use outboard_proto::limits::MAX_BLOBS;
use std::sync::Mutex;
use std::sync::mpsc::Receiver;

/// Bytes that a server is asked to place at a time; a single larger blob goes alone.
pub(super) const PLACE_BATCH: u64 = 64 << 20;

impl Upload<'_> {
    /// Lets the server place items until there are no more; those that it turns out not to have go another way.
    pub(super) fn place_all<'i>(
        &self,
        batch: &Batch<'_>,
        placing: &Mutex<Receiver<&'i Item>>,
        routes: &Routes<'i>,
    ) -> Result<()> {
        loop {
            let items = next_items(&lock(placing));
            if items.is_empty() || batch.has_failed() {
                return Ok(());
            }
            let placed = self.place(&items)?;
            for (item, placed) in items.into_iter().zip(placed) {
                if placed {
                    self.announce(item, None)?;
                    (self.progress)(item.bytes_in_all());
                } else {
                    // An error would be one of the stage that has ended.
                    let _ = routes.dispatch(self, item);
                }
            }
        }
    }

    /// Which of these are now in all their places.
    fn place(&self, items: &[&Item]) -> Result<Vec<bool>> {
        let mut places = Vec::new();
        for item in items {
            for to in item.destinations() {
                places.push(self.place_of(item, to)?);
            }
        }
        let mut flags = requests::place(self.first()?, &places)?.into_iter();
        // All places of an item count; `all` would stop at the first that is missing.
        let in_all =
            |item: &&Item| flags.by_ref().take(item.destinations().count()).fold(true, |all, placed| all & placed);
        Ok(items.iter().map(in_all).collect())
    }
}

/// The next items to place: at least one, unless there will be no more, and what else is there up to a batch.
fn next_items<'i>(placing: &Receiver<&'i Item>) -> Vec<&'i Item> {
    let mut items: Vec<&Item> = placing.recv().into_iter().collect();
    let size = |items: &[&Item]| items.iter().map(|item| item.bytes_in_all()).sum::<u64>();
    while size(&items) < PLACE_BATCH && items.len() < MAX_BLOBS {
        match placing.try_recv() {
            Ok(item) => items.push(item),
            Err(_) => break,
        }
    }
    items
}
