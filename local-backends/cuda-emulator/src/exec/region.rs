//! Memory that a kernel may touch: an allocation with what is known of its bytes.
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering::Relaxed};

/// Alignment of what is allocated, as of the driver.
const ALIGN: usize = 256;

/// Whose memory it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// Memory of a device.
    Device(usize),
    /// Memory of the host that every device can address.
    Host,
}

/// An allocation. Kernels of several threads, copies and the host touch it side by side, so every access is an atomic one.
#[derive(Debug)]
pub(crate) struct Region {
    /// Where kernels find it.
    pub(crate) base: u64,
    pub(crate) size: u64,
    pub(crate) owner: Owner,
    pub(crate) read_only: bool,
    data: *mut u8,
    layout: Option<Layout>,
    /// A bit for each byte that has been written; none for memory of the host, which writes as it likes.
    written: Option<Box<[AtomicU64]>>,
}

// SAFETY: `data` is reached only through atomics, and lives as long as the region (or, registered by the program, until it unregisters).
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Drop for Region {
    fn drop(&mut self) {
        if let Some(layout) = self.layout {
            // SAFETY: allocated in `allocate` with this layout, and dropped once.
            unsafe { dealloc(self.data, layout) }
        }
    }
}

impl Region {
    fn allocate(size: u64) -> Option<(*mut u8, Layout)> {
        let size = usize::try_from(size).ok()?.checked_next_multiple_of(ALIGN)?.max(ALIGN);
        let layout = Layout::from_size_align(size, ALIGN).ok()?;
        // SAFETY: the size is not zero.
        let data = unsafe { alloc_zeroed(layout) };
        (!data.is_null()).then_some((data, layout))
    }

