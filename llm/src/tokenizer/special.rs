//! Tokens that are found in a text before anything else: control tokens such as `<|im_start|>`, where they may be
//! written in a text, and those that a model's author added.

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
    /// Only found where the caller says that special tokens may be in the text.
    control: bool,
}

impl Specials {
    /// `tokens`: ids and whether they are control tokens.
    pub(super) fn new(texts: &Texts, tokens: impl Iterator<Item = (u32, bool)>) -> Result<Specials> {
        let mut tokens: Vec<Special> = tokens
            .filter_map(|(id, control)| {
                let text = std::str::from_utf8(texts.get(id as usize)?).ok()?.to_owned();
                (!text.is_empty()).then_some(Special { id, text, control })
            })
            .collect();
        tokens.sort_by_key(|t| std::cmp::Reverse(t.text.len()));
        let finder = AhoCorasick::new(tokens.iter().map(|t| t.text.as_bytes()))
            .map_err(|e| Error::Model(format!("special tokens: {e}")))?;
        Ok(Specials { tokens, finder })
    }

    /// Cuts a text at special tokens: first at all places of the longest, then what is left at those of the next.
    pub(super) fn partition(&self, text: &str, parse_control: bool) -> Vec<Fragment> {
        // One pass over the text tells which of the tokens, often thousands, are in it at all.
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
        let mut fragments = vec![Fragment::Text(0..text.len())];
        for special in present.into_iter().filter_map(|i| self.tokens.get(i)) {
            if special.control && !parse_control {
                continue;
            }
            let mut next = Vec::with_capacity(fragments.len() + 2);
            for fragment in fragments {
                let Fragment::Text(range) = fragment else {
                    next.push(fragment);
                    continue;
                };
                let mut at = range.start;
                while let Some(found) = text.get(at..range.end).and_then(|t| t.find(&special.text)) {
                    if found > 0 {
                        next.push(Fragment::Text(at..at + found));
                    }
                    next.push(Fragment::Token(special.id));
                    at += found + special.text.len();
                }
                if at < range.end {
                    next.push(Fragment::Text(at..range.end));
                }
            }
            fragments = next;
        }
        fragments.retain(|f| !matches!(f, Fragment::Text(range) if range.is_empty()));
        fragments
    }
}
