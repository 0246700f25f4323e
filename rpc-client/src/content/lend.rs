//! Contents that another server of the batch has already, from an earlier load or in a model of its own: they come from there, and
//! this process sends nothing.
//!
//! The lender places what is asked for in memory that it has to spare, and sends it on to the borrower. A lender without memory to
//! spare, or whose file turns out to be damaged, lends nothing; then this process sends.

use super::place::PLACE_BATCH;
use super::target::{End, finish, transfer};
use super::{Batch, Item, Routes, Upload, requests};
use crate::queue::RemoteQueue;
use outboard_core::{Device, PeerTransfer, Result, Slice, Usage, at_once};
use outboard_proto::blobs::{Blob, Place};
use std::sync::mpsc::Receiver;

/// Offsets in a lender's memory are multiples of this.
const ALIGN: u64 = 256;

/// A content and the number of the endpoint that has it.
pub(super) struct Loan<'i> {
    item: &'i Item,
    lender: usize,
}

/// Bytes that an item takes in a lender's memory.
fn room(item: &Item) -> u64 {
    item.len().next_multiple_of(ALIGN)
}

/// The endpoints that could lend anything to this one.
fn lenders<'a, 'd>(upload: &Upload<'_>, batch: &'a Batch<'d>) -> impl Iterator<Item = &'a Upload<'d>> {
    let number = upload.number;
    batch.uploads.iter().filter(move |other| other.number != number && other.keeps_blobs())
}

/// Whether anybody could lend anything.
pub(super) fn possible(upload: &Upload<'_>, batch: &Batch<'_>) -> bool {
    lenders(upload, batch).next().is_some()
}

/// Who lends each of these to the endpoint of `upload`, which does not have them.
pub(super) fn find<'i>(upload: &Upload<'_>, batch: &Batch<'_>, missing: &[&'i Item]) -> Vec<Option<Loan<'i>>> {
    let blobs: Vec<Blob> = missing.iter().map(|item| item.blob()).collect();
    let mut loans: Vec<Option<Loan<'i>>> = missing.iter().map(|_| None).collect();
    if blobs.is_empty() {
        return loans;
    }
    let ask = |lender: &Upload<'_>| {
        // What is wrong with that endpoint, its own upload says.
        let have = lender.first().and_then(|device| requests::have(device, &blobs)).unwrap_or_default();
        let useful = have.contains(&true) && reaches(lender, upload);
        (lender.number, if useful { have } else { Vec::new() })
    };
    let lenders: Vec<_> = lenders(upload, batch).collect();
    for (lender, have) in at_once(&lenders, |lender| ask(lender)) {
        for ((loan, item), _) in loans.iter_mut().zip(missing).zip(have).filter(|(_, have)| *have) {
            loan.get_or_insert(Loan { item, lender });
        }
    }
    loans
}

fn reaches(from: &Upload<'_>, to: &Upload<'_>) -> bool {
    from.first().ok().zip(to.first().ok()).is_some_and(|(from, to)| from.reaches(to))
}

/// Brings loans to the endpoint of `upload` as they are found; what does not come is sent.
pub(super) fn borrow_all<'i>(
    upload: &Upload<'_>,
    batch: &Batch<'_>,
    loans: &Receiver<Loan<'i>>,
    routes: &Routes<'i>,
) -> Result<()> {
    let mut next = loans.recv().ok();
    while let Some(first) = next.take().filter(|_| !batch.has_failed()) {
        let (lender, mut bytes) = (first.lender, room(first.item));
        let mut items = vec![first.item];
        // The rest is whatever there is from the same lender.
        while let Ok(loan) = loans.try_recv() {
            if loan.lender != lender || bytes + room(loan.item) > PLACE_BATCH {
                next = Some(loan);
                break;
            }
            bytes += room(loan.item);
            items.push(loan.item);
        }
        let arrived = match batch.uploads.iter().find(|u| u.number == lender) {
            Some(lender) => borrow(upload, lender, &items)?,
            None => Vec::new(),
        };
        for (i, item) in items.into_iter().enumerate() {
            if arrived.get(i).copied().unwrap_or(false) {
                upload.received(item)?;
            } else {
                // An error would be one of the stage that has ended.
                let _ = routes.dispatch(upload, item);
            }
        }
        if next.is_none() {
            next = loans.recv().ok();
        }
    }
    Ok(())
}

/// Which of these have come to their first places.
fn borrow(upload: &Upload<'_>, lender: &Upload<'_>, items: &[&Item]) -> Result<Vec<bool>> {
    let source = lender.first()?;
    let Ok(buffer) = source.alloc(items.iter().map(|item| room(item)).sum(), Usage::Any) else { return Ok(Vec::new()) };
    let from = RemoteQueue::open(source)?;
    let mut slices = Vec::with_capacity(items.len());
    let mut places = Vec::with_capacity(items.len());
    let mut offset = 0;
    for item in items {
        let slice = Slice::new(buffer.clone(), offset, item.len())?;
        places.push(Place { blob: item.blob(), buffer: source.handle(&slice)?, offset });
        slices.push(slice);
        offset += room(item);
    }
    let placed = requests::place(source, &places)?;
    let mut queues: Vec<Option<RemoteQueue>> = upload.devices.iter().map(|_| None).collect();
    for ((item, slice), _) in items.iter().zip(&slices).zip(&placed).filter(|(_, placed)| **placed) {
        let target = upload.target(item.first.device)?;
        let Some(slot) = queues.get_mut(item.first.device) else { continue };
        let to = match slot {
            Some(queue) => queue,
            None => slot.insert(RemoteQueue::open(target.device)?),
        };
        let from = End { device: source, queue: &from, slice };
        transfer(&from, &End { device: target.device, queue: to, slice: &item.first.slice })?;
    }
    // Behind these the lender's memory may be freed.
    for (queue, target) in queues.iter().zip(&upload.devices) {
        queue.as_ref().map_or(Ok(()), |queue| finish(queue, target.device))?;
    }
    finish(&from, source)?;
    Ok(placed)
}
