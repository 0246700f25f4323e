//! A client's token in a file.

use crate::error::{Error, Result};
use outboard_rpc_client::Token;
use std::io::Read;
use std::path::Path;

/// Largest file of a client's token in bytes.
const TOKEN_FILE: u64 = 64 << 10;

/// Reads a token: the only line of a file that is not empty and no comment, with the token alone, or behind a name, as in a server's file. Errors
/// never say the token.
pub fn read_token(path: &Path) -> Result<Token> {
    let failed = |e: std::io::Error| Error::Io { path: path.to_owned(), kind: e.kind(), detail: e.to_string() };
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(failed)?;
    file.take(TOKEN_FILE).read_to_string(&mut text).map_err(failed)?;
    let wrong = |what: &str| Error::Request(format!("{}: {what}", path.display()));
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let (Some(line), None) = (lines.next(), lines.next()) else {
        return Err(wrong("it should have one line with this client's token"));
    };
    let mut words = line.split_whitespace();
    match (words.next(), words.next(), words.next()) {
        (Some(token), None, _) | (Some(_), Some(token), None) => Token::new(token).map_err(|e| wrong(&e.to_string())),
        _ => Err(wrong("it should have one line with this client's token")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_file_has_one_token() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        let with = |text: &str| {
            std::fs::write(&path, text).unwrap();
            read_token(&path)
        };
        let token = Token::new("0123456789abcdef").unwrap();
        for text in ["0123456789abcdef", "\n# mine\nlaptop 0123456789abcdef\n"] {
            assert_eq!(with(text).unwrap(), token);
        }
        for text in ["", "a b 0123456789abcdef", "0123456789abcdef\n0123456789abcdef", "short"] {
            assert!(with(text).is_err(), "{text}");
        }
    }
}
