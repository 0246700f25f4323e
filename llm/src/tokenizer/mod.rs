//! Tokenizers from GGUF metadata: text to token ids and back.
//!
//! Two models are known, as `tokenizer.ggml.model` calls them: `gpt2`, byte-level byte-pair encoding, and `llama`,
//! SentencePiece's. Results are those of llama.cpp, token for token.

mod bpe;
mod pre;
mod special;
mod spm;
mod stream;
mod vocab;

pub use stream::TextStream;
pub use vocab::TokenKind;

use crate::error::{Error, Result};
use crate::gguf::{Gguf, shown};
use special::{Fragment, Specials};
use std::hash::{DefaultHasher, Hash, Hasher};
use vocab::Tokens;

/// What control tokens that are written in a text become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpecialText {
    /// Those tokens.
    Parse,
    /// Text like any other, which is what texts from strangers need.
    Literal,
}

/// Whether a model's BOS token comes before a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bos {
    /// If the model wants one.
    Add,
    /// Never.
    Omit,
}

/// What control tokens stand for in a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpecialTokens {
    /// Themselves, as the vocabulary writes them.
    Show,
    /// Nothing.
    Skip,
}

/// A tokenizer of one model.
#[derive(Debug)]
pub struct Tokenizer {
    tokens: Tokens,
    specials: Specials,
    model: Model,
    add_bos: bool,
    add_eos: bool,
    add_space_prefix: bool,
}

#[derive(Debug)]
enum Model {
    Bpe(Box<bpe::Bpe>),
    Spm(spm::Spm),
}

impl Tokenizer {
    /// Reads the vocabulary of a file.
    pub fn from_gguf(gguf: &Gguf) -> Result<Tokenizer> {
        let no_tokenizer = || Error::Model("the file has no tokenizer (tokenizer.ggml.model)".into());
        let model = gguf.str("tokenizer.ggml.model").ok_or_else(no_tokenizer)?;
        let (tokens, model, add_bos) = match model {
            "gpt2" => {
                let family = pre::by_name(gguf.str("tokenizer.ggml.pre").unwrap_or("default"))?;
                let tokens = Tokens::read(gguf, [None; 3])?;
                let model = bpe::Bpe::new(gguf, &tokens.texts, family)?;
                (tokens, Model::Bpe(Box::new(model)), family.add_bos)
            }
            "llama" => {
                let tokens = Tokens::read(gguf, [Some(1), Some(2), Some(0)])?;
                let model = spm::Spm::new(gguf, &tokens.texts, tokens.unknown)?;
                (tokens, Model::Spm(model), true)
            }
            other => {
                return Err(Error::Model(format!(
                    "tokenizer.ggml.model \"{}\" is not supported (supported: gpt2, llama)",
                    shown(other)
                )));
            }
        };
        let specials = Specials::new(&tokens.texts, tokens.specials())?;
        let add_bos = gguf.bool("tokenizer.ggml.add_bos_token").unwrap_or(add_bos) && tokens.bos.is_some();
        let is_spm = matches!(model, Model::Spm(_));
        let add_space_prefix = gguf.bool("tokenizer.ggml.add_space_prefix").unwrap_or(is_spm) && is_spm;
        let add_eos = gguf.bool("tokenizer.ggml.add_eos_token").unwrap_or(false);
        Ok(Tokenizer { tokens, specials, model, add_bos, add_eos, add_space_prefix })
    }

    /// Tokens of a text. The only error is a text that cannot be cut into words (a run of a million spaces).
    pub fn encode(&self, text: &str, special: SpecialText, bos: Bos) -> Result<Vec<u32>> {
        let mut out = Vec::with_capacity(text.len() / 3 + 2);
        if bos == Bos::Add && self.add_bos {
            out.extend(self.tokens.bos);
        }
        let mut after_special = true;
        for fragment in self.specials.partition(text, special) {
            let range = match fragment {
                Fragment::Token(id) => {
                    out.push(id);
                    after_special = true;
                    continue;
                }
                Fragment::Text(range) => range,
            };
            let part = text.get(range).unwrap_or_default();
            match &self.model {
                Model::Bpe(bpe) => bpe.encode(part, &mut out)?,
                Model::Spm(spm) => {
                    let prefix = if self.add_space_prefix && after_special { spm::SPACE } else { "" };
                    spm.encode(&format!("{prefix}{}", part.replace(' ', spm::SPACE)), &mut out);
                }
            }
            after_special = false;
        }
        Ok(out)
    }

    /// Tokens of a text to be embedded: between those that begin and end one, where the model wants them.
    pub fn encode_whole(&self, text: &str, special: SpecialText) -> Result<Vec<u32>> {
        let mut out = self.encode(text, special, Bos::Add)?;
        out.extend(self.tokens.eos.filter(|_| self.add_eos));
        Ok(out)
    }

    /// Appends the bytes that a token stands for; an id outside the vocabulary stands for none. A character may be spread over
    /// several tokens: [`TextStream`] puts them together.
    pub fn token_bytes(&self, id: u32, special: SpecialTokens, out: &mut Vec<u8>) {
        let (Some(kind), Some(text)) = (self.tokens.kind(id), self.token_text(id)) else { return };
        match (kind, &self.model) {
            (TokenKind::Control | TokenKind::Unknown, _) if special == SpecialTokens::Show => {
                out.extend(text);
            }
            (TokenKind::Control | TokenKind::Unknown | TokenKind::Unused, _) => {}
            (TokenKind::UserDefined, _) => out.extend(text),
            (TokenKind::Byte, Model::Spm(_)) => out.extend(spm::byte_of(text)),
            (_, Model::Bpe(_)) => bpe::decode(text, out),
            (_, Model::Spm(_)) => spm::decode(text, out),
        }
    }

    /// The text of some tokens; bytes that are not UTF-8 become U+FFFD.
    pub fn decode(&self, ids: &[u32], special: SpecialTokens) -> String {
        let mut bytes = Vec::new();
        ids.iter().for_each(|&id| self.token_bytes(id, special, &mut bytes));
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// A token as it is written in the vocabulary.
    pub fn token_text(&self, id: u32) -> Option<&[u8]> {
        self.tokens.texts.get(id as usize)
    }

    /// What a token is.
    pub fn kind(&self, id: u32) -> Option<TokenKind> {
        self.tokens.kind(id)
    }

    /// Number of tokens.
    pub fn n_vocab(&self) -> usize {
        self.tokens.texts.len()
    }

    /// A number that two tokenizers of one program have in common if their tokens are the same.
    pub fn digest(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        matches!(self.model, Model::Bpe(_)).hash(&mut hasher);
        for id in 0..self.n_vocab() as u32 {
            (self.token_text(id), self.kind(id), self.is_eog(id)).hash(&mut hasher);
        }
        (self.eos(), self.eot()).hash(&mut hasher);
        hasher.finish()
    }

    /// The token that begins a text.
    pub fn bos(&self) -> Option<u32> {
        self.tokens.bos
    }

    /// Whether the model wants BOS before a text.
    pub fn adds_bos(&self) -> bool {
        self.add_bos
    }

    /// The token that ends a text.
    pub fn eos(&self) -> Option<u32> {
        self.tokens.eos
    }

    /// The token that ends a turn of a chat.
    pub fn eot(&self) -> Option<u32> {
        self.tokens.eot
    }

    /// Whether generation ends with this token.
    pub fn is_eog(&self, id: u32) -> bool {
        self.tokens.is_eog(id)
    }
}

#[cfg(test)]
mod tests;
