//! What a server is asked about the contents that it keeps.

use crate::connection::Connection;
use crate::device::RemoteDevice;
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
    let connection = device.session().connection();
    let request = v1::HaveBlobsRequest { session: Some(connection.session.clone()), blobs: encode_question(blobs) };
    let answer = device.call("which weights it has", connection.options.call_timeout, |mut client| async move {
        client.have_blobs(request).await
    })?;
    flags(&connection, &answer.have, blobs.len())
}

/// Lets the device's server fill places with what it has. Gives which of them it has filled.
pub(super) fn place(device: &RemoteDevice, places: &[Place]) -> Result<Vec<bool>> {
    let connection = device.session().connection();
    let mut placed = Vec::with_capacity(places.len());
    for places in places.chunks(MAX_BLOBS) {
        let request = v1::PlaceBlobsRequest { session: Some(connection.session.clone()), blobs: encode_places(places) };
        let deadline = deadline(&connection, places);
        let answer = device.call("placing weights that it has", deadline, |mut client| async move {
            client.place_blobs(request).await
        })?;
        placed.extend(flags(&connection, &answer.placed, places.len())?);
    }
    Ok(placed)
}

/// Lets the device's server check what is in places, and keep it.
pub(super) fn check(device: &RemoteDevice, places: &[Place]) -> Result<()> {
    let connection = device.session().connection();
    for places in places.chunks(CHECKED_TOGETHER) {
        let request = v1::CheckBlobsRequest { session: Some(connection.session.clone()), blobs: encode_places(places) };
        let deadline = deadline(&connection, places);
        let answer = device.call("checking weights of another server", deadline, |mut client| async move {
            client.check_blobs(request).await
        })?;
        if flags(&connection, &answer.good, places.len())?.contains(&false) {
            return Err(connection.lost("weights that it got from another server were damaged on the way; load again"));
        }
    }
    Ok(())
}

/// Longest wait for an answer for which the server reads these from its disk.
fn deadline(connection: &Connection, places: &[Place]) -> Duration {
    let bytes: u64 = places.iter().map(|p| p.blob.len).sum();
    connection.options.call_timeout + Duration::from_secs(bytes / SLOWEST_DISK)
}

/// An answer about `n` blobs.
fn flags(connection: &Connection, bits: &[u8], n: usize) -> Result<Vec<bool>> {
    bits_to_flags(bits, n).ok_or_else(|| connection.lost("answered about another number of weights than was asked"))
}
