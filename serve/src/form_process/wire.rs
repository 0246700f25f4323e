//! What is said to a process that follows forms, and what it answers: over pipes, one after the other.

use std::io::{self, Error, ErrorKind, Read, Write};

/// Bytes of what is said, at most: a form has 64 KiB before it becomes JSON, a set a bit for each token.
const MOST: u32 = 4 << 20;

/// What is said to a process.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Request {
    /// Compile this form, as JSON: what a text may begin with.
    Form(Vec<u8>),
    /// A token of a text of the form: what may follow.
    Token(u32),
    /// The text has ended.
    End,
}

/// What it answers.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// It is ready for a form, or the text has ended. The number is that of the vocabulary that it has read
    /// ([`Tokenizer::digest`](outboard::llm::tokenizer::Tokenizer::digest)).
    Ready(u64),
    /// Tokens with which the text can go on, as the words of a [`TokenSet`](outboard::llm::TokenSet).
    Tokens(Vec<u32>),
    /// The text is complete, and nothing may follow.
    Complete,
    /// Why the form cannot be used, the text cannot go on, or the process not begin.
    Wrong(String),
}

impl Request {
    pub(super) fn write(&self, to: impl Write) -> io::Result<()> {
        match self {
            Request::Form(json) => write(to, b'f', json),
            Request::Token(id) => write(to, b't', &id.to_le_bytes()),
            Request::End => write(to, b'e', &[]),
        }
    }

    /// The next one; `None` if there are no more.
    pub(super) fn read(from: &mut impl Read) -> io::Result<Option<Request>> {
        let (kind, bytes) = match read(from) {
            Err(e) if e.kind() == ErrorKind::UnexpectedEof => return Ok(None),
            other => other?,
        };
        match kind {
            b'f' => Ok(Some(Request::Form(bytes))),
            b't' => Ok(Some(Request::Token(u32::from_le_bytes(bytes.try_into().map_err(|_| odd())?)))),
            b'e' => Ok(Some(Request::End)),
            _ => Err(odd()),
        }
    }
}

impl Answer {
    pub(super) fn write(&self, to: impl Write) -> io::Result<()> {
        match self {
            Answer::Ready(digest) => write(to, b'r', &digest.to_le_bytes()),
            Answer::Tokens(words) => {
                write(to, b's', &words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>())
            }
            Answer::Complete => write(to, b'c', &[]),
            Answer::Wrong(why) => write(to, b'w', why.as_bytes()),
        }
    }

    pub(super) fn read(from: &mut impl Read) -> io::Result<Answer> {
        let (kind, bytes) = read(from)?;
        match kind {
            b'r' => Ok(Answer::Ready(u64::from_le_bytes(bytes.try_into().map_err(|_| odd())?))),
            b's' => Ok(Answer::Tokens(bytes.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect())),
            b'c' => Ok(Answer::Complete),
            b'w' => Ok(Answer::Wrong(String::from_utf8_lossy(&bytes).into_owned())),
            _ => Err(odd()),
        }
    }
}

/// A byte that says what it is, how long it is, and so many bytes.
fn write(mut to: impl Write, kind: u8, bytes: &[u8]) -> io::Result<()> {
    let length = u32::try_from(bytes.len()).ok().filter(|&length| length <= MOST).ok_or_else(odd)?;
    let mut all = Vec::with_capacity(5 + bytes.len());
    all.push(kind);
    all.extend_from_slice(&length.to_le_bytes());
    all.extend_from_slice(bytes);
    to.write_all(&all)?;
    to.flush()
}

fn read(from: &mut impl Read) -> io::Result<(u8, Vec<u8>)> {
    let (mut kind, mut length) = ([0], [0; 4]);
    from.read_exact(&mut kind)?;
    from.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length);
    if length > MOST {
        return Err(odd());
    }
    let mut bytes = vec![0; length as usize];
    from.read_exact(&mut bytes)?;
    Ok((kind[0], bytes))
}

fn odd() -> Error {
    Error::new(ErrorKind::InvalidData, "this is not what processes for forms say")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_understood() {
        let mut said = Vec::new();
        let requests = [Request::Form(b"null".to_vec()), Request::Token(70_000), Request::End];
        requests.iter().for_each(|request| request.write(&mut said).unwrap());
        let mut from = said.as_slice();
        for request in requests {
            assert_eq!(Request::read(&mut from).unwrap(), Some(request));
        }
        assert_eq!(Request::read(&mut from).unwrap(), None);
        let answers = [
            Answer::Ready(1 << 63),
            Answer::Tokens(vec![1, 1 << 31]),
            Answer::Complete,
            Answer::Wrong("\n\0\u{e9}".into()),
        ];
        let mut said = Vec::new();
        answers.iter().for_each(|answer| answer.write(&mut said).unwrap());
        let mut from = said.as_slice();
        for answer in answers {
            assert_eq!(Answer::read(&mut from).unwrap(), answer);
        }
        for odd in [&b"what\n"[..], b"s\xff\xff\xff\xff", b"s\x08\0\0\0abc", b"t\x01\0\0\0a"] {
            assert!(Answer::read(&mut &*odd).is_err());
        }
        assert!(Request::read(&mut &b"t\x01\0\0\0a"[..]).is_err());
    }
}
