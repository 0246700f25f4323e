//! Memory that a process and its helper have in common, for the bytes of tensors: a socket would wake both sides several times for every piece.
//!
//! Each direction is a lane of slots, a piece each. Whoever writes takes a free slot, copies bytes into it and says its number; whoever reads has the
//! bytes where they are, and the slot is free again when they are dropped. Without a free slot, and where there is no such memory or the helper could not
//! open it, bytes go through the socket: nobody waits for a slot.
#![allow(unsafe_code)]

use crate::message::PIECE;
use bytes::Bytes;
use memmap2::MmapRaw;
use rustix::io::retry_on_intr;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};
use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Slots of a lane.
const SLOTS: usize = 8;
/// Before the first slot: the states of all slots, a page of any system.
const HEAD: usize = 64 << 10;
const LEN: usize = HEAD + 2 * SLOTS * PIECE;

/// The states of a slot.
const FREE: u32 = 0;
const FILLING: u32 = 1;
const FULL: u32 = 2;
const TAKEN: u32 = 3;

/// Which way a lane leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    ToHelper,
    FromHelper,
}

/// Memory of two processes. What the other one does to it may change bytes, and nothing else: it cannot become shorter.
#[derive(Debug)]
struct Shared(MmapRaw);

impl Shared {
    /// New memory of zeros, where the system has such.
    #[cfg(target_os = "linux")]
    fn create() -> Option<(Shared, OwnedFd)> {
        use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, memfd_create};
        let named = |more| memfd_create("outboard-helper", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | more);
        // Systems before 6.3 do not know that it is nothing to execute.
        let file = named(MemfdFlags::NOEXEC_SEAL).or_else(|_| named(MemfdFlags::empty()));
        let made = file.and_then(|file| {
            // All of it now: a page that cannot be had later would end whoever writes to it.
            fallocate(&file, FallocateFlags::empty(), 0, LEN as u64)?;
            // As would one that the other side takes away.
            fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
            Ok(file)
        });
        let opened = made.map_err(io::Error::from).and_then(|file| Ok((Shared::open(&file)?, file)));
        opened.inspect_err(|e| tracing::debug!("no memory to share with helpers: {e}")).ok()
    }

    #[cfg(not(target_os = "linux"))]
    fn create() -> Option<(Shared, OwnedFd)> {
        None
    }

    /// Memory that the other side has made.
    fn open(file: &OwnedFd) -> io::Result<Shared> {
        let map = MmapRaw::map_raw(file)?;
        if map.len() == LEN {
            Ok(Shared(map))
        } else {
            Err(io::Error::new(ErrorKind::InvalidData, "shared memory of another size"))
        }
    }

    fn state(&self, slot: usize) -> &AtomicU32 {
        // SAFETY: within the head, aligned as a page is, and never anything but an atomic, on both sides.
        unsafe { &*self.0.as_ptr().cast::<AtomicU32>().add(slot) }
    }

    /// The first byte of a slot.
    fn slot(&self, slot: usize) -> *mut u8 {
        // SAFETY: there are two lanes of slots.
        unsafe { self.0.as_mut_ptr().add(HEAD + slot * PIECE) }
    }
}

/// The slots of one direction, if there is memory for them.
#[derive(Clone, Debug)]
pub(crate) struct Lane(Option<(Arc<Shared>, Way)>);

impl Lane {
    /// Without slots.
    pub(crate) const NONE: Lane = Lane(None);

    /// The numbers of its slots in the memory.
    fn slots(way: Way) -> std::ops::Range<usize> {
        match way {
            Way::ToHelper => 0..SLOTS,
            Way::FromHelper => SLOTS..2 * SLOTS,
        }
    }

    /// Copies bytes into a free slot, if there is one, and gives its number.
    pub(crate) fn put(&self, bytes: &[u8]) -> Option<u32> {
        let (memory, way) = self.0.as_ref()?;
        if bytes.len() > PIECE {
            return None;
        }
        let take = |slot: &usize| {
            memory.state(*slot).compare_exchange(FREE, FILLING, Ordering::Acquire, Ordering::Relaxed).is_ok()
        };
        let slot = Lane::slots(*way).find(take)?;
        // SAFETY: a slot has room for a piece, and is this side's until its number is said.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), memory.slot(slot), bytes.len()) };
        memory.state(slot).store(FULL, Ordering::Release);
        u32::try_from(slot).ok()
    }

    /// The first bytes of a slot whose number the other side has said; it is free when they are dropped. `None` if it is not there, or not full.
    pub(crate) fn take(&self, slot: u32, len: usize) -> Option<Bytes> {
        let (memory, way) = self.0.as_ref()?;
        let slot = usize::try_from(slot).ok().filter(|slot| Lane::slots(*way).contains(slot))?;
        if len > PIECE {
            return None;
        }
        memory.state(slot).compare_exchange(FULL, TAKEN, Ordering::Acquire, Ordering::Relaxed).ok()?;
        let data = NonNull::new(memory.slot(slot))?;
        Some(Bytes::from_owner(Taken { memory: memory.clone(), slot, data, len }))
    }
}

/// The bytes of a slot.
struct Taken {
    memory: Arc<Shared>,
    slot: usize,
    data: NonNull<u8>,
    len: usize,
}

// SAFETY: memory that is only read, of a mapping that it keeps.
unsafe impl Send for Taken {}

