//! Byte-level byte-pair encoding, the `gpt2` model of GGUF: words by the pre-tokenizer, bytes written as printable
//! characters, then merges by rank (the `tokenizers` crate).

use super::pre::{Family, Splitter};
use crate::error::{Error, Result};
use crate::gguf::{Gguf, Texts};
use std::collections::HashMap;
use std::sync::LazyLock;
use tokenizers::Model;
use tokenizers::models::bpe::{BPE, Vocab};

/// A token that no file can have: the vocabulary may lack some bytes, and the library would join what is left and right
/// of a missing one. This keeps them apart and is dropped from the result.
const MISSING: &str = "\0missing";

/// A byte-level BPE tokenizer of one file.
#[derive(Debug)]
pub(super) struct Bpe {
    model: BPE,
    splitter: Splitter,
    n_vocab: u32,
}

impl Bpe {
    pub(super) fn new(gguf: &Gguf, texts: &Texts, family: &Family) -> Result<Bpe> {
        let mut vocab = Vocab::default();
        let n_vocab = u32::try_from(texts.len()).map_err(|_| Error::Model("the vocabulary is too large".into()))?;
        vocab.reserve(texts.len());
        for (id, text) in (0..n_vocab).zip(texts.iter()) {
            // What is not UTF-8 cannot come out of a text; it can still be written as a token.
            if let Ok(text) = std::str::from_utf8(text)
                && !text.is_empty()
            {
                vocab.entry(text.to_owned()).or_insert(id);
            }
        }
        let merges = gguf.get("tokenizer.ggml.merges").and_then(|v| v.as_array()).and_then(|a| a.texts());
        let merges = merges.ok_or_else(|| Error::Model("tokenizer.ggml.merges is missing".into()))?;
        let mut joined = String::new();
        let merges = merges.filter_map(|merge| {
            // The first character may be a space itself.
            let merge = std::str::from_utf8(merge).ok()?;
            let at = merge.bytes().skip(1).position(|b| b == b' ')? + 1;
            let (left, right) = (merge.get(..at)?, merge.get(at + 1..)?);
            joined.clear();
            joined.push_str(left);
            joined.push_str(right);
            // Merges of what is not in the vocabulary have no effect.
            let known = vocab.contains_key(left) && vocab.contains_key(right) && vocab.contains_key(&joined);
            known.then(|| (left.to_owned(), right.to_owned()))
        });
        let merges: Vec<(String, String)> = merges.collect();
        vocab.insert(MISSING.to_owned(), n_vocab);
        let model = BPE::builder()
            .vocab_and_merges(vocab, merges)
            .unk_token(MISSING.to_owned())
            .ignore_merges(family.ignore_merges)
            .build()
            .map_err(|e| Error::Model(format!("tokenizer: {e}")))?;
        Ok(Bpe { model, splitter: Splitter::new(family)?, n_vocab })
    }

    /// Appends the tokens of a text without special tokens in it.
    pub(super) fn encode(&self, text: &str, out: &mut Vec<u32>) -> Result<()> {
        let mut word = String::new();
        for piece in self.splitter.split(text)? {
            word.clear();
            word.extend(piece.bytes().map(char_of));
            let tokens = self.model.tokenize(&word).map_err(|e| Error::Request(format!("tokenizer: {e}")))?;
            out.extend(tokens.iter().map(|t| t.id).filter(|&id| id < self.n_vocab));
        }
        Ok(())
    }
}

/// The character that stands for a byte in the vocabulary (GPT-2's table): printable Latin-1 characters for themselves,
/// the others in order from U+0100.
pub(super) fn char_of(byte: u8) -> char {
    CHARS[usize::from(byte)]
}

static CHARS: LazyLock<[char; 256]> = LazyLock::new(|| {
    let mut next = 0x100u16;
    std::array::from_fn(|byte| match byte as u8 {
        b @ (0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff) => char::from(b),
        _ => {
            next += 1;
            char::from_u32(u32::from(next - 1)).unwrap_or(char::REPLACEMENT_CHARACTER)
        }
    })
});

static BYTES: LazyLock<HashMap<char, u8>> = LazyLock::new(|| (0..=255).map(|b| (char_of(b), b)).collect());

/// The bytes that a token's text stands for; characters outside the table stand for themselves.
pub(super) fn decode(text: &[u8], out: &mut Vec<u8>) {
    for chunk in text.utf8_chunks() {
        for c in chunk.valid().chars() {
            match BYTES.get(&c) {
                Some(&byte) => out.push(byte),
                None => out.extend(c.encode_utf8(&mut [0; 4]).bytes()),
            }
        }
        out.extend(chunk.invalid());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_as_characters_and_back() {
        assert_eq!((char_of(b' '), char_of(b'\n'), char_of(b'a'), char_of(0xad)), ('Ġ', 'Ċ', 'a', '\u{143}'));
        let all: Vec<u8> = (0..=255).collect();
        let text: String = all.iter().map(|&b| char_of(b)).collect();
        let mut back = Vec::new();
        decode(text.as_bytes(), &mut back);
        assert_eq!(back, all);
        back.clear();
        decode("日".as_bytes(), &mut back);
        assert_eq!(back, "日".as_bytes());
    }
}
