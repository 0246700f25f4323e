//! The first stage of an upload: computes digests, asks the server what it has, and hands each item to the stage that it needs.

use super::lend::{self, Loan};
use super::{Batch, Item, Routes, StageEnded, Upload, requests};
use outboard_core::Result;
use outboard_proto::blobs::Blob;
use outboard_proto::limits::MAX_BLOBS;
use std::sync::mpsc::{SendError, Sender};

/// Bytes of contents whose digests are computed before the server is asked about them: some hundredths of a second of work.
const WINDOW: u64 = 32 << 20;

/// Where items go on, once the server was asked about them.
pub(super) struct Stages<'i> {
    pub(super) to_place: Sender<&'i Item>,
    pub(super) to_borrow: Sender<Loan<'i>>,
    pub(super) routes: Routes<'i>,
}

impl<T> From<SendError<T>> for StageEnded {
    fn from(_: SendError<T>) -> StageEnded {
        StageEnded
    }
}

impl Upload<'_> {
    /// Asks about all blobs and hands them to the stage that they need. What is too `small` for that would be in the question's way,
    /// hundreds of messages of some bytes: it waits for the first answer, if there is one.
    pub(super) fn ask_all<'i>(
        &self,
        batch: &Batch<'_>,
        mut blobs: &[&'i Item],
        small: &[&'i Item],
        stages: &Stages<'i>,
    ) -> Result<()> {
        let mut small = small.iter();
        while !blobs.is_empty() && !batch.has_failed() {
            let Some((window, rest)) = blobs.split_at_checked(window_len(blobs)) else { break };
            blobs = rest;
            let asked: Vec<Blob> = window.iter().map(|item| item.blob()).collect();
            let have =
                if self.keeps_blobs() { requests::have(self.first()?, &asked)? } else { vec![false; asked.len()] };
            if self.hand_over(batch, window, &have, small.by_ref(), stages).is_err() {
                return Ok(());
            }
        }
        // An error would be one of the stage that has ended.
        let _ = small.try_for_each(|item| stages.routes.dispatch(self, item));
        Ok(())
    }

    /// Hands the items of a window to their stages, now that it is known which of them the server has: those first, as nothing else has
    /// anything to do with them.
    fn hand_over<'s, 'i: 's>(
        &self,
        batch: &Batch<'_>,
        window: &[&'i Item],
        have: &[bool],
        mut small: impl Iterator<Item = &'s &'i Item>,
        stages: &Stages<'i>,
    ) -> std::result::Result<(), StageEnded> {
        let (here, missing): (Vec<_>, Vec<_>) = window.iter().zip(have).partition(|(_, have)| **have);
        for (item, _) in here {
            stages.to_place.send(item)?;
        }
        small.try_for_each(|item| stages.routes.dispatch(self, item))?;
        // What comes from its origin need not be borrowed.
        let (common, missing): (Vec<&Item>, Vec<&Item>) =
            missing.into_iter().map(|(item, _)| *item).partition(|item| self.elsewhere(item).is_some());
        common.into_iter().try_for_each(|item| stages.routes.dispatch(self, item))?;
        for (loan, item) in lend::find(self, batch, &missing).into_iter().zip(missing) {
            match loan {
                Some(loan) => stages.to_borrow.send(loan)?,
                None => stages.routes.dispatch(self, item)?,
            }
        }
        Ok(())
    }
}

/// How many items are asked about together: digests that are known cost nothing; of the others there is at least one.
fn window_len(blobs: &[&Item]) -> usize {
    let mut unknown = 0;
    let fits = |item: &&&Item| {
        let before = unknown;
        unknown += if item.digest.get().is_some() { 0 } else { item.len() };
        before < WINDOW
    };
    blobs.iter().take(MAX_BLOBS).take_while(fits).count().max(1)
}
