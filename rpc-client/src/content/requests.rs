//! What a server is asked about the contents that it keeps.

use crate::device::RemoteDevice;
use crate::link::Shared;
use outboard_core::Result;
use outboard_proto::blobs::{Blob, Place, encode_places, encode_question};
use outboard_proto::graph::bits_to_flags;
use outboard_proto::limits::MAX_BLOBS;
use outboard_proto::v1;
use std::time::Duration;

/// Blobs that a server checks in one request.
const CHECKED_TOGETHER: usize = 64;
/// Bytes per second that a server's disk gives at least; a slower one is taken for hanging.
const SLOWEST_DISK: u64 = 8 << 20;

/// Which of these blobs the device's server has.
pub(super) fn have(device: &RemoteDevice, blobs: &[Blob]) -> Result<Vec<bool>> {
    let shared = device.link().shared();
    let request = v1::HaveBlobsRequest { session: Some(shared.session.clone()), blobs: encode_question(blobs) };
    let answer = device.call("which weights it has", shared.options.call_timeout, |mut client| async move {
        client.have_blobs(request).await
    })?;
    flags(&shared, &answer.have, blobs.len())
}

/// Lets the device's server fill places with what it has. Gives which of them it has filled.
pub(super) fn place(device: &RemoteDevice, places: &[Place]) -> Result<Vec<bool>> {
    let shared = device.link().shared();
    let mut placed = Vec::with_capacity(places.len());
    for places in places.chunks(MAX_BLOBS) {
        let request = v1::PlaceBlobsRequest { session: Some(shared.session.clone()), blobs: encode_places(places) };
        let deadline = deadline(&shared, places);
        let answer = device.call("placing weights that it has", deadline, |mut client| async move {
            client.place_blobs(request).await
        })?;
        placed.extend(flags(&shared, &answer.placed, places.len())?);
    }
    Ok(placed)
}

/// Lets the device's server check what is in places, and keep it.
pub(super) fn check(device: &RemoteDevice, places: &[Place]) -> Result<()> {
    let shared = device.link().shared();
    for places in places.chunks(CHECKED_TOGETHER) {
        let request = v1::CheckBlobsRequest { session: Some(shared.session.clone()), blobs: encode_places(places) };
        let deadline = deadline(&shared, places);
        let answer = device.call("checking weights of another server", deadline, |mut client| async move {
            client.check_blobs(request).await
        })?;
        if flags(&shared, &answer.good, places.len())?.contains(&false) {
            return Err(shared.lost("weights that it got from another server were damaged on the way; load again"));
        }
    }
    Ok(())
}

/// Longest wait for an answer for which the server reads these from its disk.
fn deadline(shared: &Shared, places: &[Place]) -> Duration {
    let bytes: u64 = places.iter().map(|p| p.blob.len).sum();
    shared.options.call_timeout + Duration::from_secs(bytes / SLOWEST_DISK)
}

/// An answer about `n` blobs.
fn flags(shared: &Shared, bits: &[u8], n: usize) -> Result<Vec<bool>> {
    bits_to_flags(bits, n).ok_or_else(|| shared.lost("answered about another number of weights than was asked"))
}