impl AsRef<[u8]> for Taken {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: within the slot. The other side leaves it alone until it is free. A helper that does not, because a driver has written to wrong places, changes
        // bytes that are only copied: this process keeps none where they are.
        unsafe { std::slice::from_raw_parts(self.data.as_ptr(), self.len) }
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.memory.state(self.slot).store(FREE, Ordering::Release);
    }
}

/// The lanes of a process, or of its helper.
#[derive(Clone, Debug)]
pub(crate) struct Lanes {
    pub(crate) out: Lane,
    pub(crate) back: Lane,
}

impl Lanes {
    const NONE: Lanes = Lanes { out: Lane::NONE, back: Lane::NONE };

    /// Makes memory and gives it to a helper as the first thing that it hears, or says that there is none. It is used when the helper has said that it has it.
    pub(crate) fn offer(socket: &UnixStream) -> io::Result<Lanes> {
        if let Some((memory, file)) = Shared::create()
            && send(socket, &file).is_ok()
        {
            return Ok(Lanes::of(memory, Way::ToHelper, Way::FromHelper));
        }
        rustix::io::write(socket, &[0])?;
        Ok(Lanes::NONE)
    }

    /// What [`Lanes::offer`] has given, on the helper's side.
    pub(crate) fn accept(socket: &UnixStream) -> io::Result<Lanes> {
        let mut byte = [0];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut with = RecvAncillaryBuffer::new(&mut space);
        let got = retry_on_intr(|| {
            rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut with, RecvFlags::empty())
        })?;
        if got.bytes == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        let file = with.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut files) => files.next(),
            _ => None,
        });
        let memory = file.and_then(|file| Shared::open(&file).ok());
        Ok(memory.map_or(Lanes::NONE, |memory| Lanes::of(memory, Way::FromHelper, Way::ToHelper)))
    }

    fn of(memory: Shared, out: Way, back: Way) -> Lanes {
        let memory = Arc::new(memory);
        Lanes { out: Lane(Some((memory.clone(), out))), back: Lane(Some((memory, back))) }
    }

    /// Whether there is memory.
    pub(crate) fn is_there(&self) -> bool {
        self.out.0.is_some()
    }
}

/// Sends a file to the other process, with a byte.
fn send(socket: &UnixStream, file: &OwnedFd) -> io::Result<()> {
    let files = [file.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut with = SendAncillaryBuffer::new(&mut space);
    with.push(SendAncillaryMessage::ScmRights(&files));
    retry_on_intr(|| rustix::net::sendmsg(socket, &[IoSlice::new(&[1])], &mut with, SendFlags::empty()))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (Lanes, Lanes) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let offered = Lanes::offer(&ours).unwrap();
        (offered, Lanes::accept(&theirs).unwrap())
    }

    #[test]
    fn bytes_cross_in_slots_that_are_free_when_they_are_dropped() {
        let (ours, theirs) = pair();
        if ours.out.0.is_none() {
            println!("skipped: this system has no memory that two processes share by a socket");
            return;
        }
        for (from, to) in [(&ours.out, &theirs.back), (&theirs.out, &ours.back)] {
            let data = |i: usize| vec![i as u8 + 1; PIECE - i];
            let slots: Vec<_> = (0..SLOTS).map(|i| from.put(&data(i)).unwrap()).collect();
            assert_eq!(from.put(b"x"), None, "all are full");
            let taken: Vec<_> = slots.iter().enumerate().map(|(i, &slot)| to.take(slot, PIECE - i).unwrap()).collect();
            assert!(taken.iter().enumerate().all(|(i, bytes)| bytes == &data(i)));
            assert_eq!(from.put(b"x"), None, "all are in use");
            drop(taken);
            let slot = from.put(b"again").unwrap();
            let again = to.take(slot, 5).unwrap();
            assert_eq!(to.take(slot, 5), None, "a slot is taken once");
            assert_eq!(&again[..], b"again");
        }
    }

    #[test]
    fn slots_that_are_not_there_and_pieces_that_are_too_long_are_refused() {
        let (ours, theirs) = pair();
        assert_eq!(ours.out.put(&vec![0; PIECE + 1]), None);
        let Some(slot) = ours.out.put(b"abc") else { return };
        assert_eq!(theirs.back.take(slot, PIECE + 1), None);
        assert_eq!(theirs.out.take(slot, 3), None, "of the other direction");
        let all = [slot + 1, SLOTS as u32, 2 * SLOTS as u32, u32::MAX];
        assert!(all.iter().all(|&slot| theirs.back.take(slot, 3).is_none()));
        assert!(theirs.back.take(slot, 3).is_some());
        assert!(Lane::NONE.put(b"abc").is_none() && Lane::NONE.take(0, 3).is_none());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn nobody_can_make_the_memory_shorter() {
        let (_memory, file) = Shared::create().unwrap();
        assert!(rustix::fs::ftruncate(&file, 0).is_err());
    }

    #[test]
    fn a_side_that_goes_away_at_once_is_an_error() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        drop(ours);
        assert!(Lanes::accept(&theirs).is_err());
    }

    #[test]
    fn a_helper_without_the_file_has_no_memory() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        // As it comes where no file can be opened any more.
        rustix::io::write(&ours, &[1]).unwrap();
        assert!(!Lanes::accept(&theirs).unwrap().is_there());
    }
}
