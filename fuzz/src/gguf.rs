//! Model files: the reader, and what is made of a file that it lets pass.

use outboard_core::DType;
use outboard_gguf::{Gguf, Value, read_tensors};
use outboard_llm::Model;
use outboard_llm::chat::{ChatTemplate, GenerationPrompt, Message};
use outboard_llm::tokenizer::{Bos, SpecialText, SpecialTokens, Tokenizer};
use std::time::SystemTime;

pub(crate) fn run(input: &[u8]) {
    let parsed = Gguf::parse(input.to_vec().into());
    // The reader of heads, for files that may be cut, sees the same file.
    let tensors = read_tensors(input, input.len() as u64);
    assert_eq!(tensors, parsed.as_ref().map(|gguf| gguf.tensors().to_vec()).map_err(Clone::clone));
    let gguf = match parsed {
        Ok(gguf) => gguf,
        Err(e) => {
            let text = e.to_string();
            assert!(!text.contains('\n') && text.len() < 2048, "{text:?}");
            return;
        }
    };
    for t in gguf.tensors() {
        let data = gguf.data(t);
        assert_eq!(data.len(), t.layout.span(), "{}", t.name);
        assert!(t.layout.dtype() != DType::Q8_K);
        assert_eq!(gguf.tensor(&t.name), Some(t));
    }
    for key in gguf.keys() {
        if let Some(Value::Array(array)) = gguf.get(key) {
            let n = array.texts().map(Iterator::count).or_else(|| array.values().map(Iterator::count));
            assert!(n.is_none_or(|n| n == array.len()));
            if let Some(texts) = array.indexed_texts() {
                assert_eq!(texts.iter().count(), array.len());
            }
        }
    }
    if let Ok(tokenizer) = Tokenizer::from_gguf(&gguf) {
        if let Ok(ids) = tokenizer.encode("Hello, w\u{f6}rld <s> 123\n", SpecialText::Parse, Bos::Add) {
            assert!(ids.iter().all(|&id| (id as usize) < tokenizer.n_vocab()));
            tokenizer.decode(&ids, SpecialTokens::Show);
        }
        if let Ok(template) = ChatTemplate::from_gguf(&gguf, &tokenizer) {
            let _ = template.render(&[Message::new("user", "Hello")], GenerationPrompt::Add, SystemTime::UNIX_EPOCH);
        }
    }
    let _ = Model::new(gguf);
}
