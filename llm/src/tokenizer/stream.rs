//! Text from tokens as they come.

use super::{SpecialTokens, Tokenizer};

/// Turns tokens into text one by one. A character whose bytes are spread over several tokens comes with the last of them.
#[derive(Clone, Debug, Default)]
pub struct TextStream {
    held: Vec<u8>,
}

impl TextStream {
    /// An empty stream.
    pub fn new() -> TextStream {
        TextStream::default()
    }

    /// Takes a token and gives the text that is complete now. Bytes that can no longer become UTF-8 come as U+FFFD.
    pub fn push(&mut self, tokenizer: &Tokenizer, id: u32, special: SpecialTokens) -> String {
        tokenizer.token_bytes(id, special, &mut self.held);
        let mut text = String::new();
        let mut done = 0;
        for chunk in self.held.utf8_chunks() {
            text.push_str(chunk.valid());
            let is_last = done + chunk.valid().len() + chunk.invalid().len() == self.held.len();
            done += chunk.valid().len();
            if is_last && could_continue(chunk.invalid()) {
                break;
            }
            if !chunk.invalid().is_empty() {
                text.push(char::REPLACEMENT_CHARACTER);
                done += chunk.invalid().len();
            }
        }
        self.held.drain(..done);
        text
    }

    /// The end: what was held back, if anything.
    pub fn finish(&mut self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut self.held)).into_owned()
    }
}

/// Whether the bytes, which are not UTF-8, are the beginning of a character.
fn could_continue(bytes: &[u8]) -> bool {
    !bytes.is_empty() && std::str::from_utf8(bytes).is_err_and(|e| e.error_len().is_none())
}
