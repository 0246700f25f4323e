//! Room on a disk.

use std::io;
use std::path::Path;

/// Bytes of a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskSpace {
    /// In all.
    pub total: u64,
    /// That this user may still write.
    pub free: u64,
}

/// Room on the file system that `path`, which must exist, is on.
#[cfg(unix)]
pub fn disk_space(path: &Path) -> io::Result<DiskSpace> {
    use std::os::unix::ffi::OsStrExt;
    let path = std::ffi::CString::new(path.as_os_str().as_bytes())?;
    let mut stat = std::mem::MaybeUninit::<libc::statvfs>::zeroed();
    // SAFETY: the path ends with a zero, and `stat` is room for the one struct that is written.
    let status = unsafe { libc::statvfs(path.as_ptr(), stat.as_mut_ptr()) };
    if status != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: all zeros are a valid statvfs, and the call has filled it.
    let stat = unsafe { stat.assume_init() };
    // The types of the fields differ between systems.
    #[allow(clippy::unnecessary_cast)]
    let bytes = |blocks: u64| blocks.saturating_mul(stat.f_frsize as u64);
    #[allow(clippy::unnecessary_cast)]
    Ok(DiskSpace { total: bytes(stat.f_blocks as u64), free: bytes(stat.f_bavail as u64) })
}

/// Room on the file system that `path` is on: not known on this system.
#[cfg(not(unix))]
pub fn disk_space(_: &Path) -> io::Result<DiskSpace> {
    Err(io::Error::from(io::ErrorKind::Unsupported))
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn a_disk_has_room() {
        let space = disk_space(&std::env::temp_dir()).unwrap();
        assert!(space.total > 0 && space.free <= space.total);
        assert!(disk_space(Path::new("/does/not/exist")).is_err());
    }
}
