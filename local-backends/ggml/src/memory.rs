//! Memory of a ggml device: buffers, which are written and read as bytes.

use crate::devices::GgmlDevice;
use crate::functions::{Functions, InitParams, Object};
use crate::library::Library;
use crate::lock;
use crate::log;
use crate::tensors::kind;
use crate::transfer::{SHORTEST, Transfer};
use bytes::Bytes;
use outboard_core::local::{Funds, Payment};
use outboard_core::{Buffer, DType, DeviceKind, Error, Result, Slice, WeightTail};
use std::any::Any;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// `GGML_TYPE_I8`.
const I8: i32 = 24;
/// Bytes of a piece when memory is filled.
const PIECE: u64 = 1 << 20;

/// What is known of a device's memory, and what orders calls for it.
pub(crate) struct Heap {
    pub(crate) device: GgmlDevice,
    /// The type of its buffers.
    kind: Object,
    /// Bytes; a power of two.
    pub(crate) alignment: usize,
    /// Bytes of the largest allocation.
    pub(crate) max_alloc: u64,
    /// What it wants behind weights.
    pub(crate) weight_tail: WeightTail,
    /// Whether the host can address it.
    pub(crate) is_host: bool,
    /// Threads of a device that runs on processors.
    pub(crate) threads: usize,
    /// `None` for the host's memory, which any thread may touch at any time.
    calls: Option<Mutex<()>>,
    /// For long writes and reads, once there was one; none where there can be none.
    transfer: OnceLock<Option<Mutex<Transfer>>>,
}

// SAFETY: handles of the library, which may be used from any thread; calls for a device that need an order take the lock.
unsafe impl Send for Heap {}
// SAFETY: as above.
unsafe impl Sync for Heap {}

impl Heap {
    /// What is known of a device, which runs on so many threads if it runs on processors.
    pub(crate) fn new(device: GgmlDevice, threads: usize) -> Heap {
        let f = &device.library().functions;
        // SAFETY: a device of this library, and the buffer type that it gives.
        let (kind, alignment, max, is_host) = unsafe {
            let kind = (f.ggml_backend_dev_buffer_type)(device.handle());
            let alignment = (f.ggml_backend_buft_get_alignment)(kind);
            (kind, alignment, (f.ggml_backend_buft_get_max_size)(kind), (f.ggml_backend_buft_is_host)(kind))
        };
        let alignment = alignment.max(1).next_power_of_two();
        // Room for rounding up.
        let max_alloc = (max as u64).min(1 << 62) & !(alignment as u64 - 1);
        let calls = if is_host && device.kind == DeviceKind::Cpu { None } else { Some(Mutex::default()) };
        let weight_tail = weight_tail(f, kind);
        Heap { device, kind, alignment, max_alloc, weight_tail, is_host, threads, calls, transfer: OnceLock::new() }
    }

    pub(crate) fn library(&self) -> &Arc<Library> {
        self.device.library()
    }

    /// The order of calls for this device, if it needs one: one call into the library at a time. What pieces of a graph that are under way use is kept by whoever
    /// has given them, until they have ended.
    pub(crate) fn lock(&self) -> Option<MutexGuard<'_, ()>> {
        self.calls.as_ref().map(lock)
    }

    /// What moves so many bytes through pinned memory, if that is of use.
    fn transfer(&self, bytes: usize) -> Option<MutexGuard<'_, Transfer>> {
        if self.is_host || bytes < SHORTEST || !self.device.has_pinned_memory() {
            return None;
        }
        self.transfer.get_or_init(|| Transfer::open(self).map(Mutex::new)).as_ref().map(lock)
    }

    /// Bytes that a tensor takes in memory of this device, padding included.
    pub(crate) fn bytes_of(&self, tensor: Object) -> usize {
        // SAFETY: the buffer type of this device, and a tensor of this library that lives.
        unsafe { (self.library().functions.ggml_backend_buft_get_alloc_size)(self.kind, tensor) }
    }
}

impl Drop for Heap {
    fn drop(&mut self) {
        if let Some(transfer) = self.transfer.take().flatten() {
            let transfer = transfer.into_inner().unwrap_or_else(PoisonError::into_inner);
            transfer.close(&self.library().functions);
        }
    }
}