    /// Memory of a device at an address of its own; `None` if this process has no more.
    pub(crate) fn device(device: usize, base: u64, size: u64) -> Option<Self> {
        let (data, layout) = Self::allocate(size)?;
        let written = (0..size.div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        let owner = Owner::Device(device);
        Some(Self { base, size, owner, read_only: false, data, layout: Some(layout), written: Some(written) })
    }

    /// Memory of the host, allocated here, at its own address.
    pub(crate) fn host(size: u64) -> Option<Self> {
        let (data, layout) = Self::allocate(size)?;
        Some(Self {
            base: data as u64,
            size,
            owner: Owner::Host,
            read_only: false,
            data,
            layout: Some(layout),
            written: None,
        })
    }

    /// Memory of the host that the program has and vouches for.
    pub(crate) fn registered(data: *mut u8, size: u64) -> Self {
        Self { base: data as u64, size, owner: Owner::Host, read_only: false, data, layout: None, written: None }
    }

    /// Where the bytes are in this process.
    pub(crate) fn data(&self) -> *mut u8 {
        self.data
    }

    /// Whether so many bytes from an address are inside.
    pub(crate) fn holds(&self, address: u64, bytes: u64) -> bool {
        address >= self.base && address - self.base <= self.size && self.size - (address - self.base) >= bytes
    }

    fn at(&self, address: u64, bytes: u64) -> *mut u8 {
        debug_assert!(self.holds(address, bytes) && address % bytes == 0);
        // SAFETY: callers have asked `holds`.
        unsafe { self.data.add((address - self.base) as usize) }
    }

    /// So many bytes (1, 2, 4, 8 or 16, aligned) from an address that `holds` allows.
    #[inline]
    pub(crate) fn load(&self, address: u64, bytes: u64) -> u128 {
        let at = self.at(address, bytes);
        // SAFETY: inside of the allocation, aligned, and everyone else uses atomics, too.
        unsafe {
            match bytes {
                1 => AtomicU8::from_ptr(at).load(Relaxed).into(),
                2 => AtomicU16::from_ptr(at.cast()).load(Relaxed).into(),
                4 => AtomicU32::from_ptr(at.cast()).load(Relaxed).into(),
                8 => AtomicU64::from_ptr(at.cast()).load(Relaxed).into(),
                _ => {
                    let low = AtomicU64::from_ptr(at.cast()).load(Relaxed);
                    let high = AtomicU64::from_ptr(at.add(8).cast()).load(Relaxed);
                    u128::from(low) | u128::from(high) << 64
                }
            }
        }
    }

    /// Like `load`, the other way.
    #[inline]
    pub(crate) fn store(&self, address: u64, bytes: u64, value: u128) {
        let at = self.at(address, bytes);
        // SAFETY: as in `load`.
        unsafe {
            match bytes {
                1 => AtomicU8::from_ptr(at).store(value as u8, Relaxed),
                2 => AtomicU16::from_ptr(at.cast()).store(value as u16, Relaxed),
                4 => AtomicU32::from_ptr(at.cast()).store(value as u32, Relaxed),
                8 => AtomicU64::from_ptr(at.cast()).store(value as u64, Relaxed),
                _ => {
                    AtomicU64::from_ptr(at.cast()).store(value as u64, Relaxed);
                    AtomicU64::from_ptr(at.add(8).cast()).store((value >> 64) as u64, Relaxed);
                }
            }
        }
        self.mark(address, bytes);
    }

    /// Changes 2, 4 or 8 bytes at once, and gives what was there.
    pub(crate) fn update(&self, address: u64, bytes: u64, change: impl Fn(u64) -> u64) -> u64 {
        let at = self.at(address, bytes);
        // SAFETY: as in `load`.
        let old = unsafe {
            match bytes {
                2 => {
                    let change = |x: u16| Some(change(x.into()) as u16);
                    AtomicU16::from_ptr(at.cast())
                        .fetch_update(Relaxed, Relaxed, change)
                        .map(u64::from)
                        .unwrap_or_else(u64::from)
                }
                4 => {
                    let change = |x: u32| Some(change(x.into()) as u32);
                    AtomicU32::from_ptr(at.cast())
                        .fetch_update(Relaxed, Relaxed, change)
                        .map(u64::from)
                        .unwrap_or_else(u64::from)
                }
                _ => AtomicU64::from_ptr(at.cast())
                    .fetch_update(Relaxed, Relaxed, |x| Some(change(x)))
                    .unwrap_or_else(|x| x),
            }
        };
        self.mark(address, bytes);
        old
    }

    /// Whether the bytes (at most 16, aligned) have been written.
    #[inline]
    pub(crate) fn is_written(&self, address: u64, bytes: u64) -> bool {
        let Some(written) = &self.written else { return true };
        let at = address - self.base;
        let mask = ((1 << bytes) - 1) << (at % 64);
        written[(at / 64) as usize].load(Relaxed) & mask == mask
    }

    #[inline]
    fn mark(&self, address: u64, bytes: u64) {
        let Some(written) = &self.written else { return };
        let at = address - self.base;
        let mask = ((1 << bytes) - 1) << (at % 64);
        let word = &written[(at / 64) as usize];
        if word.load(Relaxed) & mask != mask {
            word.fetch_or(mask, Relaxed);
        }
    }

    /// Says of a range, which `holds` allows, that it has been written, or that it has not.
    pub(crate) fn set_written(&self, address: u64, bytes: u64, is: bool) {
        let Some(written) = &self.written else { return };
        let (mut at, end) = (address - self.base, address - self.base + bytes);
        while at < end {
            let next = (at / 64 * 64 + 64).min(end);
            let bits = next - at;
            let mask = if bits == 64 { u64::MAX } else { ((1 << bits) - 1) << (at % 64) };
            let word = &written[(at / 64) as usize];
            if is {
                word.fetch_or(mask, Relaxed);
            } else {
                word.fetch_and(!mask, Relaxed);
            }
            at = next;
        }
    }

    /// Takes over from another region, byte by byte, what has been written there.
    pub(crate) fn copy_written(&self, to: u64, other: &Self, from: u64, bytes: u64) {
        if other.written.is_none() {
            return self.set_written(to, bytes, true);
        }
        for i in 0..bytes {
            self.set_written(to + i, 1, other.is_written(from + i, 1));
        }
    }
}

/// What a kernel may touch: regions in the order of their addresses, and where it may not although there is one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Memory {
    pub(crate) regions: std::sync::Arc<Vec<std::sync::Arc<Region>>>,
    /// Devices whose memory the kernel's device may address.
    pub(crate) devices: Vec<bool>,
}

impl Memory {
    /// The region with this address, by its place in the list.
    pub(crate) fn find(&self, address: u64) -> Option<usize> {
        let at = self.regions.partition_point(|r| r.base <= address).checked_sub(1)?;
        self.regions[at].holds(address, 1).then_some(at)
    }

    pub(crate) fn allows(&self, region: &Region) -> bool {
        match region.owner {
            Owner::Device(device) => self.devices.get(device).copied().unwrap_or(false),
            Owner::Host => true,
        }
    }
}
