//! Compiled pipelines on disk, so that a driver need not compile them each time a device is opened.
//!
//! The file may be missing, damaged, another driver's or not for us to read or write: that costs time and nothing else. Drivers have crashed on
//! damaged caches, so a driver sees none whose digest, identity and header are not right.

use crate::instance::Identity;
use crate::pipelines::Kernel;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Bytes that a cache may have: some hundred pipelines have less than a tenth of it.
const MOST_BYTES: usize = 64 << 20;
/// Files that a folder keeps: those of drivers and programs that are not used any more go first.
const MOST_FILES: usize = 8;
/// What a file begins with.
const MAGIC: &[u8; 16] = b"outboard-vk-1\r\n\0";
/// Behind it: the digest of the identity, and that of the driver's bytes.
const HEAD: usize = MAGIC.len() + 2 * blake3::OUT_LEN;
/// Bytes of the driver's own header: length, version, vendor, device, and the UUID of its format.
const DRIVERS_HEAD: usize = 32;
/// What names of files begin with that are being written, and after how long nobody does so any more.
const HALF_WRITTEN: &str = ".pipelines-";
const GIVEN_UP_AFTER: Duration = Duration::from_secs(3600);
/// What names of files end with.
const SUFFIX: &str = "pipelines";

/// The place of a device's pipelines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PipelineFile {
    path: PathBuf,
    key: blake3::Hash,
    header: [u8; DRIVERS_HEAD],
}

impl PipelineFile {
    /// That of a driver and device, and of these kernels, in a folder that need not exist.
    pub(crate) fn new(folder: &Path, of: &Identity) -> PipelineFile {
        let mut key = blake3::Hasher::new();
        for number in [of.driver, of.driver_version, of.vendor, of.device] {
            key.update(&number.to_le_bytes());
        }
        key.update(&of.cache_uuid);
        for kernel in Kernel::ALL {
            key.update(blake3::hash(kernel.code()).as_bytes());
        }
        let key = key.finalize();
        let path = folder.join(format!("{}.{SUFFIX}", &key.to_hex()[..32]));
        PipelineFile { path, key, header: header(of) }
    }

    /// What the driver once gave for it; nothing if there is nothing that is whole and this driver's.
    pub(crate) fn read(&self) -> Vec<u8> {
        let read = self.read_checked();
        let why = read.as_ref().err();
        if let Some(why) = why.filter(|why| why.kind() != io::ErrorKind::NotFound) {
            tracing::debug!("compiled pipelines in {} are not used: {why}", self.path.display());
        }
        read.unwrap_or_default()
    }

    fn read_checked(&self) -> io::Result<Vec<u8>> {
        // Opening something else, such as a pipe, may never end.
        if !std::fs::metadata(&self.path)?.is_file() {
            return Err(io::Error::other("this is no file"));
        }
        let mut bytes = Vec::new();
        File::open(&self.path)?.take((HEAD + MOST_BYTES + 1) as u64).read_to_end(&mut bytes)?;
        self.check(&bytes).map_err(io::Error::other)?;
        Ok(bytes.split_off(HEAD))
    }

