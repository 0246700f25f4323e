//! PTX text as tokens, each with its line.
use super::{Error, Result};

/// What a token is; words keep their dots, so that `ld.global.f32` and `%tid.x` are one each.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Kind {
    /// A name, a directive, an instruction or a number.
    Word(String),
    /// A text between quotes.
    Text(String),
    /// A sign.
    Sign(char),
}

/// A token and the line it is on, from 1.
#[derive(Clone, Debug)]
pub(crate) struct Token {
    pub(crate) kind: Kind,
    pub(crate) line: u32,
}

fn in_word(c: u8) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, b'_' | b'.' | b'$' | b'%')
}

/// The tokens of a text, without its comments.
pub(crate) fn lex(text: &str) -> Result<Vec<Token>> {
    let bytes = text.as_bytes();
    let (mut at, mut line, mut tokens) = (0, 1, Vec::new());
    while at < bytes.len() {
        let c = bytes[at];
        let start = at;
        if c == b'\n' {
            line += 1;
            at += 1;
        } else if c.is_ascii_whitespace() || c == 0 {
            at += 1;
        } else if bytes[at..].starts_with(b"//") {
            at += bytes[at..].iter().position(|&b| b == b'\n').unwrap_or(bytes.len() - at);
        } else if bytes[at..].starts_with(b"/*") {
            let end = text[at..].find("*/").ok_or_else(|| Error::at(line, "a comment has no end"))?;
            line += text[at..at + end].matches('\n').count() as u32;
            at += end + 2;
        } else if c == b'"' {
            let end = text[at + 1..].find('"').ok_or_else(|| Error::at(line, "a text has no end"))?;
            tokens.push(Token { kind: Kind::Text(text[at + 1..at + 1 + end].to_owned()), line });
            at += end + 2;
        } else if in_word(c) {
            at = word_end(bytes, at);
            tokens.push(Token { kind: Kind::Word(text[start..at].to_owned()), line });
        } else if c.is_ascii() {
            tokens.push(Token { kind: Kind::Sign(c as char), line });
            at += 1;
        } else {
            return Err(Error::at(line, "a character that is not ASCII"));
        }
    }
    Ok(tokens)
}

/// Where a word ends. Two colons belong to it (`L2::128B`), one ends it (a label).
fn word_end(bytes: &[u8], mut at: usize) -> usize {
    while at < bytes.len() {
        if in_word(bytes[at]) {
            at += 1;
        } else if bytes[at..].starts_with(b"::") {
            at += 2;
        } else {
            break;
        }
    }
    at
}
