//! Digests of the tensors of a file, remembered beside nothing but the file's identity, so that a file that has not changed is
//! not read again.
//!
//! A side file is text, one per model file, in a folder that the caller chooses:
//!
//! ```text
//! outboard digests 1
//! /models/some.gguf
//! 501234567 1763712345123456789 9876543
//! 4096 121856 <64 hexadecimal digits>
//! ```
//!
//! The second line is the canonical path; the third has length in bytes, time of change in nanoseconds since 1970, and inode (0
//! where there are none); then a line per tensor: first byte, length, BLAKE3. If any of the three first lines differs from the
//! file that is there, all of it is void. It is written under another name and renamed, so that a reader finds a whole one.
//!
//! Where files have modes, the folder and its files are for their owner alone: who knows the digest of a tensor can have a server
//! place it, and so read it.

use crate::MAX_TENSORS;
use outboard_core::Digest;
use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::fmt::Write as _;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::hash::{Hash, Hasher};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const FIRST_LINE: &str = "outboard digests 1";
/// Longest side file in bytes: a line of at most 106 characters per tensor, and some for the head.
const MAX_SIDE_FILE: u64 = (MAX_TENSORS as u64) * 106 + (64 << 10);
/// A file that was changed this recently may change again without its time of change showing it: nothing is remembered yet.
const SETTLED: Duration = Duration::from_secs(2);

/// What tells one state of a file from another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileKey {
    path: String,
    len: u64,
    modified: SystemTime,
    inode: u64,
}

impl FileKey {
    /// Of the file as it is now.
    pub fn of(path: &Path) -> io::Result<FileKey> {
        let path = path.canonicalize()?;
        let meta = fs::metadata(&path)?;
        #[cfg(unix)]
        let inode = std::os::unix::fs::MetadataExt::ino(&meta);
        #[cfg(not(unix))]
        let inode = 0;
        // A path with a line break would look like two lines.
        let path = path.to_string_lossy().escape_debug().to_string();
        Ok(FileKey { path, len: meta.len(), modified: meta.modified()?, inode })
    }

    /// The file's length in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether the file has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn head(&self) -> String {
        let modified = self.modified.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        format!("{FIRST_LINE}\n{}\n{} {modified} {}\n", self.path, self.len, self.inode)
    }

    fn side_file(&self, dir: &Path) -> PathBuf {
        // Two paths with the same hash take turns; neither takes the other's lines for its own.
        let mut hash = DefaultHasher::new();
        self.path.hash(&mut hash);
        dir.join(format!("{:016x}.digests", hash.finish()))
    }
}

/// First byte and length.
type Part = (u64, u64);
type Cells = HashMap<Part, Arc<OnceLock<Digest>>>;

/// Digests of parts of one file, known or to be known.
#[derive(Debug, Default)]
pub struct Digests(Mutex<Cells>);

impl Digests {
    fn lock(&self) -> MutexGuard<'_, Cells> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The digest of `len` bytes from `offset`; whoever computes it sets it.
    pub fn of(&self, offset: u64, len: u64) -> Arc<OnceLock<Digest>> {
        self.lock().entry((offset, len)).or_default().clone()
    }

    /// Those that are known, as first byte, length and digest, in the order of the file.
    pub fn known(&self) -> Vec<(u64, u64, Digest)> {
        let map = self.lock();
        let mut known: Vec<_> =
            map.iter().filter_map(|(&(offset, len), d)| d.get().map(|&d| (offset, len, d))).collect();
        known.sort_unstable_by_key(|&(offset, len, _)| (offset, len));
        known
    }

    fn encode(&self, key: &FileKey) -> String {
        let mut text = key.head();
        for (offset, len, digest) in self.known().iter().take(MAX_TENSORS) {
            // Writing to a String does not fail.
            let _ = writeln!(text, "{offset} {len} {digest}");
        }
        text
    }

    fn decode(text: &str, key: &FileKey) -> Option<Digests> {
        let digests = Digests::default();
        for line in text.strip_prefix(&key.head())?.lines() {
            let mut words = line.split(' ');
            let (offset, len): (u64, u64) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
            let digest: Digest = words.next()?.parse().ok()?;
            let inside = offset.checked_add(len).is_some_and(|end| end <= key.len);
            if words.next().is_some() || !inside {
                return None;
            }
            let _ = digests.of(offset, len).set(digest);
        }
        Some(digests)
    }

    /// What is remembered in `dir` about the file in this state; nothing if that cannot be read.
    pub fn load(dir: &Path, key: &FileKey) -> Digests {
        let read = || {
            let mut text = String::new();
            File::open(key.side_file(dir)).ok()?.take(MAX_SIDE_FILE).read_to_string(&mut text).ok()?;
            Digests::decode(&text, key)
        };
        read().unwrap_or_default()
    }