    /// What is wrong with a file, if something is.
    fn check(&self, bytes: &[u8]) -> Result<(), &'static str> {
        let Some((head, data)) = bytes.split_at_checked(HEAD) else { return Err("it ends early") };
        let (magic, digests) = head.split_at(MAGIC.len());
        let (key, digest) = digests.split_at(blake3::OUT_LEN);
        match () {
            () if magic != MAGIC => Err("it is something else"),
            () if data.len() > MOST_BYTES => Err("it is too long"),
            () if key != self.key.as_bytes() => Err("it is another driver's, or another program's"),
            () if digest != blake3::hash(data).as_bytes() => Err("it is damaged"),
            () if !data.starts_with(&self.header) => Err("its header is not this driver's"),
            () => Ok(()),
        }
    }

    /// Puts the driver's bytes in its place, all at once.
    pub(crate) fn write(&self, data: &[u8]) -> io::Result<()> {
        if data.len() <= DRIVERS_HEAD {
            // A driver that keeps nothing.
            return Ok(());
        }
        if data.len() > MOST_BYTES {
            // Or what it has would be read and grow beyond this whenever a device is opened.
            let removed = std::fs::remove_file(&self.path);
            removed.or_else(|e| if e.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(e) })?;
            return Err(io::Error::other(format!("the driver has {} bytes of them", data.len())));
        }
        let folder = self.path.parent().unwrap_or(Path::new("."));
        std::fs::create_dir_all(folder)?;
        let mut file = tempfile::Builder::new().prefix(HALF_WRITTEN).tempfile_in(folder)?;
        file.write_all(&[MAGIC.as_slice(), self.key.as_bytes(), blake3::hash(data).as_bytes(), data].concat())?;
        file.persist(&self.path).map_err(|e| e.error)?;
        self.remove_old(folder)
    }

    /// Removes the files that were written longest ago, but for some, and what was left half written.
    fn remove_old(&self, folder: &Path) -> io::Result<()> {
        let half_written = |path: &PathBuf| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let age = || path.metadata().and_then(|m| m.modified()).ok()?.elapsed().ok();
            name.starts_with(HALF_WRITTEN) && age().is_some_and(|age| age > GIVEN_UP_AFTER)
        };
        let all = std::fs::read_dir(folder)?.filter_map(|entry| Some(entry.ok()?.path()));
        all.filter(half_written).for_each(|path| drop(std::fs::remove_file(path)));
        let is_ours = |path: &PathBuf| path.extension().is_some_and(|e| e == SUFFIX) && *path != self.path;
        let others = std::fs::read_dir(folder)?.filter_map(|entry| Some(entry.ok()?.path())).filter(is_ours);
        let written = |path: &PathBuf| path.metadata().and_then(|m| m.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
        let mut others: Vec<_> = others.map(|path| (written(&path), path)).collect();
        others.sort();
        let extra = (others.len() + 1).saturating_sub(MOST_FILES);
        others[..extra].iter().for_each(|(_, path)| drop(std::fs::remove_file(path)));
        Ok(())
    }
}

