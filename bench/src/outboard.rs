//! Outboard's side: the engine on a CPU device of this process, as `outboard run` sets it up.

use crate::{Setup, Side};
use anyhow::{Context, Result};
use outboard_core::{Device, Host};
use outboard_cpu::{CpuOptions, cpu_device};
use outboard_host::MemoryBudget;
use outboard_llm::gguf::Gguf;
use outboard_llm::{LoadOptions, LogProbs, Model, PlacedModel, Sampler, Sampling, Sequence};
use outboard_system::open_mapped;
use std::sync::Arc;

pub(crate) struct Outboard {
    engine: PlacedModel,
    /// The one that is there alone.
    sequence: Option<Sequence>,
    device: Arc<dyn Device>,
    /// What the last run sampled, greedily.
    next: Option<u32>,
}

impl Outboard {
    pub(crate) fn load(setup: &Setup) -> Result<Outboard> {
        let name = setup.model.display().to_string();
        let gguf = Gguf::open(&setup.model, open_mapped)?;
        let model = Arc::new(Model::new(gguf).with_context(|| name)?);
        let options = CpuOptions::with_threads(setup.threads.into());
        let device = cpu_device(&Host::new(), "CPU0", options, &MemoryBudget::new(None));
        let options = LoadOptions {
            n_ctx: setup.n_ctx as usize,
            n_ubatch: setup.n_ubatch as usize,
            n_seqs: setup.n_seqs as usize,
            ..LoadOptions::default()
        };
        let engine = PlacedModel::load(model, vec![device.clone()], &options, &|_, _| ())?;
        Ok(Outboard { engine, sequence: None, device, next: None })
    }

    /// The processor's name.
    pub(crate) fn processor(&self) -> String {
        self.device.info().description.clone()
    }

    /// The instruction set that the kernels were chosen for.
    pub(crate) fn isa(&self) -> String {
        self.device.info().capabilities.join(", ")
    }
}

impl Side for Outboard {
    fn n_vocab(&self) -> u32 {
        u32::try_from(self.engine.model().hparams().n_vocab).unwrap_or(u32::MAX)
    }

    fn clear(&mut self) {
        if let Some(sequence) = self.sequence.take() {
            // Fails only if it is closed.
            let _ = self.engine.close(sequence);
        }
    }

    fn eval(&mut self, tokens: &[u32]) -> Result<()> {
        let sequence = match self.sequence {
            Some(sequence) => sequence,
            None => *self.sequence.insert(self.engine.open()?),
        };
        let (id, _) = self.engine.eval(sequence, tokens, Sampler::GREEDY)?;
        self.next = Some(id);
        Ok(())
    }

    fn next(&self) -> Result<u32> {
        self.next.context("nothing was run")
    }

    fn side_by_side(&mut self, tokens: &[u32], steps: u32) -> Result<()> {
        let sampling = Sampling { sampler: Sampler::GREEDY, penalties: None, log_probs: LogProbs::None };
        let sequences = tokens.iter().map(|_| Ok(self.engine.open()?)).collect::<Result<Vec<_>>>()?;
        for (&sequence, token) in sequences.iter().zip(tokens) {
            self.engine.begin(sequence, std::slice::from_ref(token), sampling, steps as usize)?;
        }
        while self.engine.next_token()?.is_some() {}
        sequences.into_iter().try_for_each(|sequence| Ok(self.engine.close(sequence)?))
    }
}