    /// Remembers in `dir`, which is made if need be, and closed to other users. A file that changed within the last seconds is not
    /// remembered.
    pub fn save(&self, dir: &Path, key: &FileKey) -> io::Result<()> {
        if SystemTime::now().duration_since(key.modified).is_ok_and(|age| age < SETTLED) {
            return Ok(());
        }
        make_private(dir)?;
        let path = key.side_file(dir);
        let temporary = path.with_extension(format!("{}.tmp", std::process::id()));
        // One that a process of the same number has left.
        let _ = fs::remove_file(&temporary);
        let write = || {
            let mut file = create_private(&temporary)?;
            file.write_all(self.encode(key).as_bytes())?;
            file.sync_all()?;
            fs::rename(&temporary, &path)
        };
        write().inspect_err(|_| {
            // What cannot be removed is in nobody's way.
            let _ = fs::remove_file(&temporary);
        })
    }

    /// Forgets what is remembered in `dir` about the file.
    pub fn forget(dir: &Path, key: &FileKey) {
        let _ = fs::remove_file(key.side_file(dir));
    }
}

/// Makes a folder that only its owner may look into, and takes others' rights to one that is there already.
fn make_private(dir: &Path) -> io::Result<()> {
    let mut builder = DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
        builder.mode(0o700).create(dir)?;
        let mode = fs::metadata(dir)?.permissions().mode();
        if mode & 0o077 != 0 {
            // Somebody else's folder stays as it is.
            let _ = fs::set_permissions(dir, fs::Permissions::from_mode(mode & !0o077));
        }
        Ok(())
    }
    #[cfg(not(unix))]
    builder.create(dir)
}

/// Makes a new file that only its owner may read.
fn create_private(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn old(path: &Path, text: &str, age: u64) -> FileKey {
        fs::write(path, text).unwrap();
        let file = File::options().write(true).open(path).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(age)).unwrap();
        FileKey::of(path).unwrap()
    }

    #[test]
    fn digests_are_remembered_for_the_same_state_of_the_file_only() {
        let dir = tempfile::tempdir().unwrap();
        let (file, side) = (dir.path().join("a\nb.gguf"), dir.path().join("side"));
        let key = old(&file, "some bytes", 100);
        let digests = Digests::default();
        let _ = digests.of(2, 3).set(Digest([7; 32]));
        digests.of(5, 1);
        digests.save(&side, &key).unwrap();
        assert_eq!(Digests::load(&side, &key).known(), [(2, 3, Digest([7; 32]))]);
        assert_eq!(fs::read_dir(&side).unwrap().count(), 1);
        let touched = old(&file, "some bytes", 90);
        assert!(Digests::load(&side, &touched).known().is_empty());
        Digests::forget(&side, &key);
        assert!(Digests::load(&side, &key).known().is_empty());
        // One that may still be changing.
        let fresh = old(&file, "some bytes", 0);
        digests.save(&side, &fresh).unwrap();
        assert!(Digests::load(&side, &fresh).known().is_empty());
    }

    #[cfg(unix)]
    #[test]
    fn only_their_owner_may_read_side_files() {
        use std::os::unix::fs::PermissionsExt;
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let dir = tempfile::tempdir().unwrap();
        let key = old(&dir.path().join("f"), "some bytes", 100);
        let (made, loose) = (dir.path().join("a/b"), dir.path().join("loose"));
        fs::create_dir(&loose).unwrap();
        fs::set_permissions(&loose, fs::Permissions::from_mode(0o755)).unwrap();
        for side in [made, loose] {
            Digests::default().save(&side, &key).unwrap();
            assert_eq!((mode(&side), mode(&key.side_file(&side))), (0o700, 0o600));
        }
    }

    #[test]
    fn damaged_side_files_are_void() {
        let dir = tempfile::tempdir().unwrap();
        let key = old(&dir.path().join("f"), "some bytes", 100);
        let digests = Digests::default();
        let _ = digests.of(2, 3).set(Digest([7; 32]));
        let good = digests.encode(&key);
        assert_eq!(Digests::decode(&good, &key).unwrap().known().len(), 1);
        for cut in [0, 5, good.len() - 2, good.len() - 40] {
            assert!(Digests::decode(&good[..cut], &key).is_none(), "{cut}");
        }
        for wrong in ["2 9", "18446744073709551615 3", "2 3 4"] {
            assert!(Digests::decode(&good.replace("\n2 3", &format!("\n{wrong}")), &key).is_none(), "{wrong}");
        }
    }
}
