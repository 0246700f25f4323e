//! Bearer tokens of a server's clients: a file with a line `name token` for each, read again when it changes.
//!
//! Only hashes are kept, and they are compared in constant time; names are logged, tokens never.

use outboard_core::{Error, Result};
use outboard_proto::limits::{MAX_NAME, MAX_TOKEN, MIN_TOKEN};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};
use subtle::{Choice, ConditionallySelectable, ConstantTimeEq};

/// Largest token file in bytes: some ten thousand clients.
const MAX_FILE: u64 = 1 << 20;
/// Most tokens of a file; each is compared with each one that is shown, some 30 ns.
const MAX_TOKENS: usize = 4096;
/// A file may change again within the resolution of its time stamp, which some file systems have as coarse as this.
const COARSE: Duration = Duration::from_secs(2);

/// The tokens that a server accepts.
#[derive(Debug)]
pub struct Tokens {
    path: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    entries: Arc<[Entry]>,
    stamp: Option<Stamp>,
    /// The file is bad now, which was said once.
    bad: bool,
}

/// What tells that a file has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Stamp {
    modified: SystemTime,
    len: u64,
    file: u64,
    read: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    name: Arc<str>,
    hash: [u8; 32],
}

impl Tokens {
    /// Reads the file of `--token-file`. The error names it, the line, and what is wrong, not the token.
    pub fn load(path: &Path) -> Result<Tokens> {
        Tokens::load_of("--token-file", path)
    }

    /// The same of another flag.
    pub fn load_of(flag: &str, path: &Path) -> Result<Tokens> {
        let stamp = stamp(path);
        let entries = read(path).map_err(|e| Error::Request(format!("{flag} {}: {e}", path.display())))?;
        let state = State { entries: entries.into(), stamp, bad: false };
        Ok(Tokens { path: path.to_owned(), state: Mutex::new(state) })
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).entries.len()
    }

    /// Never true: a file without a token is an error.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The name that a token stands for. Looks first whether the file has changed; one that has become bad leaves the tokens
    /// as they were, with one warning.
    pub fn name_of(&self, token: &str) -> Option<Arc<str>> {
        if token.len() > MAX_TOKEN {
            return None;
        }
        let entries = self.current();
        let hash = *blake3::hash(token.as_bytes()).as_bytes();
        // All of them, whichever fits.
        let mut found = u64::MAX;
        for (i, entry) in (0u64..).zip(entries.iter()) {
            let same: Choice = entry.hash.ct_eq(&hash);
            found.conditional_assign(&i, same);
        }
        usize::try_from(found).ok().and_then(|i| entries.get(i)).map(|e| e.name.clone())
    }

    fn current(&self) -> Arc<[Entry]> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let now = stamp(&self.path);
        let settled = |s: &Stamp| s.read > COARSE;
        let same = |a: &Stamp, b: &Stamp| (a.modified, a.len, a.file) == (b.modified, b.len, b.file);
        if let (Some(old), Some(new)) = (&state.stamp, &now)
            && same(old, new)
            && settled(old)
        {
            return state.entries.clone();
        }
        let path = self.path.display();
        match read(&self.path) {
            Ok(entries) => {
                if state.bad || *state.entries != *entries {
                    tracing::info!("token file {path} read again: {} tokens", entries.len());
                }
                (state.entries, state.bad) = (entries.into(), false);
            }
            Err(e) if !state.bad => {
                state.bad = true;
                tracing::warn!("token file {path} is bad, the tokens read before stay valid: {e}");
            }
            Err(_) => {}
        }
        state.stamp = now;
        state.entries.clone()
    }
}

fn stamp(path: &Path) -> Option<Stamp> {
    let meta = std::fs::metadata(path).ok()?;
    let modified = meta.modified().ok()?;
    #[cfg(unix)]
    let file = std::os::unix::fs::MetadataExt::ino(&meta);
    #[cfg(not(unix))]
    let file = 0;
    // A clock that has been set back makes it zero: not settled, so that the file is read each time.
    let read = SystemTime::now().duration_since(modified).unwrap_or_default();
    Some(Stamp { modified, len: meta.len(), file, read })
}

fn read(path: &Path) -> std::result::Result<Vec<Entry>, String> {
    let fail = |e: std::io::Error| match e.kind() {
        std::io::ErrorKind::NotFound => "there is no such file".to_owned(),
        std::io::ErrorKind::PermissionDenied => "this user may not read it".to_owned(),
        _ => format!("cannot be read: {e}"),
    };
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).map_err(fail)?;
    file.take(MAX_FILE + 1).read_to_end(&mut bytes).map_err(fail)?;
    if bytes.len() as u64 > MAX_FILE {
        return Err(format!("it has more than {MAX_FILE} bytes"));
    }
    parse(&bytes)
}

