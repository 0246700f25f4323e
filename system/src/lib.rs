//! What the programs need of the operating system: an allocator, mapped files, room on disks, folders. Nothing here knows of devices.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

mod allocator;
mod disk;
mod folders;
mod mapped;

pub use allocator::{ProgramAllocator, trim_memory};
pub use disk::{DiskSpace, disk_space};
pub use folders::{CACHE_VARIABLE, cache_dir};
pub use mapped::open_mapped;
