//! Model files: the reader, what is made of a file that it lets pass, and the writer, which writes what was read.

use bytes::Bytes;
use outboard_core::DType;
use outboard_gguf::{Gguf, GgufError, GgufWriter, Value, read_tensors};
use outboard_llm::Model;
use outboard_llm::chat::{ChatTemplate, GenerationPrompt, Message};
use outboard_llm::tokenizer::{Bos, SpecialText, SpecialTokens, Tokenizer};
use std::path::Path;
use std::time::SystemTime;

pub(crate) fn run(input: &[u8]) {
    let file = Bytes::copy_from_slice(input);
    let parsed = Gguf::parse(file.clone());
    // The reader of heads, for files that may be cut, sees the same file; files of a model in several it takes one by one.
    let tensors = read_tensors(input, input.len() as u64);
    // Where files of one model lie beside each other, it is all of them.
    let opened = Gguf::open(Path::new("model-00001-of-00002.gguf"), |_| Ok(file.clone()));
    check_error(opened.as_ref().err());
    let gguf = match parsed {
        Ok(gguf) => gguf,
        Err(e) => {
            check_error(Some(&e));
            assert!(opened.is_err());
            assert!(tensors.err().is_none_or(|of_head| of_head == e));
            return;
        }
    };
    assert_eq!(tensors.as_deref(), Ok(gguf.tensors()));
    assert_eq!(opened.as_ref().map(Gguf::tensors), Ok(gguf.tensors()));
    write_back(&gguf);
    for t in gguf.tensors() {
        let data = gguf.data(t);
        assert_eq!(data.len(), t.layout.span(), "{}", t.name);
        assert!(t.layout.dtype() != DType::Q8_K);
        assert_eq!(gguf.tensor(&t.name), Some(t));
    }
    for (key, value) in gguf.metadata() {
        assert_eq!(gguf.get(key), Some(value));
        if let Value::Array(array) = value {
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

fn check_error(error: Option<&GgufError>) {
    let text = error.map(GgufError::to_string).unwrap_or_default();
    assert!(!text.contains('\n') && text.len() < 2048, "{text:?}");
}

/// What was read can be written, and is the same when it is read again.
fn write_back(gguf: &Gguf) {
    let file = Bytes::from(GgufWriter::from(gguf).finish().expect("what was read"));
    let again = Gguf::parse(file.clone()).expect("what was written");
    assert!(again.metadata().eq(gguf.metadata()));
    assert_eq!(again.tensors().len(), gguf.tensors().len());
    for (new, old) in again.tensors().iter().zip(gguf.tensors()) {
        assert_eq!((&new.name, new.layout), (&old.name, old.layout));
        assert_eq!(again.data(new), gguf.data(old), "{}", old.name);
    }
    assert_eq!(GgufWriter::from(&again).finish().expect("what was read"), file);
}
