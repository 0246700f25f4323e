//! A model on its devices, and the sequences in its cache.

use crate::ahead::{Awaited, StepsAhead};
use crate::allocate::Bound;
use crate::arch::net::{Cache, GraphShape};
use crate::batch::{Batch, Inputs, Request, Row};
use crate::blocks::{Blocks, blocks_of};
use crate::error::{Error, Result};
use crate::failover::{DeviceSlot, Failover};
use crate::health::Health;
use crate::model::Model;
use crate::pipeline::micro_batches;
use crate::placement::{Completed, DeviceLoad, LoadOptions, Placed};
use crate::reading::Readings;
use crate::route::Route;
use crate::runs::Runs;
use crate::sequence::{Sequence, State};
use crate::watch::Watch;
use bytes::Bytes;
use outboard_core::op::BLOCK_ROWS;
use outboard_core::{Device, Pending};
use outboard_scheduler::{Program, Scheduler};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Compiled graphs that are kept: runs have some numbers of rows again and again.
const MAX_PROGRAMS: usize = 64;
/// Sequences at a time, at most.
const MOST_SEQUENCES: usize = 1 << 16;

/// A model on devices, with its sequences.
///
/// A sequence is [opened](PlacedModel::open) and [given tokens](PlacedModel::begin); [`PlacedModel::next_token`] gives what is sampled behind them, of
/// whichever sequence has a token next.
pub struct PlacedModel {
    pub(crate) model: Arc<Model>,
    pub(crate) placement: Placed,
    pub(crate) programs: VecDeque<(GraphShape, Arc<Program>)>,
    pub(crate) cache: Cache,
    /// Fewest rows of a run.
    pub(crate) least_rows: usize,
    pub(crate) blocks: Blocks,
    pub(crate) sequences: Vec<Option<State>>,
    /// Sequences that were opened.
    opened: u64,
    /// Prompts that were given.
    pub(crate) prompts: u64,
    /// The group whose turn it is.
    pub(crate) turn: usize,
    pub(crate) runs: Runs<Awaited>,
    pub(crate) ahead: StepsAhead,
    pub(crate) readings: Readings,
    /// How and where it was loaded.
    pub(crate) options: LoadOptions,
    pub(crate) slots: Vec<DeviceSlot>,
    pub(crate) health: Health,
    /// Recoveries since the last token.
    pub(crate) recoveries: usize,
    pub(crate) failover: Option<Box<dyn Failover>>,
    pub(crate) watch: Option<Arc<Watch>>,
}

impl PlacedModel {
    /// Places the model, checks that it fits, allocates, uploads. `progress` is called with bytes done and bytes in all, from
    /// several threads.
    pub fn load(
        model: Arc<Model>,
        devices: Vec<Arc<dyn Device>>,
        options: &LoadOptions,
        progress: &(dyn Fn(u64, u64) + Sync),
    ) -> Result<PlacedModel> {
        if options.n_seqs > MOST_SEQUENCES {
            let n = options.n_seqs;
            return Err(Error::Request(format!(
                "{n} sequences at a time were asked for, {MOST_SEQUENCES} are the most"
            )));
        }
        // Of this process, and lost with a helper since somebody opened them.
        let devices: Vec<_> = devices.into_iter().map(|device| device.reopened().unwrap_or(device)).collect();
        let Completed { options, cache, least_rows } = options.clone().completed(&model, &devices);
        let slots = DeviceSlot::all(&devices);
        let placed = Placed::new(&model, devices, &options, cache, &Bound::new(), progress)?;
        let placed_model = PlacedModel {
            model,
            blocks: Blocks::new(cache.numbers()),
            cache,
            least_rows,
            sequences: (0..options.n_seqs).map(|_| None).collect(),
            opened: 0,
            prompts: 0,
            turn: 0,
            runs: Runs::default(),
            ahead: StepsAhead::new(placed.round_trip),
            readings: Readings::default(),
            placement: placed,
            programs: VecDeque::new(),
            options,
            slots,
            health: Health::Sound,
            recoveries: 0,
            failover: None,
            watch: None,
        };
        placed_model.write_tables()?;
        Ok(placed_model)
    }

