//! Files as memory.

use bytes::Bytes;
use std::fs::File;
use std::io;
use std::path::Path;

/// A file's content, mapped into memory: nothing is read until it is used, and pages are shared with the system's cache.
///
/// The file must not be cut while it is mapped; a reader would be ended by the system (SIGBUS), as with every program that
/// maps files.
pub fn open_mapped(path: &Path) -> io::Result<Bytes> {
    let file = File::open(path)?;
    let meta = file.metadata()?;
    if meta.is_dir() {
        return Err(io::Error::new(io::ErrorKind::IsADirectory, "is a directory"));
    }
    if meta.len() == 0 {
        return Ok(Bytes::new());
    }
    // SAFETY: the mapping is read-only and private to this process; that others must not cut the file is documented.
    let map = unsafe { memmap2::Mmap::map(&file)? };
    Ok(Bytes::from_owner(map))
}
