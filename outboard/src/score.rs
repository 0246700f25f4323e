//! How probable the tokens of a given text are.

use crate::error::Result;
use crate::input::Input;
use crate::model::Model;
use crate::pending::PendingResult;
use outboard_llm::Scores;
use std::sync::Arc;

/// Probabilities that are being computed.
pub type PendingScores = PendingResult<Scores>;

/// A text of whose tokens it is asked how probable they are.
#[derive(Clone, Debug)]
pub struct ScoreRequest {
    input: Input,
    top: usize,
    cache_salt: Option<Arc<str>>,
}

impl ScoreRequest {
    /// Of a text, with the token before it that the model's texts begin with.
    pub fn new(text: impl Into<String>) -> ScoreRequest {
        ScoreRequest::of(Input::Text(text.into()))
    }

    /// Of tokens.
    pub fn tokens(tokens: impl Into<Vec<u32>>) -> ScoreRequest {
        ScoreRequest::of(Input::Tokens(tokens.into()))
    }

    fn of(input: Input) -> ScoreRequest {
        ScoreRequest { input, top: 0, cache_salt: None }
    }

    /// Asks for so many of the most probable tokens in the place of each as well, at most [`N_TOP`](crate::llm::N_TOP).
    #[must_use]
    pub fn top(mut self, tokens: usize) -> ScoreRequest {
        self.top = tokens;
        self
    }

    /// Has it share beginnings in the cache only with those of the same salt.
    #[must_use]
    pub fn cache_salt(mut self, salt: Option<Arc<str>>) -> ScoreRequest {
        self.cache_salt = salt;
        self
    }

    /// In the model's tokens.
    pub(crate) fn encode(self, model: &Model) -> Result<outboard_llm::ScoreRequest> {
        let tokens = match self.input {
            Input::Text(text) => model.encode(&text)?,
            Input::Tokens(tokens) => tokens,
        };
        Ok(outboard_llm::ScoreRequest { tokens, top: self.top, cache_salt: self.cache_salt })
    }
}

impl From<&str> for ScoreRequest {
    fn from(text: &str) -> ScoreRequest {
        ScoreRequest::new(text)
    }
}

impl From<String> for ScoreRequest {
    fn from(text: String) -> ScoreRequest {
        ScoreRequest::new(text)
    }
}
