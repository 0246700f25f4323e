//! `outboard tokenize`.

use super::print_json;
use crate::fetch;
use anyhow::{Context, Result};
use outboard_llm::tokenizer::{Bos, SpecialText, SpecialTokens, Tokenizer};
use outboard_output as output;
use std::process::ExitCode;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// A GGUF file, or a name of the catalogue
    #[arg(short, long, value_name = "MODEL")]
    model: String,
    /// The text
    #[arg(short, long, value_name = "TEXT", allow_hyphen_values = true)]
    prompt: String,
    /// Read special tokens as plain text, and add none
    #[arg(long)]
    no_special: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn main(args: &Args) -> Result<ExitCode> {
    let path = fetch::resolve_model(&args.model)?;
    let gguf = outboard::open_gguf(&path)?;
    let tokenizer = Tokenizer::from_gguf(&gguf).with_context(|| path.display().to_string())?;
    let (special, bos) =
        if args.no_special { (SpecialText::Literal, Bos::Omit) } else { (SpecialText::Parse, Bos::Add) };
    let ids = tokenizer.encode(&args.prompt, special, bos)?;
    if args.json {
        print_json(&ids)?;
    } else {
        for id in ids {
            output::outln(format_args!("{id:>8}  {:?}", tokenizer.decode(&[id], SpecialTokens::Show)))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