    /// The model.
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// What each device holds.
    pub fn loads(&self) -> &[DeviceLoad] {
        &self.placement.loads
    }

    /// Most tokens of a sequence.
    pub fn n_ctx(&self) -> usize {
        self.options.n_ctx
    }

    /// Most sequences at a time.
    pub fn n_seqs(&self) -> usize {
        self.options.n_seqs
    }

    /// Tokens that the cache has room for, of all sequences, in whole blocks.
    pub fn cache_tokens(&self) -> usize {
        self.blocks.len() * BLOCK_ROWS
    }

    /// Tokens that the cache has room for beside those that are promised to sequences.
    pub fn free_tokens(&self) -> usize {
        self.blocks.available() * BLOCK_ROWS
    }

    /// Layers that are on several devices, and the ids of those, in order.
    pub fn divided_layers(&self) -> Vec<(usize, Vec<&str>)> {
        let id = |d: usize| self.loads().get(d).map(|load| load.id.as_str());
        let ids = |devices: Vec<usize>| devices.into_iter().filter_map(id).collect();
        self.route().divided_layers(&self.placement.parts).into_iter().map(|(layer, d)| (layer, ids(d))).collect()
    }

    /// The way of a token through the devices.
    pub fn route(&self) -> &Route {
        &self.placement.homes.route
    }

    /// The device of each of the model's sections.
    pub fn homes(&self) -> &[usize] {
        self.route().homes()
    }

    /// The devices.
    pub fn devices(&self) -> &[Arc<dyn Device>] {
        self.placement.scheduler.devices()
    }

    /// Set to stop at the next step of the scheduler.
    pub fn cancel_token(&self) -> Arc<AtomicBool> {
        self.placement.scheduler.cancel_token()
    }

    /// A sequence with nothing in it. Fails if there are as many as the model was loaded for.
    pub fn open(&mut self) -> Result<Sequence> {
        let slot = self.sequences.iter().position(Option::is_none).ok_or_else(|| {
            let n = self.sequences.len();
            Error::Request(format!(
                "the model was loaded for {n} sequences at a time, and has as many: close one first"
            ))
        })?;
        self.opened += 1;
        let group = self.smallest_group();
        self.sequences[slot] = Some(State::new(self.opened, group));
        Ok(Sequence { slot, generation: self.opened })
    }

    /// The sequences that are open.
    pub fn sequences(&self) -> impl Iterator<Item = Sequence> {
        let open =
            |(slot, state): (usize, &Option<State>)| Some(Sequence { slot, generation: state.as_ref()?.generation });
        self.sequences.iter().enumerate().filter_map(open)
    }

    /// Gives up a sequence and what it has in the cache, which others may come to use, where beginnings are shared: what it has generated, too.
    ///
    /// It is closed in any case: an error is that of a device.
    pub fn close(&mut self, sequence: Sequence) -> Result<()> {
        self.state(sequence)?;
        let truncated = self.finish_runs().and_then(|()| {
            let are_shared = self.options.prefixes.are_shared();
            let (state, blocks) = self.state_and_blocks(sequence)?;
            if are_shared {
                state.publish_prefixes(blocks);
            }
            self.truncate(sequence, 0)
        });
        if truncated.is_err() {
            let (state, blocks) = self.state_and_blocks(sequence)?;
            state.truncate(blocks, 0);
            self.ahead.forget(sequence);
            self.readings.forget(sequence);
        }
        self.sequences[sequence.slot] = None;
        truncated
    }

    /// Tokens of a sequence: those that were given, and those that [`PlacedModel::next_token`] has given.
    pub fn len(&self, sequence: Sequence) -> Result<usize> {
        Ok(self.state(sequence)?.text.len() - self.ahead.ready_of(sequence))
    }

    /// Tokens of a sequence's last prompt that the cache had from others, and that were not read again.
    pub fn shared(&self, sequence: Sequence) -> Result<usize> {
        Ok(self.state(sequence)?.shared)
    }

    /// Whether there are no sequences.
    pub fn is_empty(&self) -> bool {
        self.sequences.iter().all(Option::is_none)
    }

