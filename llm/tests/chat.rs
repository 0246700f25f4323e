//! Chat templates of real models.
#![allow(clippy::unwrap_used)]

mod common;

use outboard_llm::chat::{ChatTemplate, GenerationPrompt, Message};
use outboard_llm::tokenizer::{Bos, SpecialText, SpecialTokens, Tokenizer};
use std::time::UNIX_EPOCH;

fn render(name: &str, messages: &[Message]) -> Option<Result<String, String>> {
    let gguf = common::model(name)?;
    let tokenizer = Tokenizer::from_gguf(&gguf).unwrap();
    let template = match ChatTemplate::from_gguf(&gguf, &tokenizer) {
        Ok(template) => template,
        Err(e) => return Some(Err(e.to_string())),
    };
    let text = template.render(messages, GenerationPrompt::Add, UNIX_EPOCH).unwrap();
    // What the template writes are the model's special tokens.
    let ids = tokenizer.encode(&text, SpecialText::Parse, Bos::Add).unwrap();
    assert!(ids.contains(&tokenizer.eot().unwrap()));
    assert_eq!(tokenizer.decode(&ids, SpecialTokens::Show), text);
    Some(Ok(text))
}

fn chat() -> [Message; 3] {
    [Message::new("user", "Hi"), Message::new("assistant", "Hello!"), Message::new("user", "1+1?")]
}

const TURNS: &str = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello!<|im_end|>\n\
                     <|im_start|>user\n1+1?<|im_end|>\n<|im_start|>assistant\n";

#[test]
fn smollm2() {
    let Some(text) = render("smollm2", &chat()) else { return };
    let system = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n";
    assert_eq!(text.unwrap(), format!("{system}{TURNS}"));
}

#[test]
fn qwen2_5_coder() {
    let messages = [&[Message::new("system", "Be brief.")], &chat()[..]].concat();
    let Some(text) = render("qwen2.5-coder", &messages) else { return };
    assert_eq!(text.unwrap(), format!("<|im_start|>system\nBe brief.<|im_end|>\n{TURNS}"));
}

#[test]
fn gemma3_has_none() {
    let Some(text) = render("gemma3", &chat()) else { return };
    assert!(text.unwrap_err().contains("no chat template"));
}
