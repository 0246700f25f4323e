//! Copies and fills, between memory of devices and of the host.
use super::{Answer, Code, driver};
use crate::exec::region::{Owner, Region};
use std::sync::Arc;

/// One end of a copy.
#[derive(Clone, Debug)]
pub(super) enum End {
    /// Memory of a device.
    Device(u64),
    /// Memory of the program, which vouches for it until the copy is done.
    Host(u64),
    /// Bytes that were taken when the copy was asked for.
    Staged(Arc<Vec<u8>>),
}

/// Values put behind one another: each of so many bytes (1, 2, 4).
#[derive(Clone, Debug)]
pub(super) struct Fill {
    pub(super) to: u64,
    pub(super) value: u32,
    pub(super) width: u64,
    pub(super) count: u64,
}

fn region(address: u64, bytes: u64) -> Answer<Arc<Region>> {
    driver().memory.find(address, bytes).ok_or(Code::ILLEGAL_ADDRESS)
}

/// Whether memory of a device has these bytes: an error of the call if not.
pub(super) fn check(address: u64, bytes: u64) -> Answer<Arc<Region>> {
    driver().memory.find(address, bytes).ok_or(Code::INVALID_VALUE)
}

/// Whether the bytes are memory of the host that the driver knows, so that copies of them may come later.
pub(super) fn is_pinned(address: u64, bytes: u64) -> bool {
    driver().memory.find(address, bytes).is_some_and(|r| r.owner == Owner::Host)
}

pub(super) fn fill(fill: &Fill) -> Answer {
    let bytes = fill.width * fill.count;
    let region = region(fill.to, bytes)?;
    let pattern = fill.value.to_le_bytes();
    let at = (fill.to - region.base) as usize;
    for i in 0..bytes as usize {
        // SAFETY: `find` has found all bytes inside of the region, which is held here.
        unsafe { region.data().add(at + i).write(pattern[i % fill.width as usize]) };
    }
    region.set_written(fill.to, bytes, true);
    Ok(())
}

/// Copies; the region of each end, if it has one, is held until it is done.
pub(super) fn copy(to: &End, from: &End, bytes: u64) -> Answer {
    let held = |end: &End| -> Answer<(Option<Arc<Region>>, *mut u8)> {
        match end {
            End::Device(address) => {
                let region = region(*address, bytes)?;
                // SAFETY: `find` has found all bytes inside of the region.
                let data = unsafe { region.data().add((address - region.base) as usize) };
                Ok((Some(region), data))
            }
            End::Host(address) => Ok((None, *address as *mut u8)),
            End::Staged(bytes) => Ok((None, bytes.as_ptr().cast_mut())),
        }
    };
    let ((to_region, target), (from_region, source)) = (held(to)?, held(from)?);
    // SAFETY: both ends have so many bytes: of regions that was looked up, of the host the program vouches for it. Staged bytes are only
    // read, as nobody copies to them.
    unsafe { std::ptr::copy(source, target, bytes as usize) };
    if let (End::Device(to), Some(region)) = (to, to_region) {
        match (from, from_region) {
            (End::Device(from), Some(other)) => region.copy_written(*to, &other, *from, bytes),
            _ => region.set_written(*to, bytes, true),
        }
    }
    Ok(())
}