    /// Forgets tokens of a sequence behind the first `n`, and steps of it that are under way. With failover, a fault of a device is recovered from
    /// on the way.
    pub fn truncate(&mut self, sequence: Sequence, n: usize) -> Result<()> {
        self.state(sequence)?;
        self.finish_runs()?;
        let (state, blocks) = self.state_and_blocks(sequence)?;
        state.truncate(blocks, n);
        self.ahead.forget(sequence);
        self.readings.forget(sequence);
        Ok(())
    }

    /// Enqueues the rest of all runs: it would be computed with blocks of others later. A model without a place has nothing under way.
    fn finish_runs(&mut self) -> Result<()> {
        match self.flush_runs() {
            Err(e) if self.was_cancelled(&e) => {
                self.give_up();
                Ok(())
            }
            Err(e) => self.recover_or_fail(e),
            Ok(()) => Ok(()),
        }
    }

    pub(crate) fn state(&self, sequence: Sequence) -> Result<&State> {
        let state = self.slot(sequence.slot)?;
        if state.generation == sequence.generation { Ok(state) } else { Err(closed()) }
    }

    pub(crate) fn state_and_blocks(&mut self, sequence: Sequence) -> Result<(&mut State, &mut Blocks)> {
        self.state(sequence)?;
        self.slot_and_blocks(sequence.slot)
    }

    /// The sequence in a slot.
    pub(crate) fn slot(&self, slot: usize) -> Result<&State> {
        self.sequences.get(slot).and_then(Option::as_ref).ok_or_else(closed)
    }

    pub(crate) fn slot_and_blocks(&mut self, slot: usize) -> Result<(&mut State, &mut Blocks)> {
        let state = self.sequences.get_mut(slot).and_then(Option::as_mut).ok_or_else(closed)?;
        Ok((state, &mut self.blocks))
    }

    /// Whether the context of a sequence has room for so many tokens more.
    pub(crate) fn check_room(&self, sequence: Sequence, n: usize) -> Result<()> {
        let (len, n_ctx) = (self.len(sequence)?, self.n_ctx());
        match len.checked_add(n) {
            Some(end) if end <= n_ctx => Ok(()),
            _ => Err(Error::ContextFull { tokens: n, used: len, n_ctx }),
        }
    }

    /// Fails if the model gives embeddings only.
    pub(crate) fn check_writes_text(&self) -> Result<()> {
        match self.model.hparams().pooling {
            None => Ok(()),
            Some(_) => Err(Error::Request("the model gives embeddings, and no text or probabilities".into())),
        }
    }

    /// Whether the model has all of these tokens.
    pub(crate) fn check_vocabulary(&self, tokens: &[u32]) -> Result<()> {
        let n_vocab = self.model.hparams().n_vocab;
        match tokens.iter().find(|&&id| id as usize >= n_vocab) {
            Some(id) => Err(Error::Request(format!("token {id} is outside the model's vocabulary of {n_vocab}"))),
            None => Ok(()),
        }
    }

    /// Tokens from which all are rounded alike ([`outboard_core::Costs::uniform_rows`]).
    pub(crate) fn uniform_rows(&self) -> usize {
        self.placement.pipeline.uniform_rows()
    }

    /// Fewest tokens of a part of a prompt that is rounded as the whole is.
    pub(crate) fn smallest_part(&self) -> usize {
        self.placement.pipeline.smallest_part()
    }

    /// Makes up the number of a run's rows, where there are several sequences.
    pub(crate) fn pad(&self, batch: &mut Batch) {
        if self.n_seqs() > 1 {
            batch.pad(self.least_rows, self.options.n_ubatch, self.padding_rows());
        }
    }

    /// Micro-batches of a prompt that may begin before the oldest one goes on.
    pub(crate) fn prompt_lead(&self) -> usize {
        self.placement.pipeline.lead(4 * self.options.n_ubatch as u64 * self.model.hparams().n_embd as u64)
    }

    /// The sizes of the micro-batches of `n` tokens behind `past` others.
    pub(crate) fn micro_batches(&self, past: usize, n: usize) -> Vec<usize> {
        let Placed { pipeline, parts, .. } = &self.placement;
        micro_batches(past, n, self.options.n_ubatch, pipeline, parts.work())
    }

