//! Tokens that are found in a text before anything else: control tokens such as `<|im_start|>`, where they may be
//! written in a text, and those that a model's author added.

use super::{SpecialText, TokenKind};
use crate::error::{Error, Result};
use crate::gguf::Texts;
use aho_corasick::AhoCorasick;
use std::ops::Range;

/// A part of a text.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Fragment {
    /// To be cut into tokens.
    Text(Range<usize>),
    /// A token already.
    Token(u32),
}

/// The special tokens of a vocabulary.
#[derive(Debug)]
pub(super) struct Specials {
    /// Longer ones first.
    tokens: Vec<Special>,
    finder: AhoCorasick,
}

#[derive(Debug)]
struct Special {
    id: u32,
    text: String,
    kind: TokenKind,
}

impl Specials {
    /// `tokens`: their ids and kinds.
    pub(super) fn new(texts: &Texts, tokens: impl Iterator<Item = (u32, TokenKind)>) -> Result<Specials> {
        let mut tokens: Vec<Special> = tokens
            .filter_map(|(id, kind)| {
                let text = std::str::from_utf8(texts.get(id as usize)?).ok()?.to_owned();
                (!text.is_empty()).then_some(Special { id, text, kind })
            })
            .collect();
        tokens.sort_by_key(|t| std::cmp::Reverse(t.text.len()));
        let finder = AhoCorasick::new(tokens.iter().map(|t| t.text.as_bytes()))
            .map_err(|e| Error::Model(format!("special tokens: {e}")))?;
        Ok(Specials { tokens, finder })
    }

    /// Cuts a text at special tokens: first at all places of the longest, then what is left at those of the next. Tokens that a model's
    /// author added are always found, control tokens only where they are parsed.
    pub(super) fn partition(&self, text: &str, parse: SpecialText) -> Vec<Fragment> {
        let mut fragments = vec![Fragment::Text(0..text.len())];
        for special in self.present(text) {
            if parse == SpecialText::Parse || special.kind == TokenKind::UserDefined {
                fragments = cut(text, fragments, special);
            }
        }
        fragments.retain(|f| !matches!(f, Fragment::Text(range) if range.is_empty()));
        fragments
    }

    /// The tokens, of often thousands, that are in a text at all: one pass over it tells. Longer ones first.
    fn present(&self, text: &str) -> impl Iterator<Item = &Special> {
        let mut present: Vec<usize> = Vec::new();
        let mut seen = vec![false; self.tokens.len()];
        for found in self.finder.find_overlapping_iter(text) {
            let i = found.pattern().as_usize();
            if let Some(seen) = seen.get_mut(i)
                && !std::mem::replace(seen, true)
            {
                present.push(i);
            }
        }
        present.sort_unstable();
        present.into_iter().filter_map(|i| self.tokens.get(i))
    }
}

/// Cuts what is still text at all places of a token.
fn cut(text: &str, fragments: Vec<Fragment>, special: &Special) -> Vec<Fragment> {
    let mut out = Vec::with_capacity(fragments.len() + 2);
    for fragment in fragments {
        let Fragment::Text(range) = fragment else {
            out.push(fragment);
            continue;
        };
        let mut at = range.start;
        while let Some(found) = text.get(at..range.end).and_then(|t| t.find(&special.text)) {
            if found > 0 {
                out.push(Fragment::Text(at..at + found));
            }
            out.push(Fragment::Token(special.id));
            at += found + special.text.len();
        }
        if at < range.end {
            out.push(Fragment::Text(at..range.end));
        }
    }
    out
}
