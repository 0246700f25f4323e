//! Texts of a form: JSON of a schema, a regular expression, a grammar.
//!
//! What may come next is found by llguidance, byte by byte, over all tokens of the vocabulary at once. A form comes from strangers: how large it is, what
//! it costs to compile and what each token of a text costs are bounded, and what is beyond a bound is an error that says so.

mod annotations;
mod cost;
mod drafts;
mod form;
mod gbnf;
pub(crate) mod masks;
mod numbers;
mod place;
mod token_set;
mod vocabulary;

pub use form::{Form, MOST_FORM_BYTES};
pub use token_set::TokenSet;
pub use vocabulary::Vocabulary;

use crate::error::{Error, Result};
use llguidance::Matcher;
use std::fmt;
use std::sync::Arc;

/// What an error says of a form, at most.
const MOST_SAID: usize = 600;

/// A form that texts are to have. Clones are the same one; any number of texts may have it.
#[derive(Clone)]
pub struct Constraint {
    n_vocab: usize,
    begin: Arc<dyn Fn() -> Box<dyn FormedText> + Send + Sync>,
}

/// How far a text of a form has come. It is on a thread of its own while the text is generated.
pub trait FormedText: Send {
    /// What it may begin with.
    fn first(&self) -> TokenSet;

    /// Called once, on its thread, before the first token: here is what takes long and is not the form's fault, as to wait until there is a process for it.
    /// What asks `wanted` now and then ends soon when the text has ended. Fails with what each token then fails with.
    fn prepare(&mut self, wanted: &dyn Fn() -> bool) -> Result<()> {
        let _ = wanted;
        Ok(())
    }

    /// Takes a token, which is not one that ends a text, and gives those that may follow: `None` if the text is complete and nothing may. If it may end
    /// here, tokens that end a text are among them.
    ///
    /// Fails with [`Error::Request`] if it costs too much to find out, or if the model has no tokens to go on with.
    fn push(&mut self, id: u32) -> Result<Option<TokenSet>>;
}

impl fmt::Debug for Constraint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Constraint").field("n_vocab", &self.n_vocab).finish_non_exhaustive()
    }
}

impl Constraint {
    /// A form of the caller's own, for a vocabulary of so many tokens: `begin` makes a text of it, at its beginning. All texts
    /// wait for that, and for what it may [begin with](FormedText::first).
    pub fn new(n_vocab: usize, begin: impl Fn() -> Box<dyn FormedText> + Send + Sync + 'static) -> Constraint {
        Constraint { n_vocab, begin: Arc::new(begin) }
    }

    /// A text of the form, at its beginning.
    pub fn begin(&self) -> Box<dyn FormedText> {
        (self.begin)()
    }

    /// Tokens of the vocabulary that it was made for.
    pub(crate) fn n_vocab(&self) -> usize {
        self.n_vocab
    }
}

/// A text of a form that llguidance has compiled.
#[derive(Clone)]
struct Matched {
    vocabulary: Arc<Vocabulary>,
    matcher: Matcher,
    /// What a text may begin with.
    first: TokenSet,
}

impl FormedText for Matched {
    fn first(&self) -> TokenSet {
        self.first.clone()
    }

    fn push(&mut self, id: u32) -> Result<Option<TokenSet>> {
        let wrong = |why: String| Error::Request(format!("the text cannot go on as its form wants it: {why}"));
        self.matcher.consume_token(id).map_err(|e| wrong(said(&e)))?;
        if self.matcher.is_stopped() {
            return Ok(None);
        }
        let set = self.matcher.compute_mask().map_err(|e| wrong(said(&e)))?;
        let allowed = self.vocabulary.allowed(&set);
        Ok((!allowed.is_empty()).then_some(allowed))
    }
}

/// What llguidance says, without its state and in words that others know.
fn said(error: &impl fmt::Display) -> String {
    let text = error.to_string();
    // A matcher that has failed gives no other reason than that it has.
    if text.contains("NoExtensionBias") {
        return "no text of the model's tokens is of it: a rule may begin with itself and never end, or a character is of no token".into();
    }
    if text.starts_with("panic") {
        return "it could not be compiled: something in it is not supported".into();
    }
    let text = ["\n<", "<non-verbose"].iter().fold(text.as_str(), |text, mark| text.split(mark).next().unwrap_or(text));
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    line.replace(" without 'referencing' feature", "").chars().take(MOST_SAID).collect()
}
