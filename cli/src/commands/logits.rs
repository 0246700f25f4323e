//! `outboard logits`: what a model says of given tokens, to compare numerics with.

use super::print_json;
use crate::args::{DeviceArgs, ModelArgs};
use crate::{devices, model, print};
use anyhow::{Context, Result, bail};
use outboard_llm::LoadOptions;
use outboard_llm::tokenizer::SpecialTokens;
use outboard_output as output;
use serde::Serialize;
use std::process::ExitCode;

/// Tokens that are shown of each row to people: those with the largest logits.
const SHOWN: usize = 5;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    devices: DeviceArgs,
    /// Token ids, such as 1,2,3; `outboard tokenize --json` prints them in brackets
    #[arg(long, value_name = "ID,..", value_delimiter = ',', required = true)]
    ids: Vec<u32>,
    /// Print JSON: all logits of every token
    #[arg(long)]
    json: bool,
}

/// What `--json` prints; the names are fixed.
#[derive(Serialize)]
struct Report<'a> {
    ids: &'a [u32],
    n_vocab: usize,
    /// Of each token, what may follow.
    logits: Vec<&'a [f32]>,
}

pub(crate) fn main(args: &Args) -> Result<ExitCode> {
    let loaded = model::open(args.model.only()?)?;
    let n_vocab = loaded.inner().hparams().n_vocab;
    if let Some(id) = args.ids.iter().find(|&&id| id as usize >= n_vocab) {
        bail!("token {id} is outside the model's vocabulary of {n_vocab}");
    }
    let set = devices::open(&args.devices)?;
    let mut model_args = args.model.clone();
    model_args.ctx.get_or_insert(u32::try_from(args.ids.len()).context("too many ids")?);
    let options = model::load_options(&model_args, &loaded, &set)?;
    let options = LoadOptions { scores: options.n_ubatch, ..options };
    let mut engine = model::load(&loaded, &set, &options)?;
    engine.set_watch(print::stalls());
    let sequence = engine.open()?;
    let logits = engine.logits(sequence, &args.ids)?;
    let rows: Vec<&[f32]> = logits.chunks(n_vocab).collect();
    if let Some(row) = rows.iter().position(|row| row.iter().any(|logit| !logit.is_finite())) {
        bail!(
            "a logit of token {} is no number: either the model's weights are broken, or a device computes wrongly, which \
             `outboard smoke` finds out",
            args.ids[row]
        );
    }
    if args.json {
        print_json(&Report { ids: &args.ids, n_vocab, logits: rows })?;
        return Ok(ExitCode::SUCCESS);
    }
    for (id, row) in args.ids.iter().zip(rows) {
        output::outln(format_args!("{id:>8}  {:?}", loaded.tokenizer().decode(&[*id], SpecialTokens::Show)))?;
        let mut best: Vec<(usize, f32)> = row.iter().copied().enumerate().collect();
        best.sort_by(|a, b| b.1.total_cmp(&a.1));
        for (next, logit) in best.into_iter().take(SHOWN) {
            let text = loaded.tokenizer().decode(&[next as u32], SpecialTokens::Show);
            output::outln(format_args!("          {logit:>9.4}  {next:>8}  {text:?}"))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
