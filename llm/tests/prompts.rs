//! Texts that come while others' prompts are read: they begin between parts of those, and nobody's text is another one for it.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod failing;
mod small;

use failing::{World, greedy};
use outboard_core::Device;
use outboard_llm::{GenerateOptions, LoadOptions, LogProbs, PlacedModel, TextEvent, TextRequest, Texts};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A prompt's micro-batches.
const MICRO_BATCH: usize = 8;

type Tokens = (Vec<u32>, Vec<f32>);

/// Texts, each under a number.
struct Talk<'w> {
    texts: Texts<'w, usize>,
    engine: PlacedModel,
    /// The numbers of texts in the order in which they gave their first tokens, and in which they ended.
    begun: Vec<usize>,
    ended: Vec<(usize, Tokens)>,
    /// Tokens that there were.
    tokens: usize,
}

impl<'w> Talk<'w> {
    fn new(world: &'w World, devices: Vec<Arc<dyn Device>>) -> Talk<'w> {
        Talk::with_parts(world, devices, MICRO_BATCH)
    }

    /// With micro-batches of so many rows.
    fn with_parts(world: &'w World, devices: Vec<Arc<dyn Device>>, n_ubatch: usize) -> Talk<'w> {
        let options =
            LoadOptions { n_ctx: 256, n_seqs: 4, n_ubatch, split: vec![1.0; devices.len()], ..LoadOptions::default() };
        let engine = PlacedModel::load(world.model.clone(), devices, &options, &|_, _| {}).unwrap();
        Talk { texts: Texts::new(&world.tokenizer), engine, begun: Vec::new(), ended: Vec::new(), tokens: 0 }
    }

    fn push(&mut self, number: usize, prompt: &[u32], n_predict: usize) {
        let options = GenerateOptions { n_predict: Some(n_predict), log_probs: LogProbs::Chosen, ..greedy() };
        self.texts.push(number, TextRequest { prompt: prompt.to_vec(), options });
    }

    fn step(&mut self) {
        let (begun, ended, tokens) = (&mut self.begun, &mut self.ended, &mut self.tokens);
        self.texts.step(&mut self.engine, &mut |&number, event| {
            *tokens += usize::from(matches!(event, TextEvent::Token { .. }));
            match event {
                TextEvent::Token { .. } if begun.contains(&number) => {}
                TextEvent::Token { .. } => begun.push(number),
                TextEvent::Ended { generation, .. } => ended.push((number, (generation.tokens, generation.log_probs))),
                TextEvent::Embedded(_) | TextEvent::Scored(_) => panic!("nobody asked for one"),
                TextEvent::Failed(error) => panic!("{error}"),
            }
            ControlFlow::Continue(())
        });
    }

    fn finish(&mut self) {
        while !self.texts.is_empty() {
            self.step();
        }
    }

    /// The only text that is generated now.
    fn alone(&mut self, prompt: &[u32], n_predict: usize) -> Tokens {
        self.push(99, prompt, n_predict);
        self.finish();
        self.ended.pop().unwrap().1
    }

    fn text(&self, number: usize) -> &Tokens {
        self.ended.iter().find(|(ended, _)| *ended == number).map(|(_, tokens)| tokens).unwrap()
    }
}

fn prompt(n: usize, seed: u32) -> Vec<u32> {
    (0..n as u32).map(|i| 1 + (i * 7 + seed) % 90).collect()
}

fn devices(world: &World, n: usize) -> Vec<Arc<dyn Device>> {
    (0..n).map(|i| world.device(["A", "B", "C"][i], None).0).collect()
}

#[test]
fn a_short_text_does_not_wait_for_the_end_of_a_long_prompt() {
    let world = World::new();
    for n in 1..=3 {
        let mut talk = Talk::new(&world, devices(&world, n));
        let (long, other, short) = (prompt(200, 1), prompt(170, 2), prompt(5, 3));
        let expected = [(&long, 3), (&other, 3), (&short, 4)].map(|(prompt, most)| talk.alone(prompt, most));
        talk.begun.clear();
        talk.push(0, &long, 3);
        talk.step();
        talk.push(1, &other, 3);
        talk.step();
        talk.push(2, &short, 4);
        // What was enqueued before it, a few parts, and its own.
        let mut steps = 0;
        while talk.begun.is_empty() {
            talk.step();
            steps += 1;
        }
        assert!(steps <= 2 * (n + 3), "{n} devices: {steps} parts before the first token");
        assert_eq!(talk.begun, [2], "{n} devices");
        talk.finish();
        assert_eq!(talk.ended[0].0, 2, "{n} devices: the short one has ended first");
        for (number, expected) in expected.iter().enumerate() {
            assert_eq!(talk.text(number), expected, "{n} devices, text {number}");
        }
    }
}

/// A part beside steps takes longer than these, by what was measured to be best for the tokens of the others: the smaller it is, the more of them
/// are written while a long prompt is read, each behind a part.
#[test]
fn parts_of_a_prompt_beside_steps_are_neither_small_nor_long() {
    let world = World::new();
    let mut talk = Talk::with_parts(&world, devices(&world, 1), 64);
    (0..3).for_each(|number| talk.push(number, &prompt(4, number as u32), 200));
    while talk.begun.len() < 3 {
        talk.step();
    }
    talk.push(3, &prompt(240, 9), 1);
    let before = talk.tokens;
    while !talk.begun.contains(&3) {
        talk.step();
    }
    let beside = (talk.tokens - before) / 3;
    println!("{beside} tokens of each other text while 240 tokens were read");
    assert!((10..=20).contains(&beside), "{beside} tokens of each other text while 240 tokens were read");
}

#[test]
fn a_prompt_that_nobody_wants_any_more_is_not_read_to_its_end() {
    let world = World::new();
    for n in 1..=2 {
        let (devices, fates): (Vec<_>, Vec<_>) = (0..n).map(|i| world.device(["A", "B"][i], None)).unzip();
        let runs = || fates[0].runs.load(Ordering::SeqCst);
        let mut talk = Talk::new(&world, devices);
        let before = runs();
        talk.push(0, &prompt(240, 1), 3);
        talk.step();
        talk.texts.retain(&mut talk.engine, |_| false, &mut |_, _| ControlFlow::Continue(()));
        assert!(talk.texts.is_empty() && talk.engine.is_empty());
        let graphs = before - runs();
        // Of thirty parts.
        assert!((1..=2 * (n as i64 + 3)).contains(&graphs), "{n} devices: {graphs} graphs");
    }
}

#[test]
fn short_prompts_that_keep_coming_do_not_hold_up_a_long_one() {
    let world = World::new();
    let mut talk = Talk::new(&world, devices(&world, 1));
    talk.push(0, &prompt(240, 1), 1);
    let mut next = 1;
    // One token each: nobody decodes, and there is always something short to read.
    while !talk.begun.contains(&0) {
        let waiting = talk.texts.keys().count();
        for _ in waiting..4 {
            talk.push(next, &prompt(6, next as u32), 1);
            next += 1;
        }
        talk.step();
        assert!(next < 300, "the long one has not begun");
    }
    assert!(talk.begun.len() > 15, "the others have gone on: {:?}", talk.begun);
    talk.finish();
}
