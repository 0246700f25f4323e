//! The tokens of a vocabulary: texts, kinds, and which ones have a meaning.

use crate::error::{Error, Result};
use crate::gguf::{Gguf, Texts};
use std::collections::{BTreeSet, HashMap};

/// Most tokens of a vocabulary: the largest in use have 262144.
pub(super) const MAX_VOCAB: usize = 1 << 22;

/// What a token is (`tokenizer.ggml.token_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TokenKind {
    /// A piece of text.
    Normal,
    /// Stands for what is not in the vocabulary.
    Unknown,
    /// Has a meaning instead of a text.
    Control,
    /// A text that is never cut.
    UserDefined,
    /// Not used by the model.
    Unused,
    /// A single byte.
    Byte,
}

/// Texts that end a generation wherever a vocabulary has them: files name one such token at most, but chat models have
/// several. As in llama.cpp.
const END_OF_GENERATION: &[&str] = &[
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    // Padding, repository and file separators of code models: what follows is another text.
    "<|fim_pad|>",
    "<fim-pad>",
    "<fim_pad>",
    "<|fim_repo|>",
    "<|repo_name|>",
    "<fim-repo>",
    "<reponame>",
    "<|file_sep|>",
];

/// Texts of control tokens that some files declare as something else.
const ALSO_CONTROL: &[&str] = &[
    "<|fim_prefix|>",
    "<fim-prefix>",
    "<fim_prefix>",
    "<|fim_suffix|>",
    "<fim-suffix>",
    "<fim_suffix>",
    "<|fim_middle|>",
    "<fim-middle>",
    "<fim_middle>",
];

/// Texts that end a turn of a chat, the likeliest first.
const END_OF_TURN: &[&str] =
    &["<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<end_of_utterance>", "[EOT]", "<EOT>", "_<EOT>"];

/// The tokens of a file.
#[derive(Debug)]
pub(super) struct Tokens {
    pub(super) texts: Texts,
    kinds: Vec<TokenKind>,
    pub(super) bos: Option<u32>,
    pub(super) eos: Option<u32>,
    pub(super) eot: Option<u32>,
    pub(super) unknown: Option<u32>,
    end_of_generation: BTreeSet<u32>,
}

impl Tokens {
    /// Reads a vocabulary. `defaults` are the ids of BOS, EOS and "unknown" where the file does not say.
    pub(super) fn read(gguf: &Gguf, defaults: [Option<u32>; 3]) -> Result<Tokens> {
        let texts = gguf.get("tokenizer.ggml.tokens").and_then(|v| v.as_array()).and_then(|a| a.indexed_texts());
        let texts = texts.ok_or_else(|| Error::Model("the file has no vocabulary (tokenizer.ggml.tokens)".into()))?;
        if texts.is_empty() || texts.len() > MAX_VOCAB {
            return Err(Error::Model(format!(
                "a vocabulary of {} tokens (1 to {MAX_VOCAB} are possible)",
                texts.len()
            )));
        }
        let mut kinds = read_kinds(gguf, texts.len());
        let id = |key: &str, default: Option<u32>| {
            let valid = |id: &u32| (*id as usize) < texts.len();
            let given = gguf.u64(&format!("tokenizer.ggml.{key}_token_id")).and_then(|v| u32::try_from(v).ok());
            given.filter(valid).or(default.filter(valid))
        };
        let [bos, eos, unknown] = defaults;
        let (bos, eos, unknown) = (id("bos", bos), id("eos", eos), id("unknown", unknown));
        let (eot, eom) = (id("eot", None), id("eom", None));
        let mut named: HashMap<&[u8], u32> = HashMap::new();
        for (id, text) in texts.iter().enumerate() {
            // All names with a meaning are bracketed in some way, which spares looking at every word.
            if matches!(text.first(), Some(b'<' | b'[' | b'_')) {
                named.entry(text).or_insert(id as u32);
            }
        }
        let find = |text: &str| named.get(text.as_bytes()).copied();
        let eot = eot.or_else(|| END_OF_TURN.iter().find_map(|t| find(t)));
        let mut ends: BTreeSet<u32> = END_OF_GENERATION.iter().filter_map(|t| find(t)).collect();
        let control = ends.iter().copied().chain(ALSO_CONTROL.iter().filter_map(|t| find(t)));
        for id in control {
            if let Some(kind) = kinds.get_mut(id as usize) {
                *kind = TokenKind::Control;
            }
        }
        // In the "harmony" format <|end|> only ends a message; <|return|> and <|call|> end the answer.
        let harmony = find("<|return|>").is_some() && find("<|call|>").is_some();
        if let Some(end) = find("<|end|>").filter(|_| harmony) {
            ends.remove(&end);
        }
        ends.extend([eos, eot.filter(|_| !harmony), eom].into_iter().flatten());
        drop(named);
        Ok(Tokens { texts, kinds, bos, eos, eot, unknown, end_of_generation: ends })
    }

    pub(super) fn kind(&self, id: u32) -> Option<TokenKind> {
        self.kinds.get(id as usize).copied()
    }

    pub(super) fn is_eog(&self, id: u32) -> bool {
        self.end_of_generation.contains(&id)
    }

    /// The tokens to be found in texts first.
    pub(super) fn specials(&self) -> impl Iterator<Item = (u32, TokenKind)> + '_ {
        let special = |kind| matches!(kind, TokenKind::Control | TokenKind::Unknown | TokenKind::UserDefined);
        (0..).zip(self.kinds.iter().copied()).filter(move |(_, kind)| special(*kind))
    }
}

/// The kinds of `n` tokens, as far as the file says them.
fn read_kinds(gguf: &Gguf, n: usize) -> Vec<TokenKind> {
    let mut kinds = vec![TokenKind::Normal; n];
    if let Some(types) = gguf.get("tokenizer.ggml.token_type").and_then(|v| v.as_array()?.values()) {
        for (kind, value) in kinds.iter_mut().zip(types) {
            *kind = match value.as_u64() {
                Some(2) => TokenKind::Unknown,
                Some(3) => TokenKind::Control,
                Some(4) => TokenKind::UserDefined,
                Some(5) => TokenKind::Unused,
                Some(6) => TokenKind::Byte,
                _ => TokenKind::Normal,
            };
        }
    }
    kinds
}