/// Lines of a name and a token; empty ones and those that begin with `#` are left out. A name may have several tokens, so that
/// the old one still works while its client learns the new one.
fn parse(bytes: &[u8]) -> std::result::Result<Vec<Entry>, String> {
    let text = std::str::from_utf8(bytes).map_err(|_| "it is not text (UTF-8)".to_owned())?;
    let mut entries: Vec<Entry> = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let mut words = line.split_whitespace();
        let (Some(name), Some(token), None) = (words.next(), words.next(), words.next()) else {
            return Err(format!("line {number} is not a name and a secret, with blanks between them and nothing else"));
        };
        if name.len() > MAX_NAME || name.chars().any(char::is_control) {
            return Err(format!("line {number}: a name has 1 to {MAX_NAME} printable characters"));
        }
        if !(MIN_TOKEN..=MAX_TOKEN).contains(&token.len()) || !token.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(format!(
                "line {number}: the secret of \"{name}\" must have {MIN_TOKEN} to {MAX_TOKEN} printable ASCII characters (openssl rand -hex 32 \
                 makes a good one)"
            ));
        }
        let hash = *blake3::hash(token.as_bytes()).as_bytes();
        if let Some(other) = entries.iter().find(|e| e.hash == hash) {
            return Err(format!("line {number}: \"{name}\" has the same secret as \"{}\"", other.name));
        }
        entries.push(Entry { name: name.into(), hash });
        if entries.len() > MAX_TOKENS {
            return Err(format!("it has more than {MAX_TOKENS} tokens"));
        }
    }
    if entries.is_empty() {
        Err("there is no secret in it; write a line with a name and a secret for each client".into())
    } else {
        Ok(entries)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: &str = "0123456789abcdef";
    const B: &str = "fedcba9876543210";

    #[test]
    fn files_are_read_line_by_line() {
        let entries = parse(format!("# clients\n\nlaptop {A}\r\n  desk\t{B}  \n").as_bytes()).unwrap();
        assert_eq!(entries.iter().map(|e| &*e.name).collect::<Vec<_>>(), ["laptop", "desk"]);
        for (text, expected) in [
            ("".to_owned(), "no secret"),
            ("# only a remark".into(), "no secret"),
            (format!("x {A}\nlaptop"), "line 2"),
            (format!("x {A} more"), "line 1"),
            ("x short".into(), "secret of \"x\""),
            (format!("x {A}\ny {A}"), "same secret as \"x\""),
            (format!("x {A}\u{e9}"), "secret of \"x\""),
            (format!("{} {A}", "x".repeat(300)), "a name has"),
        ] {
            let error = parse(text.as_bytes()).unwrap_err();
            assert!(error.contains(expected) && !error.contains(A), "{error}");
        }
        assert!(parse(&[b'x', 0xff, b' ']).unwrap_err().contains("UTF-8"));
    }

    #[test]
    fn a_changed_file_counts_and_a_bad_one_does_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tokens");
        std::fs::write(&path, format!("one {A}\n")).unwrap();
        let tokens = Tokens::load(&path).unwrap();
        let name = |token: &str| tokens.name_of(token).map(|n| n.to_string());
        assert_eq!((name(A).as_deref(), name(B), name(""), name(&A[1..])), (Some("one"), None, None, None));
        // The same length, at once.
        std::fs::write(&path, format!("two {B}\n")).unwrap();
        assert_eq!((name(A), name(B).as_deref()), (None, Some("two")));
        std::fs::write(&path, "nonsense").unwrap();
        assert_eq!(name(B).as_deref(), Some("two"));
        std::fs::remove_file(&path).unwrap();
        assert_eq!(name(B).as_deref(), Some("two"));
        std::fs::write(&path, format!("one {A}\ntwo {B}\n")).unwrap();
        assert_eq!((name(A).as_deref(), name(B).as_deref()), (Some("one"), Some("two")));
        // A time stamp that is long past, as of a file that was moved there.
        let old = dir.path().join("old");
        std::fs::write(&old, format!("old {A}\n")).unwrap();
        let past = SystemTime::now() - Duration::from_secs(1000);
        std::fs::File::options().write(true).open(&old).unwrap().set_modified(past).unwrap();
        std::fs::rename(&old, &path).unwrap();
        assert_eq!((name(A).as_deref(), name(B)), (Some("old"), None));
    }
}
