//! The file of tokens.

use outboard_rpc_server::Tokens;
use std::path::PathBuf;
use std::sync::LazyLock;

/// A file for each process, in memory where there is such a folder.
static FILE: LazyLock<(tempfile::TempDir, PathBuf)> = LazyLock::new(|| {
    let memory = std::path::Path::new("/dev/shm");
    let dir = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    let dir = dir.expect("a folder");
    let file = dir.path().join("tokens");
    (dir, file)
});

pub(crate) fn run(input: &[u8]) {
    std::fs::write(&FILE.1, input).expect("a file");
    match Tokens::load(&FILE.1) {
        Ok(tokens) => assert!(!tokens.is_empty() && tokens.len() <= input.len()),
        Err(e) => {
            let text = e.to_string();
            assert!(!text.contains('\n') && text.len() < 2048, "{text:?}");
            // What may be a token is not told: a word of its length, in what follows the file's name.
            let text = text.strip_prefix(&format!("--token-file {}: ", FILE.1.display())).expect("which file it is");
            for word in input.split(|b| b.is_ascii_whitespace()).skip(1).filter(|w| w.len() >= 16 && w.len() <= 512) {
                if word.iter().all(u8::is_ascii_graphic) && is_second(input, word) {
                    assert!(!text.contains(std::str::from_utf8(word).expect("ASCII")), "{text:?}");
                }
            }
        }
    }
}

/// Whether a word stands behind a name, and is no name itself anywhere.
fn is_second(input: &[u8], word: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(input) else { return false };
    let word = std::str::from_utf8(word).unwrap_or_default();
    let firsts = || text.lines().filter_map(|l| l.split_whitespace().next());
    !firsts().any(|first| first.contains(word))
}
