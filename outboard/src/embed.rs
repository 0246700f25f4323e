//! Embeddings: a text as one vector.

use crate::error::Result;
use crate::input::Input;
use crate::model::Model;
use crate::pending::PendingResult;
use outboard_llm::tokenizer::SpecialText;
use outboard_llm::{Embedding, Pooling, Scale};
use std::sync::Arc;

/// An embedding that is being computed.
pub type PendingEmbedding = PendingResult<Embedding>;

/// A text to be embedded. Without more being said its rows are pooled as the model's file says, or else the last one is taken, and the vector has length 1.
#[derive(Clone, Debug)]
pub struct EmbedRequest {
    input: Input,
    pooling: Option<Pooling>,
    scale: Scale,
    cache_salt: Option<Arc<str>>,
}

impl EmbedRequest {
    /// Of a text.
    pub fn new(text: impl Into<String>) -> EmbedRequest {
        EmbedRequest::of(Input::Text(text.into()))
    }

    /// Of tokens.
    pub fn tokens(tokens: impl Into<Vec<u32>>) -> EmbedRequest {
        EmbedRequest::of(Input::Tokens(tokens.into()))
    }

    fn of(input: Input) -> EmbedRequest {
        EmbedRequest { input, pooling: None, scale: Scale::default(), cache_salt: None }
    }

    /// Has it share beginnings in the cache only with those of the same salt.
    #[must_use]
    pub fn cache_salt(mut self, salt: Option<Arc<str>>) -> EmbedRequest {
        self.cache_salt = salt;
        self
    }

    /// How its rows become one.
    #[must_use]
    pub fn pooling(mut self, pooling: Pooling) -> EmbedRequest {
        self.pooling = Some(pooling);
        self
    }

    /// How long the vector is.
    #[must_use]
    pub fn scale(mut self, scale: Scale) -> EmbedRequest {
        self.scale = scale;
        self
    }

    /// In the model's tokens.
    pub(crate) fn encode(self, model: &Model) -> Result<outboard_llm::EmbedRequest> {
        let tokens = match self.input {
            Input::Text(text) => model.encode_whole(&text)?,
            Input::Tokens(tokens) => tokens,
        };
        let pooling = self.pooling.unwrap_or(model.pooling());
        Ok(outboard_llm::EmbedRequest { tokens, pooling, scale: self.scale, cache_salt: self.cache_salt })
    }
}

impl From<&str> for EmbedRequest {
    fn from(text: &str) -> EmbedRequest {
        EmbedRequest::new(text)
    }
}

impl From<String> for EmbedRequest {
    fn from(text: String) -> EmbedRequest {
        EmbedRequest::new(text)
    }
}

impl Model {
    /// How rows become an embedding where nothing is said: as its file says, or else the last one is taken.
    pub fn pooling(&self) -> Pooling {
        self.inner().hparams().pooling.unwrap_or(Pooling::Last)
    }

    /// Whether it is for texts. One whose file says how its rows become an embedding is for those alone.
    pub fn writes_text(&self) -> bool {
        self.inner().hparams().pooling.is_none()
    }

    /// The tokens of a text to be embedded: between those that begin and end one, where the model wants them.
    pub fn encode_whole(&self, text: &str) -> Result<Vec<u32>> {
        Ok(self.tokenizer().encode_whole(text, SpecialText::Parse)?)
    }
}