/// What a device with this type of buffers wants behind weights: the most that it adds to a matrix of blocks. CUDA pads the rows of a tensor to
/// 512 elements behind the last one, so that it adds the most to rows of one block: 15 blocks of Q8_0. Nothing, if it adds more than
/// [`WeightTail::MOST`]: then it does not compute such products.
fn weight_tail(f: &Functions, buffers: Object) -> WeightTail {
    let blocks: Vec<DType> = DType::ALL.into_iter().filter(|dtype| dtype.is_quantized()).collect();
    // SAFETY: the context has room for a tensor of each type, and frees them; the buffer type is one of this library's.
    let most = unsafe {
        let size = (blocks.len() + 1) * (f.ggml_tensor_overhead)();
        let context = (f.ggml_init)(InitParams { size, buffer: std::ptr::null_mut(), no_alloc: true });
        if context.is_null() {
            return WeightTail::NONE;
        }
        let added = |dtype: &DType| {
            let tensor = (f.ggml_new_tensor_4d)(context, kind(*dtype)?, dtype.block_len() as i64, 1, 1, 1);
            (f.ggml_backend_buft_get_alloc_size)(buffers, tensor).checked_sub(dtype.block_bytes())
        };
        let most = blocks.iter().filter_map(added).max().unwrap_or(0);
        (f.ggml_free)(context);
        most as u64
    };
    if most > WeightTail::MOST { WeightTail::NONE } else { WeightTail(most) }
}

/// Memory of a ggml device.
pub(crate) struct GgmlBuffer {
    heap: Arc<Heap>,
    /// Null if it is empty, as the other two are then.
    buffer: Object,
    /// A tensor of bytes that covers it, and the context that it is in.
    bytes: Object,
    context: Object,
    size: u64,
    device: u64,
    _payment: Payment,
}

// SAFETY: handles of the library that belong to this buffer alone; calls for them are ordered by the heap's lock, and what is in the memory is
// plain bytes.
unsafe impl Send for GgmlBuffer {}
// SAFETY: as above.
unsafe impl Sync for GgmlBuffer {}

impl fmt::Debug for GgmlBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GgmlBuffer").field("size", &self.size).finish_non_exhaustive()
    }
}

impl GgmlBuffer {
    /// `size` bytes of zeros, paid for by `funds`. Errors: [`Error::OutOfMemory`].
    pub(crate) fn new(heap: &Arc<Heap>, funds: &Funds, size: u64) -> Result<GgmlBuffer> {
        let payment = funds.pay(size)?;
        let null = std::ptr::null_mut();
        let mut new = GgmlBuffer {
            heap: heap.clone(),
            buffer: null,
            bytes: null,
            context: null,
            size,
            device: funds.device(),
            _payment: payment,
        };
        if size == 0 {
            return Ok(new);
        }
        let free = || funds.memory().free;
        let out_of_memory = || Error::OutOfMemory { device: funds.info().id.clone(), needed: size, free: free() };
        let rounded = usize::try_from(new.room()).map_err(|_| out_of_memory())?;
        let (_order, f) = (heap.lock(), &heap.library().functions);
        // SAFETY: the device's buffer type; what it cannot give is null.
        new.buffer = unsafe { (f.ggml_backend_buft_alloc_buffer)(heap.kind, rounded) };
        if new.buffer.is_null() {
            tracing::debug!("{}: {size} bytes could not be had{}", funds.info().id, log::last_words());
            return Err(out_of_memory());
        }
        let params = InitParams { size: 0, buffer: null, no_alloc: true };
        // SAFETY: the context has room for the one tensor; the tensor is as long as the buffer and lies at its beginning.
        unsafe {
            (f.ggml_backend_buffer_clear)(new.buffer, 0);
            new.context = (f.ggml_init)(InitParams { size: 2 * (f.ggml_tensor_overhead)(), ..params });
            if new.context.is_null() {
                return Err(out_of_memory());
            }
            new.bytes = (f.ggml_new_tensor_4d)(new.context, I8, rounded as i64, 1, 1, 1);
            if (f.ggml_backend_tensor_alloc)(new.buffer, new.bytes, (f.ggml_backend_buffer_get_base)(new.buffer)) != 0 {
                return Err(out_of_memory());
            }
        }
        Ok(new)
    }

    /// The library's handle; null if it is empty.
    pub(crate) fn handle(&self) -> Object {
        self.buffer
    }

    /// Bytes that it has, with those that its size was rounded up by.
    pub(crate) fn room(&self) -> u64 {
        self.size.next_multiple_of(self.heap.alignment as u64)
    }

    fn inside(&self, offset: u64, len: usize) -> bool {
        offset.checked_add(len as u64).is_some_and(|end| end <= self.size) && !self.bytes.is_null()
    }

