//! `outboard run --grammar` and `--json-schema`: the form that texts are to have.

use anyhow::{Context, Result};
use outboard_llm::Form;
use std::path::{Path, PathBuf};

#[derive(clap::Args)]
#[group(multiple = false)]
pub(super) struct FormArgs {
    /// Have the text be one of this grammar, in llama.cpp's GBNF or llguidance's Lark
    #[arg(long, value_name = "GRAMMAR")]
    grammar: Option<String>,
    /// The same, of a file
    #[arg(long, value_name = "FILE")]
    grammar_file: Option<PathBuf>,
    /// Have the text be JSON that this schema allows; {} for any JSON
    #[arg(short, long, value_name = "SCHEMA")]
    json_schema: Option<String>,
    /// The same, of a file
    #[arg(long, alias = "jf", value_name = "FILE")]
    json_schema_file: Option<PathBuf>,
}

impl FormArgs {
    /// What texts are to be, if anything was said.
    pub(super) fn form(&self) -> Result<Option<Form>> {
        let grammar = text(self.grammar.as_ref(), self.grammar_file.as_deref())?.map(Form::of_grammar);
        let schema = text(self.json_schema.as_ref(), self.json_schema_file.as_deref())?.map(Form::JsonSchema);
        Ok(grammar.or(schema))
    }
}

/// What is given, or what the file says.
fn text(given: Option<&String>, file: Option<&Path>) -> Result<Option<String>> {
    let read = |file: &Path| std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()));
    given.cloned().map(Ok).or_else(|| file.map(read)).transpose()
}