    /// Tokens behind those of a sequence are to be read in micro-batches, which it has from now on: all of it is known before any of it may
    /// fail.
    pub(crate) fn add_prompt(&mut self, sequence: Sequence, tokens: &[u32]) -> Result<()> {
        self.check_room(sequence, tokens.len())?;
        let sizes = self.micro_batches(self.len(sequence)?, tokens.len());
        let (state, _) = self.state_and_blocks(sequence)?;
        let mut rest = tokens;
        for size in sizes {
            let (batch, behind) = rest.split_at(size.min(rest.len()));
            state.text.read(state.text.len(), batch);
            rest = behind;
        }
        Ok(())
    }

    /// Rows of a sequence's text that go into a run, with blocks for them.
    pub(crate) fn read_rows(&mut self, slot: usize, range: Range<usize>) -> Result<Vec<Row>> {
        self.grow(slot, range.end)?;
        let state = self.slot(slot)?;
        let tokens = state.text.tokens(range.clone());
        let row = |(&token, position)| Row { token: Some(token), position, cache_row: state.cache_row(position), slot };
        Ok(tokens.iter().zip(range).map(row).collect())
    }

    /// Makes sure that a sequence has blocks for so many tokens, and that devices know of them.
    pub(crate) fn grow(&mut self, slot: usize, tokens: usize) -> Result<()> {
        let (state, blocks) = self.slot_and_blocks(slot)?;
        if blocks_of(tokens) <= state.blocks.len() {
            return Ok(());
        }
        let new = state.grow(blocks, tokens)?;
        self.write_table(slot, new)
    }

    /// Tells the devices some of a sequence's blocks.
    pub(crate) fn write_table(&self, slot: usize, which: Range<usize>) -> Result<()> {
        let state = self.slot(slot)?;
        self.write_blocks(slot, which.start, state.blocks.get(which).unwrap_or_default())
    }

    fn write_blocks(&self, slot: usize, first: usize, blocks: &[usize]) -> Result<()> {
        if blocks.is_empty() {
            return Ok(());
        }
        let bytes: Bytes = blocks.iter().flat_map(|&block| (block as i32).to_le_bytes()).collect::<Vec<u8>>().into();
        let at = 4 * (slot * self.cache.blocks_each() + first) as u64;
        for (device, table) in &self.placement.tables {
            let Some(queue) = self.scheduler().queue(*device) else { continue };
            queue.write(&table.part(at, bytes.len() as u64)?, bytes.clone())?;
        }
        Ok(())
    }

    /// Tells the devices the blocks of all sequences, and of the rows that only make up a number.
    pub(crate) fn write_tables(&self) -> Result<()> {
        let cache = self.cache;
        let spare = vec![cache.spare_block(); cache.blocks_each()];
        for slot in self.n_seqs()..cache.slots {
            self.write_blocks(slot, 0, &spare)?;
        }
        for (slot, state) in self.sequences.iter().enumerate() {
            self.write_blocks(slot, 0, state.as_ref().map_or(&[], |state| &state.blocks))?;
        }
        Ok(())
    }

    /// Rows that only make up a number: of slots and of a block that no sequence has.
    pub(crate) fn padding_rows(&self) -> impl Iterator<Item = Row> + Clone + use<> {
        let (first, row) = (self.n_seqs(), self.cache.spare_block() * BLOCK_ROWS);
        let spare = move |i| Row { token: None, position: 0, cache_row: row + i, slot: first + i };
        (0..self.cache.spare).map(spare)
    }

    /// Rows that only stand between others, of a slot and of a block that no sequence has. They may be in a run with padding rows.
    pub(crate) fn separating_rows(&self) -> impl ExactSizeIterator<Item = Row> + use<> {
        let (slot, row) = (self.n_seqs(), self.cache.spare_block() * BLOCK_ROWS);
        let places = if self.cache.spare > 0 { self.cache.spare.min(BLOCK_ROWS)..BLOCK_ROWS } else { 0..0 };
        places.map(move |i| Row { token: Some(0), position: 0, cache_row: row + i, slot })
    }

