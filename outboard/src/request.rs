//! What to generate.

use crate::error::Result;
use crate::model::Model;
use outboard_core::op::{Penalties, Sampler};
use outboard_llm::chat::Message;
use outboard_llm::{Constraint, GenerateOptions, LogProbs, Reuse, TextRequest};
use std::sync::Arc;

/// A text to generate. Without more being said it takes the most probable token each time, until the model ends the text or the context is full.
#[derive(Clone, Debug)]
pub struct Request {
    prompt: Prompt,
    options: GenerateOptions,
}

#[derive(Clone, Debug)]
enum Prompt {
    Text(String),
    Tokens(Vec<u32>),
    Chat(Vec<Message>),
}

impl Request {
    /// Goes on from a text.
    pub fn new(prompt: impl Into<String>) -> Request {
        Request::of(Prompt::Text(prompt.into()))
    }

    /// Answers the last message of a chat.
    pub fn chat(messages: impl IntoIterator<Item = Message>) -> Request {
        Request::of(Prompt::Chat(messages.into_iter().collect()))
    }

    /// Goes on from tokens.
    pub fn tokens(tokens: impl Into<Vec<u32>>) -> Request {
        Request::of(Prompt::Tokens(tokens.into()))
    }

    fn of(prompt: Prompt) -> Request {
        Request { prompt, options: GenerateOptions::default() }
    }

    /// Most tokens.
    #[must_use]
    pub fn max_tokens(mut self, most: usize) -> Request {
        self.options.n_predict = Some(most);
        self
    }

    /// How tokens are chosen. The same seed gives the same text, whatever is generated beside it, unless it uses what others have generated
    /// ([`Request::reuse`]).
    #[must_use]
    pub fn sampler(mut self, sampler: Sampler) -> Request {
        self.options.sampler = sampler;
        self
    }

    /// Makes tokens less probable that were used a short while ago.
    #[must_use]
    pub fn penalties(mut self, penalties: Penalties) -> Request {
        self.options.penalties = Some(penalties);
        self
    }

    /// A string that ends the text, and is not part of it. There may be several.
    #[must_use]
    pub fn stop(mut self, stop: impl Into<String>) -> Request {
        self.options.stop.push(stop.into());
        self
    }

    /// Goes on behind tokens that end a text.
    #[must_use]
    pub fn ignore_eos(mut self) -> Request {
        self.options.ignore_eos = true;
        self
    }

    /// Gives the log-probability of each token as well.
    #[must_use]
    pub fn log_probs(mut self) -> Request {
        self.options.log_probs = self.options.log_probs.max(LogProbs::Chosen);
        self
    }

    /// Gives the log-probabilities of the [`N_TOP`](outboard_llm::N_TOP) most probable tokens in the place of each token, and its own, as well.
    #[must_use]
    pub fn top_log_probs(mut self) -> Request {
        self.options.log_probs = LogProbs::Top;
        self
    }

    /// Adds numbers to the logits of each token, one for each of the vocabulary; minus infinity excludes a token. They go to the device with the logits
    /// at every token.
    #[must_use]
    pub fn bias(mut self, bias: impl Into<Arc<[f32]>>) -> Request {
        self.options.bias = Some(bias.into());
        self
    }

    /// Makes control tokens a part of the text, as the vocabulary writes them: those by which a model says what it writes, such as a call of a tool.
    /// Without more being said they stand for nothing.
    #[must_use]
    pub fn show(mut self, tokens: impl Into<Arc<[u32]>>) -> Request {
        self.options.shown = tokens.into();
        self
    }

    /// Has the text have a form: see [`Model::constraint`]. It waits for this process after each of its tokens, which other texts do not.
    #[must_use]
    pub fn constraint(mut self, constraint: Constraint) -> Request {
        self.options.constraint = Some(constraint);
        self
    }

    /// What others have in the cache that the text may begin with.
    #[must_use]
    pub fn reuse(mut self, reuse: Reuse) -> Request {
        self.options.reuse = reuse;
        self
    }

    /// Has the text share beginnings in the cache only with those of the same salt. Otherwise [`Generation::cached`](outboard_llm::Generation::cached)
    /// says whether anybody has had its beginning.
    #[must_use]
    pub fn cache_salt(mut self, salt: Option<Arc<str>>) -> Request {
        self.options.cache_salt = salt;
        self
    }

    /// In the model's tokens.
    pub(crate) fn encode(self, model: &Model) -> Result<TextRequest> {
        let prompt = match self.prompt {
            Prompt::Text(text) => model.encode(&text)?,
            Prompt::Chat(messages) => model.encode(&model.chat(&messages)?)?,
            Prompt::Tokens(tokens) => tokens,
        };
        Ok(TextRequest { prompt, options: self.options })
    }
}

impl From<&str> for Request {
    fn from(prompt: &str) -> Request {
        Request::new(prompt)
    }
}

impl From<String> for Request {
    fn from(prompt: String) -> Request {
        Request::new(prompt)
    }
}
