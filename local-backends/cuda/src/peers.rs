//! Copies straight into memory of another context: of another card, or of another device that the same card was divided into.

use crate::card::{find, words};
use crate::events::Mark;
use crate::gpu::{Gpu, is_kept};
use crate::memory::context_of;
use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys::{self, CUresult};
use outboard_core::device::fresh_uid;
use outboard_core::local::COPY_ENDS;
use outboard_core::{Error, Result, Slice, lock};
use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

/// Environment variable: with `0`, copies between cards go through memory of the host, where straight ones arrive wrong.
pub const PEERS: &str = "OUTBOARD_CUDA_PEERS";
/// Pause between two looks at what a card does.
pub(crate) const PAUSE: Duration = Duration::from_millis(1);

/// Which contexts one can copy to.
#[derive(Debug)]
pub(crate) struct Peers {
    /// Tells the context from others, also from those that come at its place in memory when it is gone.
    uid: u64,
    /// The driver's number of the card.
    ordinal: i32,
    /// The card is several devices.
    is_divided: bool,
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
        let cards: Vec<_> = (0..count).filter(|&other| other != ordinal && can_address(ordinal, other)).collect();
        tracing::debug!("CUDA's card {ordinal} can copy straight to cards {cards:?} of {count}");
        let is_divided = find().iter().filter(|found| found.ordinal == ordinal).count() > 1;
        Peers { uid: fresh_uid(), ordinal, is_divided, cards, enabled: Mutex::default() }
    }

    /// Whether there may be another context that can be copied to.
    pub(crate) fn are_there(&self) -> bool {
        self.is_divided || !self.cards.is_empty()
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

/// The context that a slice lies in, if it is another one.
pub(crate) fn other_context<'a>(gpu: &Arc<Gpu>, slice: &'a Slice) -> Option<&'a Arc<Gpu>> {
    context_of(slice).filter(|other| !Arc::ptr_eq(gpu, other))
}

/// Whether `gpu` can copy to a slice of another context. One that has failed is told to whoever writes to it.
pub(crate) fn reaches(gpu: &Arc<Gpu>, dst: &Slice) -> bool {
    other_context(gpu, dst).is_some_and(|other| !other.health.is_over() && gpu.peers.reaches(&other.peers))
}

/// Lets `gpu`, which this thread has entered, address the memory of another context. Where the driver refuses, it takes this copy through memory of the
/// host, and [`reaches`] says no from then on.
pub(crate) fn enable(gpu: &Gpu, other: &Gpu) {
    let (from, to) = (&gpu.peers, &other.peers);
    if from.ordinal == to.ordinal || lock(&from.enabled).contains_key(&to.uid) {
        return;
    }
    // SAFETY: the other context lives as long as what was lent here.
    let enabled = match unsafe { sys::cuCtxEnablePeerAccess(other.context.0, 0) }.result() {
        Ok(()) | Err(DriverError(CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED)) => {
            tracing::info!("{} copies straight to {} ({PEERS}=0 prevents it)", gpu.id, other.id);
            true
        }
        Err(error) => {
            tracing::warn!("{} copies to {} by way of the host: {}", gpu.id, other.id, words(error));
            false
        }
    };
    lock(&from.enabled).insert(to.uid, enabled);
}

/// The error of a copy that the driver refused: the other device's, if its context has failed.
pub(crate) fn refused(gpu: &Gpu, other: &Gpu, error: DriverError) -> Error {
    // A context that keeps an error gives it to every call.
    let of_other = is_kept(error.0).then(|| other.memory().err()).flatten();
    of_other.unwrap_or_else(|| gpu.failed(&format!("it cannot copy to {}", other.id), error))
}

/// Waits for a copy, also when this is cancelled: nobody else may use its destination before it is done. All copies of a stream, and its end, have
/// [`COPY_ENDS`] together from when it was first found `given_up`.
pub(crate) fn wait_for_end(mark: &Mark, cancel: &AtomicBool, given_up: &OnceLock<Instant>) -> Result<()> {
    let since = match mark.wait(cancel) {
        Err(Error::Cancelled) => given_up.get_or_init(Instant::now),
        done => return done,
    };
    while !mark.is_reached()? {
        if since.elapsed() >= COPY_ENDS {
            return Err(Error::Cancelled);
        }
        std::thread::sleep(PAUSE);
    }
    Ok(())
}

/// Memory of another context that one copies to. It is kept until the copy is done. Of a context that hangs that is not known: it is kept until that is
/// freed. One that is lost writes no more.
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
        let hangs = self.by.health.is_over() && !self.by.health.is_lost();
        // Memory of a context that is over is freed with it; two that are over would keep each other.
        if hangs && context_of(&self.slice).is_some_and(|other| !other.health.is_over()) {
            self.by.keep(self.slice.clone());
        }
    }
}
