//! The `llama` model of GGUF: SentencePiece's BPE. Starting from characters, the neighbours whose join is the token with
//! the highest score are joined until there are none; what is not in the vocabulary becomes bytes. It is neither the
//! unigram model nor merges by rank that libraries have.

use crate::error::{Error, Result};
use crate::gguf::{Gguf, Texts};
use bytes::Bytes;
use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap};

/// What stands for a space in the vocabulary (U+2581).
pub(super) const SPACE: &str = "\u{2581}";

/// A SentencePiece tokenizer of one file.
#[derive(Debug)]
pub(super) struct Spm {
    ids: HashMap<Bytes, u32>,
    scores: Vec<f32>,
    bytes: Vec<Option<u32>>,
    unknown: Option<u32>,
}

/// A part of the text that may be joined with its neighbours.
struct Symbol {
    start: usize,
    len: usize,
    previous: Option<usize>,
    next: Option<usize>,
}

/// Two neighbours whose join is a token.
struct Pair {
    score: f32,
    left: usize,
    right: usize,
    /// Bytes of both when the pair was found: one of them may have been joined with another since.
    len: usize,
}

impl Ord for Pair {
    fn cmp(&self, other: &Self) -> Ordering {
        self.score.total_cmp(&other.score).then(other.left.cmp(&self.left))
    }
}

impl PartialOrd for Pair {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Pair {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Pair {}

impl Spm {
    pub(super) fn new(gguf: &Gguf, texts: &Texts, unknown: Option<u32>) -> Result<Spm> {
        let scores = gguf.get("tokenizer.ggml.scores").and_then(|v| v.as_array()).and_then(|a| a.values());
        let scores = scores.ok_or_else(|| Error::Model("tokenizer.ggml.scores is missing".into()))?;
        let scores: Vec<f32> = scores.map(|v| v.as_f64().unwrap_or(0.0) as f32).collect();
        if scores.len() < texts.len() {
            return Err(Error::Model(format!("{} tokens but {} scores", texts.len(), scores.len())));
        }
        let mut ids = HashMap::with_capacity(texts.len());
        for id in 0..texts.len() {
            if let Some(text) = texts.slice(id).filter(|t| !t.is_empty()) {
                ids.entry(text).or_insert(id as u32);
            }
        }
        let byte = |b: u8| ids.get(format!("<0x{b:02X}>").as_bytes()).or_else(|| ids.get(&[b][..])).copied();
        let bytes = (0..=255).map(byte).collect();
        Ok(Spm { ids, scores, bytes, unknown })
    }

    /// Appends the tokens of a text in which spaces have been replaced already.
    pub(super) fn encode(&self, text: &str, out: &mut Vec<u32>) {
        let n = text.chars().count();
        let mut symbols: Vec<Symbol> = text
            .char_indices()
            .enumerate()
            .map(|(i, (start, c))| Symbol {
                start,
                len: c.len_utf8(),
                previous: i.checked_sub(1),
                next: Some(i + 1).filter(|&next| next < n),
            })
            .collect();
        let mut pairs = BinaryHeap::new();
        for right in 1..n {
            pairs.extend(self.pair(text, &symbols, Some(right - 1), Some(right)));
        }
        while let Some(pair) = pairs.pop() {
            let (left, right) = (&symbols[pair.left], &symbols[pair.right]);
            if left.len == 0 || right.len == 0 || left.len + right.len != pair.len {
                continue;
            }
            let next = right.next;
            symbols[pair.right].len = 0;
            symbols[pair.left].len = pair.len;
            symbols[pair.left].next = next;
            if let Some(next) = next {
                symbols[next].previous = Some(pair.left);
            }
            pairs.extend(self.pair(text, &symbols, symbols[pair.left].previous, Some(pair.left)));
            pairs.extend(self.pair(text, &symbols, Some(pair.left), next));
        }
        for s in symbols.iter().filter(|s| s.len > 0) {
            let bytes = &text.as_bytes()[s.start..s.start + s.len];
            match self.ids.get(bytes) {
                Some(&id) => out.push(id),
                None => out.extend(bytes.iter().filter_map(|&b| self.bytes[usize::from(b)].or(self.unknown))),
            }
        }
    }

    fn pair(&self, text: &str, symbols: &[Symbol], left: Option<usize>, right: Option<usize>) -> Option<Pair> {
        let (left, right) = (left?, right?);
        let start = symbols[left].start;
        let len = symbols[left].len + symbols[right].len;
        let id = *self.ids.get(text.as_bytes().get(start..start + len)?)?;
        Some(Pair { score: *self.scores.get(id as usize)?, left, right, len })
    }
}

/// The bytes that a token's text stands for.
pub(super) fn decode(text: &[u8], out: &mut Vec<u8>) {
    let mut rest = text;
    while let Some(at) = rest.windows(SPACE.len()).position(|w| w == SPACE.as_bytes()) {
        out.extend(&rest[..at]);
        out.push(b' ');
        rest = &rest[at + SPACE.len()..];
    }
    out.extend(rest);
}

/// The byte that a byte token such as `<0x0A>` stands for.
pub(super) fn byte_of(text: &[u8]) -> Option<u8> {
    let digits = std::str::from_utf8(text.strip_prefix(b"<0x")?.strip_suffix(b">")?).ok()?;
    u8::from_str_radix(digits, 16).ok().filter(|_| digits.len() == 2)
}
