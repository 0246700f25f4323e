//! A model's tokens as llguidance knows them, and forms that are compiled for them.

use super::form::{Form, MOST_FORM_BYTES};
use super::token_set::TokenSet;
use super::{Constraint, Matched, said};
use crate::error::{Error, Result};
use crate::tokenizer::{SpecialTokens, TokenKind, Tokenizer};
use llguidance::api::ParserLimits;
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, SimpleVob, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};
use std::fmt;
use std::sync::Arc;

/// Stack of the thread that compiles a form: a deep one recurses. Of what is not used there is no memory.
const STACK: usize = 256 << 20;
/// Bytes of a token that forms are told of, and nodes of the tree of all tokens: llguidance has numbers of so many bits.
const MOST_TOKEN_BYTES: usize = 1000;
const MOST_NODES: usize = (1 << 22) - 1;

/// A model's tokens, as forms need them. Made once for a model: it takes a second and some dozens of MiB for a large vocabulary.
pub struct Vocabulary {
    factory: ParserFactory,
    /// Tokens of the tokenizer.
    pub(super) len: usize,
}

impl fmt::Debug for Vocabulary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Vocabulary").field("len", &self.len).finish_non_exhaustive()
    }
}

impl Vocabulary {
    /// Of a tokenizer.
    pub fn new(tokenizer: &Tokenizer) -> Result<Vocabulary> {
        let len = tokenizer.n_vocab();
        let mut words: Vec<Vec<u8>> = (0..len as u32).map(|id| word(tokenizer, id)).collect();
        let mut ends: Vec<u32> = (0..len as u32).filter(|&id| tokenizer.is_eog(id)).collect();
        if ends.is_empty() {
            // One that no model gives: what ends with it has ended before.
            ends.push(len as u32);
            words.push(marked(b"<end>"));
        }
        // The likeliest first.
        let eos = tokenizer.eot().or(tokenizer.eos()).filter(|id| ends.contains(id)).unwrap_or(ends[0]);
        check_nodes(&words)?;
        let trie = TokTrie::from(&TokRxInfo::new(words.len() as u32, eos), &words).with_eos_tokens(&ends);
        let tokens: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let slices = SlicedBiasComputer::general_slices();
        let factory = ParserFactory::new(&tokens, InferenceCapabilities::default(), &slices);
        let mut factory =
            factory.map_err(|e| Error::Model(format!("its vocabulary is of no use for forms: {}", said(&e))))?;
        factory.quiet();
        *factory.limits_mut() = ParserLimits {
            // 40 MiB.
            max_lexer_states: 30_000,
            max_grammar_size: 200_000,
            // An ambiguous grammar has many readings of each byte.
            max_items_in_row: 500,
            step_max_items: 20_000,
            verbose_errors: false,
            ..ParserLimits::default()
        };
        Ok(Vocabulary { factory, len })
    }

    /// Compiles a form, which may take long: up to seconds for a large one. Fails with [`Error::Request`], which says what is wrong with it.
    pub fn constraint(self: &Arc<Self>, form: &Form) -> Result<Constraint> {
        let wrong = |why: &str| Error::Request(format!("the {} cannot be used: {why}", form.kind()));
        if form.len() > MOST_FORM_BYTES {
            return Err(wrong(&format!("it has {} bytes, and {MOST_FORM_BYTES} are the most", form.len())));
        }
        let compile = || -> std::result::Result<(Matcher, SimpleVob), String> {
            let parser = self.factory.create_parser(form.grammar()?);
            let mut matcher = Matcher::new(Ok(parser.map_err(|e| form.said(&e))?));
            let first = matcher.compute_mask_or_eos().map_err(|e| form.said(&e))?;
            Ok((matcher, first))
        };
        let compiled = std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name("outboard-form".into()).stack_size(STACK);
            let thread = thread.spawn_scoped(scope, compile);
            let thread = thread.map_err(|e| wrong(&format!("there is no thread to compile it: {e}")))?;
            thread
                .join()
                .map_err(|_| wrong("it could not be compiled"))
                .and_then(|done| done.map_err(|why| wrong(&why)))
        });
        let (matcher, first) = compiled?;
        let first = self.allowed(&first);
        if first.is_empty() {
            return Err(wrong("only an empty text is of it"));
        }
        let text = Matched { vocabulary: self.clone(), matcher, first };
        Ok(Constraint::new(self.len, move || Box::new(text.clone())))
    }

    /// The tokens of a set that are the model's.
    pub(super) fn allowed(&self, set: &SimpleVob) -> TokenSet {
        TokenSet::of_more_words(self.len, set.as_slice().to_vec())
    }
}

/// What stands for a token in grammars: its bytes, or its name with a mark if it has a meaning in place of a text; nothing if it is not to be
/// generated.
fn word(tokenizer: &Tokenizer, id: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    let is_control =
        matches!(tokenizer.kind(id), Some(TokenKind::Control | TokenKind::Unknown)) || tokenizer.is_eog(id);
    if is_control {
        bytes = marked(tokenizer.token_text(id).unwrap_or_default());
    } else {
        tokenizer.token_bytes(id, SpecialTokens::Skip, &mut bytes);
    }
    if bytes.len() > MOST_TOKEN_BYTES { Vec::new() } else { bytes }
}

fn marked(name: &[u8]) -> Vec<u8> {
    [&[TokTrie::SPECIAL_TOKEN_MARKER], name].concat()
}

/// Whether the tree of all tokens has few enough nodes.
fn check_nodes(words: &[Vec<u8>]) -> Result<()> {
    let mut sorted: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
    sorted.sort_unstable();
    let in_common = |a: &[u8], b: &[u8]| a.iter().zip(b).take_while(|(a, b)| a == b).count();
    // Those that are equal have a node each.
    let new = |pair: &[&[u8]]| (pair[1].len() - in_common(pair[0], pair[1])).max(1);
    let nodes = sorted.windows(2).map(new).sum::<usize>() + sorted.first().map_or(0, |first| first.len());
    if nodes > MOST_NODES {
        return Err(Error::Model(format!(
            "its vocabulary is too large for forms: {nodes} nodes, {MOST_NODES} are the most"
        )));
    }
    Ok(())
}