    /// Enqueues the rest of all runs that have begun.
    pub(crate) fn flush_runs(&mut self) -> Result<()> {
        self.with_runs(|runs, model| runs.finish(model, &mut PlacedModel::expect))
    }

    /// Runs are not the model's while they use it.
    pub(crate) fn with_runs(
        &mut self,
        f: impl FnOnce(&mut Runs<Awaited>, &mut PlacedModel) -> Result<()>,
    ) -> Result<()> {
        let mut runs = std::mem::take(&mut self.runs);
        let done = f(&mut runs, self);
        self.runs = runs;
        done
    }

    /// A batch of nothing but a part of one sequence's text, which it counts as read.
    pub(crate) fn batch_of(&mut self, sequence: Sequence, range: Range<usize>, request: Request) -> Result<Batch> {
        let end = range.end;
        let (state, blocks) = self.state_and_blocks(sequence)?;
        state.reserve(blocks, end)?;
        let n = range.len();
        let rows = self.read_rows(sequence.slot, range)?;
        let history = self.options.prefixes.are_shared();
        let (state, _) = self.state_and_blocks(sequence)?;
        state.note_history(history, n);
        state.enqueued(n, false);
        let mut batch = Batch { rows, request, history };
        if let Request::Layers | Request::Part | Request::Sample(_) = batch.request {
            self.pad(&mut batch);
        }
        Ok(batch)
    }

    /// The program of a batch, and its inputs.
    pub(crate) fn program_of(&mut self, batch: &Batch) -> Result<(Arc<Program>, Inputs)> {
        let program = self.program(batch.shape(self.cache))?;
        let inputs = batch.inputs(program.graph(), self.cache);
        Ok((program, inputs))
    }

    pub(crate) fn scheduler(&self) -> &Scheduler {
        &self.placement.scheduler
    }

    /// The compiled graph of a shape.
    pub(crate) fn program(&mut self, shape: GraphShape) -> Result<Arc<Program>> {
        if let Some(at) = self.programs.iter().position(|(s, _)| *s == shape) {
            // The one that was used last is at the end.
            let Some(found) = self.programs.remove(at) else { return Err(Error::Internal("a program is lost".into())) };
            let program = found.1.clone();
            self.programs.push_back(found);
            return Ok(program);
        }
        let program = match self.compile(shape) {
            // Perhaps there is room where graphs that are kept have their results.
            Err(Error::Core(outboard_core::Error::OutOfMemory { .. })) if !self.programs.is_empty() => {
                self.programs.clear();
                self.compile(shape)?
            }
            compiled => compiled?,
        };
        if self.programs.len() >= MAX_PROGRAMS {
            self.programs.pop_front();
        }
        self.programs.push_back((shape, program.clone()));
        Ok(program)
    }

    fn compile(&mut self, shape: GraphShape) -> Result<Arc<Program>> {
        let model_graph = self.model.graph(shape)?;
        let (graph, hints) = (&model_graph.graph, self.placement.homes.hints(&model_graph));
        let memory = self.placement.memory_of(&model_graph)?;
        let scheduler = &mut self.placement.scheduler;
        let alike = |(_, known): &(GraphShape, Arc<Program>)| scheduler.plan_like(graph.clone(), &hints, known.plan());
        if let Some(plan) = self.programs.iter().rev().find_map(alike) {
            match plan.and_then(|plan| scheduler.prepare(plan, &memory)) {
                // A device that computes other sizes does not compute these: all are asked.
                Err(outboard_core::Error::Request(_)) => {}
                prepared => return Ok(Arc::new(prepared?)),
            }
        }
        let plan = scheduler.plan(graph.clone(), &hints)?;
        Ok(Arc::new(scheduler.prepare(plan, &memory)?))
    }

    /// An output of the run that was enqueued last.
    pub(crate) fn read(&self, program: &Program, output: &str) -> Result<Pending<Bytes>> {
        let id = program.graph().outputs().find(|&id| program.graph().tensor(id).name() == output);
        let id = id.ok_or_else(|| Error::Internal(format!("the graph has no output {output}")))?;
        Ok(self.placement.scheduler.read(program, id)?)
    }
}

fn closed() -> Error {
    Error::Request("the sequence was closed".into())
}
