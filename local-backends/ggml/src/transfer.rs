//! Long writes to a card and reads from it: through pinned memory of the host, piece by piece, on a stream of their own. A piece of a write is copied here while
//! the one before is on its way.

use crate::functions::{Functions, Object};
use crate::memory::Heap;

/// Bytes of a piece, and pieces that are under way at once: those of the mebibyte in which helpers get what is longer.
const PIECE: usize = 256 << 10;
const PIECES: usize = 4;
/// What is shorter gains nothing.
pub(crate) const SHORTEST: usize = 2 * PIECE;

/// A stream of the library for transfers, and pinned memory.
pub(crate) struct Transfer {
    backend: Object,
    buffer: Object,
    memory: *mut u8,
}

// SAFETY: handles of the library and memory that belong to this alone; whoever uses it has the lock that it is in.
unsafe impl Send for Transfer {}

impl Transfer {
    /// One for a device. `None` if it has no such memory, or no stream. Some libraries give plain memory where they have no pinned one.
    pub(crate) fn open(heap: &Heap) -> Option<Transfer> {
        let (f, device) = (&heap.library().functions, heap.device.handle());
        let _order = heap.lock();
        // SAFETY: a device of this library, and objects that it gives: null is none.
        unsafe {
            let kind = (f.ggml_backend_dev_host_buffer_type)(device);
            if kind.is_null() {
                return None;
            }
            let buffer = (f.ggml_backend_buft_alloc_buffer)(kind, PIECE * PIECES);
            if buffer.is_null() {
                return None;
            }
            let backend = (f.ggml_backend_dev_init)(device, std::ptr::null());
            if backend.is_null() {
                (f.ggml_backend_buffer_free)(buffer);
                return None;
            }
            Some(Transfer { backend, buffer, memory: (f.ggml_backend_buffer_get_base)(buffer).cast() })
        }
    }

    /// Gives its parts back.
    pub(crate) fn close(self, f: &Functions) {
        // SAFETY: made in `open`, freed once; nothing is under way.
        unsafe {
            (f.ggml_backend_free)(self.backend);
            (f.ggml_backend_buffer_free)(self.buffer);
        }
    }

    /// Writes to a tensor from an offset on, and waits for that.
    ///
    /// # Safety
    /// The tensor is of this device, and has so many bytes there.
    pub(crate) unsafe fn write(&mut self, heap: &Heap, tensor: Object, offset: usize, data: &[u8]) {
        let f = &heap.library().functions;
        for (number, pieces) in data.chunks(PIECE * PIECES).enumerate() {
            let _order = heap.lock();
            for (slot, piece) in pieces.chunks(PIECE).enumerate() {
                let at = offset + number * PIECE * PIECES + slot * PIECE;
                // SAFETY: a piece of the pinned memory, of which nothing is under way, and a part of the tensor.
                unsafe {
                    let from = self.memory.add(slot * PIECE);
                    std::ptr::copy_nonoverlapping(piece.as_ptr(), from, piece.len());
                    (f.ggml_backend_tensor_set_async)(self.backend, tensor, from.cast(), at, piece.len());
                }
            }
            // SAFETY: a stream of the library.
            unsafe { (f.ggml_backend_synchronize)(self.backend) };
        }
    }

    /// Reads from a tensor, from an offset on.
    ///
    /// # Safety
    /// The tensor is of this device, and has so many bytes there.
    pub(crate) unsafe fn read(&mut self, heap: &Heap, tensor: Object, offset: usize, out: &mut [u8]) {
        let f = &heap.library().functions;
        for (number, piece) in out.chunks_mut(PIECE * PIECES).enumerate() {
            let at = offset + number * PIECE * PIECES;
            // SAFETY: the pinned memory, of which nothing is under way, and a part of the tensor; a stream of the library.
            unsafe {
                let _order = heap.lock();
                (f.ggml_backend_tensor_get_async)(self.backend, tensor, self.memory.cast(), at, piece.len());
                (f.ggml_backend_synchronize)(self.backend);
            }
            // SAFETY: what was read is there now.
            piece.copy_from_slice(unsafe { std::slice::from_raw_parts(self.memory, piece.len()) });
        }
    }
}
