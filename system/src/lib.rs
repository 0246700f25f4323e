//! What the programs need of the operating system: an allocator, mapped files, room on disks. Nothing here knows of devices.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

mod allocator;
mod disk;
mod mapped;

pub use allocator::{ProgramAllocator, trim_memory};
pub use disk::{DiskSpace, disk_space};
pub use mapped::open_mapped;
