//! What is read of a program: a text, or its tokens.

/// A text that is read.
#[derive(Clone, Debug)]
pub(crate) enum Input {
    Text(String),
    Tokens(Vec<u32>),
}
