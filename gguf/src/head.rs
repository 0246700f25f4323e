//! The head of a file that others may change meanwhile.
//!
//! Whoever reads a mapped file is ended by the system (SIGBUS) when the file is cut. A program that goes on for years reads the
//! head with ordinary reads instead: a file that is cut is then an error like any other.

use crate::file::ParsedFile;
use crate::{GgufError, TensorInfo};
use bytes::Bytes;
use std::io::Read;

/// Longest head in bytes. The largest vocabularies take some ten megabytes, ten thousand tensors one.
pub const MAX_HEAD: usize = 64 << 20;
/// Bytes that are read first; then twice as many each time, until the head is there.
const FIRST_READ: usize = 1 << 20;

/// Reads the head of a file of `len` bytes and gives its tensors. No more than [`MAX_HEAD`] bytes are held in memory.
pub fn read_tensors(mut file: impl Read, len: u64) -> Result<Vec<TensorInfo>, GgufError> {
    let mut file_len = usize::try_from(len).unwrap_or(usize::MAX);
    let mut head = Vec::new();
    let mut wanted = FIRST_READ;
    loop {
        wanted = wanted.min(file_len).min(MAX_HEAD);
        let more = wanted.saturating_sub(head.len()) as u64;
        let read = file.by_ref().take(more).read_to_end(&mut head);
        read.map_err(|e| GgufError::Unreadable(e.to_string()))?;
        if head.len() < wanted {
            // It was cut meanwhile.
            file_len = head.len();
        }
        let part = Bytes::from(head);
        match ParsedFile::parse_head(part.clone(), file_len) {
            Ok(file) => return Ok(file.tensors),
            Err(GgufError::Truncated { len, .. }) if len == part.len() && len < file_len => {
                if len >= MAX_HEAD {
                    return Err(GgufError::Invalid(format!("its head has more than {MAX_HEAD} bytes")));
                }
            }
            Err(error) => return Err(error),
        }
        // Without a copy: nobody else holds it any more.
        head = Vec::from(part);
        wanted = wanted.saturating_mul(2);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Gguf, GgufWriter};
    use outboard_core::DType;

    const DATA: usize = 4000;

    /// A file with a head of some bytes more than `text`, and one tensor.
    fn file(text: usize) -> Vec<u8> {
        let mut writer = GgufWriter::new();
        writer.text("text", &"x".repeat(text));
        writer.tensor("a", DType::F32, &[DATA / 4], &[7; DATA]).unwrap();
        writer.finish().unwrap()
    }

    /// Counts the bytes that are read.
    struct Counted<R>(R, u64);

    impl<R: Read> Read for Counted<R> {
        fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
            let n = self.0.read(out)?;
            self.1 += n as u64;
            Ok(n)
        }
    }

    #[test]
    fn heads_of_all_lengths_are_read_and_not_much_more() {
        for text in [0, FIRST_READ - 200, FIRST_READ, 3 * FIRST_READ, 10 * FIRST_READ] {
            let bytes = file(text);
            let expected = Gguf::parse(bytes.clone().into()).unwrap().tensors().to_vec();
            // Tensors may be followed by anything.
            let mut long = Counted(bytes.chain(std::io::repeat(0)), 0);
            assert_eq!(read_tensors(&mut long, 1 << 40), Ok(expected.clone()), "{text}");
            assert!(long.1 <= (2 * (text + FIRST_READ)) as u64, "{} for {text}", long.1);
            assert_eq!(read_tensors(&bytes[..], bytes.len() as u64), Ok(expected), "{text}");
        }
    }

    #[test]
    fn files_that_are_cut_are_errors() {
        let bytes = file(2 * FIRST_READ);
        let len = bytes.len() as u64;
        for cut in [0, 3, 10, 1000, FIRST_READ, FIRST_READ + 1, bytes.len() - DATA - 50] {
            let before = read_tensors(&bytes[..cut], cut as u64);
            assert!(before.is_err(), "{cut}");
            // While it is read.
            assert_eq!(read_tensors(&bytes[..cut], len), before);
        }
        let last = bytes.len() - 1;
        assert!(matches!(read_tensors(&bytes[..last], last as u64), Err(GgufError::Truncated { .. })));
        struct Broken;
        impl Read for Broken {
            fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
                Err(std::io::Error::other("the disk is broken"))
            }
        }
        assert_eq!(read_tensors(Broken, 100).unwrap_err().to_string(), "cannot be read: the disk is broken");
    }

    #[test]
    fn a_head_without_end_is_an_error() {
        let mut bytes = file(0);
        let text = bytes.windows(4).position(|w| w == b"text").unwrap();
        bytes.truncate(text + 4);
        // An array of a billion bytes.
        bytes.extend(9u32.to_le_bytes());
        bytes.extend(0u32.to_le_bytes());
        bytes.extend((1u64 << 30).to_le_bytes());
        let mut endless = Counted(bytes.chain(std::io::repeat(0)), 0);
        let e = read_tensors(&mut endless, 1 << 40).unwrap_err().to_string();
        assert!(e.contains("its head has more than"), "{e}");
        assert_eq!(endless.1, MAX_HEAD as u64);
    }
}