    /// Writes bytes at an offset; what is outside is a misuse.
    pub(crate) fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        if data.is_empty() {
            return Ok(());
        }
        if !self.inside(offset, data.len()) {
            return Err(Error::Misuse(format!("{} bytes at {offset} of a buffer of {}", data.len(), self.size)));
        }
        if let Some(mut transfer) = self.heap.transfer(data.len()) {
            // SAFETY: the tensor covers the buffer, and the bytes are inside it.
            unsafe { transfer.write(&self.heap, self.bytes, offset as usize, data) };
            return Ok(());
        }
        let _order = self.heap.lock();
        let set = self.heap.library().functions.ggml_backend_tensor_set;
        // SAFETY: the tensor covers the buffer, and the bytes are inside it.
        unsafe { set(self.bytes, data.as_ptr().cast(), offset as usize, data.len()) };
        Ok(())
    }

    /// Reads bytes from an offset; what is outside is a misuse.
    pub(crate) fn read(&self, offset: u64, len: usize) -> Result<Bytes> {
        let mut out = Vec::new();
        out.try_reserve_exact(len).map_err(|_| Error::OutOfMemory {
            device: "host".into(),
            needed: len as u64,
            free: 0,
        })?;
        out.resize(len, 0u8);
        if len == 0 {
            return Ok(out.into());
        }
        if !self.inside(offset, len) {
            return Err(Error::Misuse(format!("{len} bytes at {offset} of a buffer of {}", self.size)));
        }
        if let Some(mut transfer) = self.heap.transfer(len) {
            // SAFETY: the tensor covers the buffer, and the bytes are inside it.
            unsafe { transfer.read(&self.heap, self.bytes, offset as usize, &mut out) };
            return Ok(out.into());
        }
        let _order = self.heap.lock();
        let get = self.heap.library().functions.ggml_backend_tensor_get;
        // SAFETY: the tensor covers the buffer, the bytes are inside it, and there is room for them.
        unsafe { get(self.bytes, out.as_mut_ptr().cast(), offset as usize, len) };
        Ok(out.into())
    }

    /// Sets every byte of a range.
    pub(crate) fn fill(&self, offset: u64, len: u64, value: u8) -> Result<()> {
        let piece = vec![value; len.min(PIECE) as usize];
        let mut done = 0;
        while done < len {
            let now = (len - done).min(PIECE);
            self.write(offset + done, &piece[..now as usize])?;
            done += now;
        }
        Ok(())
    }
}

/// Copies bytes from one buffer to another of the same device, or within one. What is outside is a misuse.
pub(crate) fn copy([from, to]: [&GgmlBuffer; 2], [start, end]: [u64; 2], len: u64) -> Result<()> {
    let bytes = usize::try_from(len).unwrap_or(usize::MAX);
    if !from.inside(start, bytes) || !to.inside(end, bytes) {
        return Err(Error::Misuse(format!("a copy of {len} bytes from {start} to {end}")));
    }
    let (_order, f) = (from.heap.lock(), &from.heap.library().functions);
    let params = InitParams { size: 0, buffer: std::ptr::null_mut(), no_alloc: true };
    // SAFETY: the context has room for two tensors, each a part of one that covers its buffer, and the parts are inside.
    let places = unsafe {
        let context = (f.ggml_init)(InitParams { size: 3 * (f.ggml_tensor_overhead)(), ..params });
        if context.is_null() {
            return Err(Error::OutOfMemory { device: "host".into(), needed: 0, free: 0 });
        }
        let [(src, first), (dst, second)] = [(from.bytes, start), (to.bytes, end)].map(|(of, offset)| {
            let view = (f.ggml_view_4d)(context, of, len as i64, 1, 1, 1, bytes, bytes, bytes, offset as usize);
            (view, (f.ggml_backend_view_init)(view))
        });
        if [first, second] == [0, 0] {
            (f.ggml_backend_tensor_copy)(src, dst);
        }
        (f.ggml_free)(context);
        [first, second]
    };
    places.into_iter().try_for_each(placed)
}

impl Drop for GgmlBuffer {
    fn drop(&mut self) {
        let _order = self.heap.lock();
        let f = &self.heap.library().functions;
        // SAFETY: made in `new`, freed once; executables that have tensors in the buffer keep it.
        unsafe {
            if !self.context.is_null() {
                (f.ggml_free)(self.context);
            }
            if !self.buffer.is_null() {
                (f.ggml_backend_buffer_free)(self.buffer);
            }
        }
    }
}

impl Buffer for GgmlBuffer {
    fn size(&self) -> u64 {
        self.size
    }

    fn device(&self) -> u64 {
        self.device
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Whether ggml has given a tensor its place.
pub(crate) fn placed(status: i32) -> Result<()> {
    if status == 0 { Ok(()) } else { Err(Error::Misuse(format!("ggml gives a tensor no place (status {status})"))) }
}

/// The buffer behind a slice, if it is one of ggml's.
pub(crate) fn buffer(slice: &Slice) -> Result<&GgmlBuffer> {
    let buffer = slice.buffer().as_any().downcast_ref::<GgmlBuffer>();
    buffer.ok_or_else(|| Error::Misuse("a buffer of another kind of device".into()))
}
