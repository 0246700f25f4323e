//! Copies straight into memory of another context: of another card, or of another device that the same card was divided into.

use crate::card::words;
use crate::events::Mark;
use crate::gpu::{Gpu, is_kept};
use crate::memory::context_of;
use crate::stream::LAST_WAIT;
use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys::{self, CUresult};
use outboard_core::device::fresh_uid;
use outboard_core::{Error, Result, Slice, lock};
use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Environment variable that says whether cards write to each other's memory: with `0` they do not, as where what joins them is broken.
pub const PEERS: &str = "OUTBOARD_CUDA_PEERS";
/// Pause between two looks at such a copy.
const PAUSE: Duration = Duration::from_millis(1);

/// Which contexts one can copy to.
#[derive(Debug)]
pub(crate) struct Peers {
    /// Tells the context from others, also from those that come at its place in memory when it is gone.
    uid: u64,
    /// The driver's number of the card.
    ordinal: i32,
    /// Other cards whose memory this one can address.
    cards: Vec<i32>,
    /// Contexts that were copied to, by their numbers, and whether the driver lets this one address their memory.
    enabled: Mutex<HashMap<u64, bool>>,
}

impl Peers {
    /// Asks the driver.
    pub(crate) fn look(ordinal: i32) -> Peers {
        let unwanted = std::env::var(PEERS).is_ok_and(|value| value == "0");
        let count = if unwanted { 0 } else { result::device::get_count().unwrap_or(0) };
        let cards = (0..count).filter(|&other| other != ordinal && can_address(ordinal, other)).collect();
        Peers { uid: fresh_uid(), ordinal, cards, enabled: Mutex::default() }
    }

    /// Whether memory of another context can be copied to, as far as it is known without the driver.
    fn reaches(&self, other: &Peers) -> bool {
        let refused = || lock(&self.enabled).get(&other.uid) == Some(&false);
        self.ordinal == other.ordinal || self.cards.contains(&other.ordinal) && !refused()
    }
}

fn can_address(ordinal: i32, other: i32) -> bool {
    let ask = || {
        let (card, other) = (result::device::get(ordinal)?, result::device::get(other)?);
        let mut can = 0;
        // SAFETY: a place for a number, and two devices of the driver's.
        unsafe { sys::cuDeviceCanAccessPeer(&mut can, card, other) }.result()?;
        Ok(can != 0)
    };
    let unknown = |e| tracing::debug!("CUDA's card {ordinal} copies to {other} by way of the host: {}", words(e));
    ask().map_err(unknown).unwrap_or(false)
}

/// The other context that a slice lies in, if `gpu` can copy to it.
pub(crate) fn reached<'a>(gpu: &Arc<Gpu>, dst: &'a Slice) -> Option<&'a Arc<Gpu>> {
    let other = context_of(dst).filter(|other| !Arc::ptr_eq(gpu, other))?;
    // One that has failed is told to whoever writes to it.
    (!other.health.is_over() && gpu.peers.reaches(&other.peers)).then_some(other)
}

/// Lets `gpu`, which this thread has entered, address the memory of another context. Copies that may not do so go through memory of the host,
/// by the driver: this one does, and later ones are not begun.
pub(crate) fn enable(gpu: &Gpu, other: &Gpu) {
    let (from, to) = (&gpu.peers, &other.peers);
    if from.ordinal == to.ordinal || lock(&from.enabled).contains_key(&to.uid) {
        return;
    }
    // SAFETY: the other context lives as long as what was lent here.
    let enabled = match unsafe { sys::cuCtxEnablePeerAccess(other.context.0, 0) }.result() {
        Ok(()) | Err(DriverError(CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED)) => true,
        Err(error) => {
            tracing::warn!("{} cannot address memory of {}: {}", gpu.id, other.id, words(error));
            false
        }
    };
    lock(&from.enabled).insert(to.uid, enabled);
}

/// Whose error a copy is that the driver does not take, where the stream that it was for is sound.
pub(crate) fn refused(gpu: &Gpu, other: &Gpu, error: DriverError) -> Error {
    // A context that keeps an error gives it to every call.
    let of_other = is_kept(error.0).then(|| other.memory().err()).flatten();
    of_other.unwrap_or_else(|| gpu.failed(&format!("it cannot copy to {}", other.id), error))
}

/// Waits for a copy, also when this is cancelled: nobody else may use its destination before it is done.
pub(crate) fn wait_for_end(mark: &Mark, cancel: &AtomicBool) -> Result<()> {
    let cancelled = match mark.wait(cancel) {
        Err(Error::Cancelled) => Instant::now(),
        done => return done,
    };
    while cancelled.elapsed() < LAST_WAIT {
        if mark.is_reached()? {
            return Ok(());
        }
        std::thread::sleep(PAUSE);
    }
    Err(Error::Cancelled)
}

/// Memory of another context that one copies to. It is kept until the copy is done; that is not known of a context that has failed or hangs before
/// that is freed.
pub(crate) struct Destination {
    by: Arc<Gpu>,
    slice: Slice,
}

impl Destination {
    pub(crate) fn new(by: &Arc<Gpu>, slice: &Slice) -> Destination {
        Destination { by: by.clone(), slice: slice.clone() }
    }
}

impl Drop for Destination {
    fn drop(&mut self) {
        // Memory of a context that is over is freed with that anyway; two of them do not wait for each other.
        if self.by.health.is_over() && context_of(&self.slice).is_some_and(|other| !other.health.is_over()) {
            self.by.keep(self.slice.clone());
        }
    }
}
