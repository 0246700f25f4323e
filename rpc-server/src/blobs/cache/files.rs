//! The files of a cache's directory, and who may look at them.
//!
//! Where files have modes, the directory and its files are for their owner alone: their names are digests, and who knows a digest
//! can have the blob placed, and so read it.

use outboard_core::Digest;
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Names of files that are being written begin with this.
const TEMPORARY: &str = ".writing-";
/// Where a file system has no locks, a file being written that was not touched for this long was left by a killed server.
const ABANDONED: Duration = Duration::from_secs(3600);

/// A blob's file.
pub(super) struct Entry {
    pub(super) path: PathBuf,
    pub(super) digest: Digest,
    pub(super) len: u64,
    pub(super) used: SystemTime,
}

/// The blobs of a directory.
pub(super) fn list(dir: &Path) -> io::Result<Vec<Entry>> {
    let mut out = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let Some(digest) = entry.file_name().to_str().and_then(|name| name.parse::<Digest>().ok()) else { continue };
        // One that has gone since does not count.
        let Ok(meta) = entry.metadata() else { continue };
        let used = meta.modified().unwrap_or(SystemTime::UNIX_EPOCH);
        out.push(Entry { path: entry.path(), digest, len: meta.len(), used });
    }
    Ok(out)
}

/// Removes what servers that were killed have left half written.
pub(super) fn remove_abandoned(dir: &Path) {
    let is_temporary = |path: &PathBuf| {
        path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with(TEMPORARY))
    };
    let all = fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    for path in all.filter(is_temporary) {
        let Ok(file) = File::open(&path) else { continue };
        let abandoned = match file.try_lock() {
            Ok(()) => true,
            Err(TryLockError::WouldBlock) => false,
            Err(TryLockError::Error(_)) => {
                let changed = file.metadata().and_then(|meta| meta.modified());
                changed.is_ok_and(|at| at.elapsed().is_ok_and(|age| age > ABANDONED))
            }
        };
        if abandoned {
            let _ = fs::remove_file(&path);
        }
    }
}

/// A new file to write to, and its path. It is locked for as long as it is open; where there are no locks, its age has to do.
pub(super) fn create_temporary(dir: &Path) -> io::Result<(File, PathBuf)> {
    // Random, because servers in different containers have equal process numbers.
    let path = dir.join(format!("{TEMPORARY}{:016x}", rand::random::<u64>()));
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let file = options.open(&path)?;
    let _ = file.try_lock();
    Ok((file, path))
}

/// Makes a directory, and those above it, for this user alone. One that is there already stays as it is.
pub(super) fn make_private_dir(dir: &Path) -> io::Result<()> {
    let mut builder = DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(dir)
}

/// Takes from others the right to look into a directory of this program's own, if it is there.
pub(crate) fn tighten(dir: &Path) {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        // One that cannot be changed is somebody else's: what that means, the user is told with all other directories.
        let Ok(meta) = fs::metadata(dir) else { return };
        let mode = meta.permissions().mode();
        if mode & 0o077 != 0 {
            let _ = fs::set_permissions(dir, fs::Permissions::from_mode(mode & !0o077));
        }
    }
    #[cfg(not(unix))]
    let _ = dir;
}

/// A sentence about a cache directory that other users of this host may look into or change; `None` if all is well, or where
/// files have no modes.
pub(crate) fn warn_if_open(dir: &Path) -> Option<String> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = fs::metadata(dir).ok()?.permissions().mode();
        let may = match (mode & 0o022 != 0, mode & 0o055 != 0) {
            (true, _) => "change what is in it",
            (false, true) => "see which weights it has, and so load them",
            (false, false) => return None,
        };
        let name = dir.display();
        Some(format!("cache {name}: others on this host may {may} (chmod 700 {name})"))
    }
    #[cfg(not(unix))]
    {
        let _ = dir;
        None
    }
}