/// The header that a driver writes, by `VkPipelineCacheHeaderVersionOne`.
fn header(of: &Identity) -> [u8; DRIVERS_HEAD] {
    let mut header = [0; DRIVERS_HEAD];
    for (i, number) in [DRIVERS_HEAD as u32, 1, of.vendor, of.device].into_iter().enumerate() {
        header[4 * i..][..4].copy_from_slice(&number.to_le_bytes());
    }
    header[16..].copy_from_slice(&of.cache_uuid);
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    const CARD: Identity =
        Identity { driver: 3, driver_version: 7, vendor: 0x1002, device: 0x744c, cache_uuid: [9; 16] };

    fn file(folder: &Path) -> (PipelineFile, Vec<u8>) {
        (PipelineFile::new(folder, &CARD), [header(&CARD).as_slice(), b"what a driver has compiled"].concat())
    }

    #[test]
    fn what_was_written_is_read() {
        let folder = tempfile::tempdir().unwrap();
        // Nobody has made the folder yet.
        let (file, data) = file(&folder.path().join("a/b"));
        assert!(file.read().is_empty());
        file.write(&data).unwrap();
        assert_eq!(file.read(), data);
        let longer = [data.as_slice(), b", and more"].concat();
        file.write(&longer).unwrap();
        assert_eq!(file.read(), longer);
        std::fs::remove_dir_all(folder.path().join("a")).unwrap();
        assert!(file.read().is_empty());
    }

    #[test]
    fn a_driver_sees_nothing_that_is_damaged() {
        let folder = tempfile::tempdir().unwrap();
        let (file, data) = file(folder.path());
        file.write(&data).unwrap();
        let whole = std::fs::read(&file.path).unwrap();
        for bit in 0..8 * whole.len() {
            let mut flipped = whole.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(file.check(&flipped).is_err(), "bit {bit}");
        }
        for len in 0..whole.len() {
            assert!(file.check(&whole[..len]).is_err(), "{len} bytes");
        }
        assert_eq!(file.check(&[whole.as_slice(), b"x"].concat()), Err("it is damaged"));
        std::fs::write(&file.path, &whole[..whole.len() - 1]).unwrap();
        assert!(file.read().is_empty());
        // A driver's header that is not right, in a file that is.
        for at in [0, 4, 8, 12, 16, 31] {
            let mut wrong = data.clone();
            wrong[at] ^= 1;
            file.write(&wrong).unwrap();
            assert!(file.read().is_empty(), "byte {at}");
        }
    }

    #[test]
    fn drivers_do_not_see_what_others_wrote() {
        let folder = tempfile::tempdir().unwrap();
        let (mine, data) = file(folder.path());
        for other in [
            Identity { driver: 4, ..CARD },
            Identity { driver_version: 8, ..CARD },
            Identity { vendor: 0x10de, ..CARD },
            Identity { device: 1, ..CARD },
            Identity { cache_uuid: [8; 16], ..CARD },
        ] {
            let other = PipelineFile::new(folder.path(), &other);
            assert_ne!(other.path, mine.path);
            mine.write(&data).unwrap();
            std::fs::copy(&mine.path, &other.path).unwrap();
            assert!(other.read().is_empty(), "{other:?}");
        }
        assert_eq!(mine.read(), data);
    }

    #[test]
    fn few_files_stay_and_none_is_long() {
        let folder = tempfile::tempdir().unwrap();
        let strange = folder.path().join("somebody's");
        std::fs::write(&strange, "").unwrap();
        let [left, new] = [".pipelines-left", ".pipelines-new"].map(|name| folder.path().join(name));
        std::fs::write(&new, "").unwrap();
        let long_ago = SystemTime::now() - 2 * GIVEN_UP_AFTER;
        File::create(&left).unwrap().set_modified(long_ago).unwrap();
        for driver_version in 0..20 {
            let of = Identity { driver_version, ..CARD };
            let file = PipelineFile::new(folder.path(), &of);
            file.write(&[header(&of).as_slice(), b"x"].concat()).unwrap();
            assert!(!file.read().is_empty());
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), MOST_FILES + 2);
        assert!(strange.exists() && new.exists() && !left.exists());
        let (file, data) = file(folder.path());
        let long = [data.as_slice(), &vec![0; MOST_BYTES]].concat();
        file.write(&data).unwrap();
        assert!(file.write(&long).unwrap_err().to_string().contains("bytes of them"));
        assert!(!file.path.exists(), "it would grow again");
        file.write(&header(&CARD)).unwrap();
        assert!(!file.path.exists(), "a header alone is kept");
        std::fs::write(
            &file.path,
            [MAGIC.as_slice(), file.key.as_bytes(), blake3::hash(&long).as_bytes(), &long].concat(),
        )
        .unwrap();
        assert!(file.read().is_empty());
    }

    #[cfg(unix)]
    #[test]
    fn what_is_no_file_or_not_ours_costs_nothing() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let (mine, data) = file(folder.path());
        std::fs::create_dir(&mine.path).unwrap();
        assert!(mine.read().is_empty() && mine.write(&data).is_err());
        std::fs::remove_dir(&mine.path).unwrap();
        let pipe = std::process::Command::new("mkfifo").arg(&mine.path).status();
        assert!(pipe.is_ok_and(|status| status.success()) && mine.read().is_empty());
        // A pipe is replaced like any file.
        mine.write(&data).unwrap();
        assert_eq!(mine.read(), data);
        let (below, _) = file(&mine.path.join("folder"));
        assert!(below.read().is_empty() && below.write(&data).is_err());
        std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o500)).unwrap();
        let written = mine.write(&data);
        std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o700)).unwrap();
        // Root writes everywhere.
        println!("in a folder that is closed to writing: {written:?}");
        assert_eq!(mine.read(), data);
    }
}
