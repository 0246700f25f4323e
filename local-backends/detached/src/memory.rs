//! Memory of the card. To the host a buffer is a name: there is no address in it.

use outboard_core::{Buffer, Error, Executable, Result, Slice};
use std::any::Any;
use std::sync::Arc;

/// Memory of a card.
#[derive(Debug)]
pub(crate) struct CardBuffer {
    /// What stands for the card's own memory.
    pub(crate) inner: Arc<dyn Buffer>,
    pub(crate) device: u64,
}

impl Buffer for CardBuffer {
    fn size(&self) -> u64 {
        self.inner.size()
    }

    fn device(&self) -> u64 {
        self.device
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// The card's side of a slice.
pub(crate) fn inner(slice: &Slice) -> Result<Slice> {
    let wrong = || Error::Misuse("a buffer of another kind of device".into());
    let buffer = slice.buffer().as_any().downcast_ref::<CardBuffer>().ok_or_else(wrong)?;
    Slice::new(buffer.inner.clone(), slice.offset(), slice.len())
}

/// A graph on a card. It keeps the buffers that its tensors lie in.
#[derive(Debug)]
pub(crate) struct CardExecutable {
    pub(crate) inner: Arc<dyn Executable>,
    pub(crate) device: u64,
    pub(crate) _buffers: Vec<Slice>,
}

impl Executable for CardExecutable {
    fn device(&self) -> u64 {
        self.device
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
