//! Devices that fail at every moment of a run: the text is always the same.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod failing;
mod small;

use failing::{Fate, Helper, PROMPT, World, greedy, sampled};
use outboard_core::Device;
use outboard_core::op::Sampler;
use outboard_llm::{Finish, GenerateOptions, LoadOptions, LogProbs, PlacedModel, Prefixes, Reuse, Sampling, Sequence};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Graphs that one of two devices runs for the prompt and the text, and some that are run too far.
const RUNS: i64 = 3 + 12 + 1;

/// What a lost device has when it is there again.
#[derive(Clone, Copy, PartialEq)]
enum Memory {
    Kept,
    Lost,
}

/// Runs with a fault after each number of graphs; gives how often there was one.
fn at_every_moment(memory: Memory, options: &GenerateOptions) -> usize {
    let world = World::new();
    let forgets = memory == Memory::Lost;
    let (devices, _) = world.pair(0, i64::MAX);
    let expected = world.run(&mut world.engine(devices), &PROMPT, options).unwrap();
    assert_eq!(expected.tokens.len(), 12);
    let mut faults = 0;
    for runs in 0..RUNS {
        for unlucky in 0..2 {
            let (devices, fate) = world.pair(unlucky, runs);
            fate.forgets.store(forgets, Ordering::SeqCst);
            let mut engine = world.engine(devices);
            let helper = Helper::default();
            engine.set_failover(Box::new(helper.clone()));
            let got = world.run(&mut engine, &PROMPT, options).unwrap();
            let what = format!("device {unlucky} lost after {runs} graphs");
            assert_eq!(got.tokens, expected.tokens, "{what}");
            assert_eq!(got.log_probs, expected.log_probs, "{what}");
            assert_eq!((got.text, got.finish), (expected.text.clone(), Finish::Length), "{what}");
            let told = helper.told.lock().unwrap();
            assert_eq!(told.len(), usize::from(fate.runs.load(Ordering::SeqCst) < 0), "{what}");
            for recovery in told.iter() {
                assert_eq!(recovery.devices.is_some(), forgets, "{what}");
                assert!(!forgets || engine.loads().len() == 1, "{what}");
                // With its cache, only what had not come is read again.
                assert!(forgets || recovery.tokens == 1 || recovery.tokens == PROMPT.len(), "{what}: {recovery}");
            }
            faults += told.len();
        }
    }
    faults
}

/// Texts side by side: tokens and log-probabilities of each.
fn side_by_side(engine: &mut PlacedModel) -> Vec<Vec<(u32, u32)>> {
    let mut texts = vec![Vec::new(); 4];
    let begin = |engine: &mut PlacedModel, i: usize| {
        let GenerateOptions { sampler, penalties, .. } = if i == 2 { greedy() } else { sampled() };
        let sampler = Sampler { seed: i as u64, ..sampler };
        let sequence = engine.open().unwrap();
        let sampling = Sampling { sampler, penalties: penalties.filter(|_| i != 1), log_probs: LogProbs::Chosen };
        engine.begin(sequence, &PROMPT[i..], sampling, 4 + 2 * i).unwrap();
        sequence
    };
    // The last one begins when the first one has ended.
    let mut open: Vec<(Sequence, usize)> = (0..3).map(|i| (begin(engine, i), i)).collect();
    while let Some(token) = engine.next_token().unwrap() {
        let at = open.iter().position(|(sequence, _)| *sequence == token.sequence).unwrap();
        let (sequence, i) = open[at];
        texts[i].push((token.id, token.log_prob.unwrap().to_bits()));
        if texts[i].len() == 4 + 2 * i {
            engine.close(sequence).unwrap();
            open.remove(at);
            if i == 0 {
                open.push((begin(engine, 3), 3));
            }
        }
    }
    texts
}

#[test]
fn texts_side_by_side_go_on_behind_a_fault() {
    let world = World::new();
    let model = |devices: Vec<Arc<dyn Device>>| {
        let split = vec![1.0; devices.len()];
        let options = LoadOptions { n_ctx: 64, n_seqs: 3, n_ubatch: 8, split, ..LoadOptions::default() };
        PlacedModel::load(world.model.clone(), devices, &options, &|_, _| {}).unwrap()
    };
    let expected = side_by_side(&mut model(world.pair(0, i64::MAX).0));
    let mut faults = 0;
    for (runs, forgets) in (0..RUNS).flat_map(|runs| [(runs, false), (runs, true)]) {
        let (devices, fate) = world.pair(runs as usize % 2, runs);
        fate.forgets.store(forgets, Ordering::SeqCst);
        let mut engine = model(devices);
        let helper = Helper::default();
        engine.set_failover(Box::new(helper.clone()));
        assert_eq!(side_by_side(&mut engine), expected, "lost after {runs} graphs, with its memory: {forgets}");
        faults += helper.told.lock().unwrap().len();
    }
    assert!(faults >= RUNS as usize, "{faults} faults");
}

/// A text whose beginning another one shares, which begins and ends beside it, and a second prompt behind it. The device is lost before one of the
/// calls that enqueue something and wait for nothing. Gives all tokens.
fn cut_before(engine: &mut PlacedModel, fate: &Fate, moment: usize) -> Vec<u32> {
    let prompt: Vec<u32> = (0..300).map(|i| 1 + i * 7 % 90).collect();
    let sampling = Sampling { sampler: greedy().sampler, penalties: None, log_probs: LogProbs::None };
    let cut = |at: usize| {
        fate.is_cut.fetch_or(at == moment, Ordering::SeqCst);
    };
    let take = |engine: &mut PlacedModel, of: Sequence, n: usize| -> Vec<u32> {
        (0..n).map(|_| engine.next_token_of(of).unwrap().unwrap().id).collect()
    };
    let first = engine.open().unwrap();
    engine.begin(first, &prompt, sampling, 20).unwrap();
    let mut ids = take(engine, first, 3);
    let second = engine.open().unwrap();
    cut(0);
    engine.begin(second, &prompt[..290], sampling, 8).unwrap();
    ids.extend(take(engine, second, 5));
    cut(1);
    engine.close(second).unwrap();
    ids.extend(take(engine, first, 4));
    let len = prompt.len() + 4;
    cut(2);
    engine.truncate(first, len).unwrap();
    cut(3);
    engine.begin(first, &[7, 8], sampling, 6).unwrap();
    ids.extend(take(engine, first, 6));
    ids
}

#[test]
fn a_fault_between_tokens_is_recovered_from() {
    let world = World::new();
    let mut faults = 0;
    let mut run = |moment: usize, unlucky: usize, recovers: bool| {
        let (devices, fate) = world.pair(unlucky, i64::MAX);
        let split = vec![1.0; 2];
        let options = LoadOptions {
            n_ctx: 512,
            n_seqs: 3,
            n_ubatch: 64,
            split,
            prefixes: Prefixes::Shared,
            ..LoadOptions::default()
        };
        let mut engine = PlacedModel::load(world.model.clone(), devices, &options, &|_, _| {}).unwrap();
        let helper = Helper::default();
        if recovers {
            engine.set_failover(Box::new(helper.clone()));
        }
        let ids = cut_before(&mut engine, &fate, moment);
        faults += helper.told.lock().unwrap().len();
        ids
    };
    let expected = run(usize::MAX, 0, false);
    for (moment, unlucky) in (0..4).flat_map(|moment| [(moment, 0), (moment, 1)]) {
        assert_eq!(run(moment, unlucky, true), expected, "device {unlucky} lost at moment {moment}");
    }
    assert_eq!(faults, 8);
}

/// What another one has generated is read again as it was generated.
#[test]
fn a_text_behind_what_others_have_generated_goes_on_behind_a_fault() {
    let world = World::new();
    let run = |moment: usize, unlucky: usize| {
        let (devices, fate) = world.pair(unlucky, i64::MAX);
        let (split, prefixes) = (vec![1.0; 2], Prefixes::Shared);
        let options = LoadOptions { n_ctx: 512, n_seqs: 3, n_ubatch: 64, split, prefixes, ..LoadOptions::default() };
        let mut engine = PlacedModel::load(world.model.clone(), devices, &options, &|_, _| {}).unwrap();
        let helper = Helper::default();
        engine.set_failover(Box::new(helper.clone()));
        let sampling = Sampling { sampler: greedy().sampler, penalties: None, log_probs: LogProbs::Chosen };
        let mut text: Vec<u32> = (0..133).map(|i| 1 + i * 7 % 90).collect();
        let first = engine.open().unwrap();
        engine.begin(first, &text, sampling, 200).unwrap();
        text.extend((0..150).map(|_| engine.next_token_of(first).unwrap().unwrap().id));
        engine.close(first).unwrap();
        text.extend(1..20);
        let second = engine.open().unwrap();
        engine.set_reuse(second, Reuse::All).unwrap();
        engine.begin(second, &text, sampling, 12).unwrap();
        assert_eq!(engine.shared(second).unwrap(), 256);
        let next = |i| {
            fate.is_cut.fetch_or(i == moment, Ordering::SeqCst);
            let token = engine.next_token_of(second).unwrap().unwrap();
            (token.id, token.log_prob.unwrap().to_bits())
        };
        let text: Vec<_> = (0..12).map(next).collect();
        (text, helper.told.lock().unwrap().len())
    };
    let (expected, _) = run(usize::MAX, 0);
    for (moment, unlucky) in [(0, 0), (1, 1), (2, 0), (7, 1)] {
        assert_eq!(run(moment, unlucky), (expected.clone(), 1), "device {unlucky} lost at moment {moment}");
    }
}

/// Texts of CPUs, which round alone what they generate otherwise than prompts: some with the same beginning, which is there once. One of two devices is lost
/// with what it held when so many tokens have come. Gives tokens and log-probabilities of each, the graphs that the other one has run since, and the
/// tokens that were read again.
fn texts_of_cpus(
    split: [f64; 2],
    prompts: &[Vec<u32>],
    most: usize,
    lost_at: usize,
) -> (Vec<Vec<(u32, u32)>>, i64, usize) {
    let world = World::new();
    let (devices, fates) = world.devices(["CPU0", "CPU1"]);
    let options = LoadOptions { n_ctx: 2048, n_seqs: 4, split: split.into(), ..LoadOptions::default() };
    let options = LoadOptions { n_ubatch: 1024, prefixes: Prefixes::Shared, ..options };
    let mut engine = PlacedModel::load(world.model.clone(), devices, &options, &|_, _| {}).unwrap();
    let helper = Helper::default();
    engine.set_failover(Box::new(helper.clone()));
    let open: Vec<Sequence> = prompts
        .iter()
        .enumerate()
        .map(|(i, prompt)| {
            let (sequence, sampler) = (engine.open().unwrap(), Sampler { seed: i as u64, ..sampled().sampler });
            let penalties = sampled().penalties.filter(|_| i != 1);
            let sampling = Sampling { sampler, penalties, log_probs: LogProbs::Chosen };
            engine.begin(sequence, prompt, sampling, most).unwrap();
            sequence
        })
        .collect();
    let (mut texts, mut n, mut before) = (vec![Vec::new(); prompts.len()], 0, 0);
    while let Some(token) = engine.next_token().unwrap() {
        let i = open.iter().position(|sequence| *sequence == token.sequence).unwrap();
        texts[i].push((token.id, token.log_prob.unwrap().to_bits()));
        n += 1;
        if n == lost_at {
            fates[1].forgets.store(true, Ordering::SeqCst);
            fates[1].runs.store(0, Ordering::SeqCst);
            before = fates[0].runs.load(Ordering::SeqCst);
        }
    }
    let tokens = helper.told.lock().unwrap().iter().map(|recovery| recovery.tokens).sum();
    (texts, before - fates[0].runs.load(Ordering::SeqCst), tokens)
}

/// A prompt of so many tokens.
fn prompt_of(n: usize) -> Vec<u32> {
    (0..n as u32).map(|i| 1 + i * 7 % 90).collect()
}

#[test]
fn texts_with_a_common_beginning_are_rounded_alike_behind_a_fault() {
    // One device reads a prompt at once, and whoever comes next in the same run shares it; two devices read parts of all prompts side by side.
    for (split, lengths) in [[0.0, 1.0], [1.0, 1.0]]
        .into_iter()
        .flat_map(|split| [&[300, 300, 300][..], &[257, 257], &[256, 256, 130, 7]].map(|lengths| (split, lengths)))
    {
        let prompts: Vec<_> = lengths.iter().map(|n| prompt_of(*n)).collect();
        // More steps are left when the device is lost than may be under way: on a busy machine many are.
        let most = 96;
        let (expected, ..) = texts_of_cpus(split, &prompts, most, usize::MAX);
        for lost_at in [10, 40] {
            let (texts, _, tokens) = texts_of_cpus(split, &prompts, most, lost_at);
            assert_eq!(texts, expected, "{lengths:?}, lost when {lost_at} tokens had come");
            assert!(tokens > 256, "{tokens} tokens");
        }
    }
}

/// A text that is kept goes on behind a fault of which it has not heard, with the beginning of another one that was read again before.
#[test]
fn a_kept_text_that_shares_a_beginning_anew_is_rounded_as_before() {
    let run = |is_lost: bool| {
        let world = World::new();
        let (devices, fates) = world.devices(["CPU0", "CPU1"]);
        let options = LoadOptions { n_ctx: 1024, n_seqs: 3, split: vec![0.0, 1.0], ..LoadOptions::default() };
        let options = LoadOptions { n_ubatch: 512, prefixes: Prefixes::Shared, ..options };
        let mut engine = PlacedModel::load(world.model.clone(), devices, &options, &|_, _| {}).unwrap();
        engine.set_failover(Box::new(Helper::default()));
        let turn = |engine: &mut PlacedModel, sequence: Sequence, prompt: &[u32]| -> Vec<(u32, u32)> {
            let sampling = Sampling { sampler: greedy().sampler, penalties: None, log_probs: LogProbs::Chosen };
            engine.begin(sequence, prompt, sampling, 24).unwrap();
            let token = |_| engine.next_token_of(sequence).unwrap().unwrap();
            (0..24).map(token).map(|token| (token.id, token.log_prob.unwrap().to_bits())).collect()
        };
        let [kept, other] = [(); 2].map(|()| engine.open().unwrap());
        let mut texts = vec![turn(&mut engine, kept, &prompt_of(300)), turn(&mut engine, other, &prompt_of(300))];
        if is_lost {
            fates[1].forgets.store(true, Ordering::SeqCst);
            fates[1].runs.store(0, Ordering::SeqCst);
        }
        texts.push(turn(&mut engine, other, &[7, 8, 9]));
        texts.push(turn(&mut engine, kept, &[5, 6, 7, 8]));
        texts
    };
    assert_eq!(run(true), run(false));
}

#[test]
fn what_was_generated_is_read_again_in_few_runs() {
    for lengths in [&[5][..], &[9, 7], &[2, 40, 12, 70]] {
        let prompts: Vec<_> = lengths.iter().map(|n| prompt_of(*n)).collect();
        let (expected, ..) = texts_of_cpus([1.0, 1.0], &prompts, 150, usize::MAX);
        let (texts, runs, tokens) = texts_of_cpus([1.0, 1.0], &prompts, 150, 80 * lengths.len());
        assert_eq!(texts, expected, "{lengths:?}");
        // There are 80 of each to read, and some 70 to come: more than may be under way when the device is lost.
        println!("{lengths:?}: {runs} runs, {tokens} tokens read again");
        assert!(tokens > 70 * lengths.len() && runs < 130, "{runs} runs, {tokens} tokens read again");
    }
}

#[test]
fn devices_that_keep_what_they_hold() {
    assert!(at_every_moment(Memory::Kept, &sampled()) >= 28);
    assert!(at_every_moment(Memory::Kept, &greedy()) >= 28);
}

#[test]
fn devices_that_are_lost() {
    assert!(at_every_moment(Memory::Lost, &sampled()) >= 28);
    assert!(at_every_moment(Memory::Lost, &greedy()) >= 28);
}

#[test]
fn a_second_prompt_goes_on_from_a_text_that_was_saved() {
    let world = World::new();
    let options = sampled();
    let second = [40, 41, 42, 43, 44, 45];
    let both = |engine: &mut PlacedModel| {
        let first = world.run(engine, &PROMPT, &options).unwrap();
        let prompt = [&first.tokens[first.tokens.len() - 1..], &second].concat();
        (first.tokens, world.run(engine, &prompt, &options).unwrap().tokens)
    };
    let expected = both(&mut world.engine(world.pair(0, i64::MAX).0));
    for runs in [RUNS + 1, RUNS + 5, RUNS + 9] {
        let (devices, fate) = world.pair(1, runs);
        fate.forgets.store(true, Ordering::SeqCst);
        let mut engine = world.engine(devices);
        let helper = Helper::default();
        engine.set_failover(Box::new(helper.clone()));
        assert_eq!(both(&mut engine), expected, "lost after {runs} graphs");
        assert_eq!(helper.told.lock().unwrap().len(), 1);
    }
}

#[test]
fn weights_that_stay_where_they_are_are_not_taken_twice() {
    // The survivor has memory for the whole model once.
    let world = World::new();
    let (alone, _) = world.device("A", Some(1 << 30));
    let free = alone.memory().unwrap().free;
    let engine = world.engine(vec![alone.clone()]);
    let needed = free - alone.memory().unwrap().free;
    drop(engine);
    let (a, _) = world.device("A", Some(needed + needed / 8));
    let (b, fate) = world.device("B", Some(1 << 30));
    fate.runs.store(5, Ordering::SeqCst);
    fate.forgets.store(true, Ordering::SeqCst);
    let mut engine = world.engine(vec![a, b]);
    let helper = Helper::default();
    engine.set_failover(Box::new(helper.clone()));
    world.run(&mut engine, &PROMPT, &sampled()).unwrap();
    assert_eq!(helper.told.lock().unwrap().len(), 1);
    assert_eq!(engine.loads()[0].layers, [(0, 1)]);
}

#[test]
fn a_device_that_has_come_back_is_used_again() {
    let world = World::new();
    let expected = world.run(&mut world.engine(world.pair(0, i64::MAX).0), &PROMPT, &sampled()).unwrap();
    let (devices, fate) = world.pair(0, 6);
    fate.forgets.store(true, Ordering::SeqCst);
    let helper = Helper::default();
    helper.spare.lock().unwrap().push(world.device("A", None).0);
    let mut engine = world.engine(devices);
    engine.set_failover(Box::new(helper.clone()));
    assert_eq!(world.run(&mut engine, &PROMPT, &sampled()).unwrap().tokens, expected.tokens);
    let ids: Vec<&str> = engine.loads().iter().map(|l| l.id.as_str()).collect();
    assert_eq!(ids, ["A", "B"]);
    assert_eq!(helper.told.lock().unwrap()[0].devices.as_ref().unwrap().len(), 2);
}

#[test]
fn a_device_that_can_be_opened_again_is() {
    let world = World::new();
    let expected = world.run(&mut world.engine(world.pair(0, i64::MAX).0), &PROMPT, &sampled()).unwrap();
    for runs in [0, 2, 6, 11] {
        let (devices, fate) = world.pair(0, runs);
        fate.forgets.store(true, Ordering::SeqCst);
        fate.reopens.store(true, Ordering::SeqCst);
        let helper = Helper::default();
        let mut engine = world.engine(devices);
        engine.set_failover(Box::new(helper.clone()));
        assert_eq!(world.run(&mut engine, &PROMPT, &sampled()).unwrap().tokens, expected.tokens);
        let ids: Vec<&str> = engine.loads().iter().map(|l| l.id.as_str()).collect();
        assert_eq!((ids, helper.told.lock().unwrap().len()), (vec!["A", "B"], 1));
    }
}

#[test]
fn what_cannot_go_on_says_why() {
    let world = World::new();
    let fails = |devices: Vec<Arc<dyn Device>>, failover: Option<Helper>| {
        let mut engine = world.engine(devices);
        if let Some(helper) = failover {
            engine.set_failover(Box::new(helper));
        }
        let error = world.run(&mut engine, &PROMPT, &sampled()).unwrap_err().to_string();
        println!("{error}");
        error
    };
    // Without failover: the error and no more.
    assert_eq!(fails(world.pair(1, 4).0, None), "B: the connection was lost");
    // Nothing is left.
    let (alone, fate) = world.device("A", None);
    fate.runs.store(4, Ordering::SeqCst);
    fate.forgets.store(true, Ordering::SeqCst);
    let error = fails(vec![alone], Some(Helper::default()));
    assert!(error.starts_with("A: the connection was lost; ") && error.contains("no other device is left"), "{error}");
    // It does not fit on what is left.
    let (small, _) = world.device("A", Some(300 << 10));
    let (large, fate) = world.device("B", None);
    fate.runs.store(4, Ordering::SeqCst);
    fate.forgets.store(true, Ordering::SeqCst);
    let options = LoadOptions { n_ctx: 64, n_ubatch: 4, split: vec![0.0, 1.0], ..LoadOptions::default() };
    let mut engine = PlacedModel::load(world.model.clone(), vec![small, large], &options, &|_, _| {}).unwrap();
    engine.set_failover(Box::new(Helper::default()));
    let error = world.run(&mut engine, &PROMPT, &sampled()).unwrap_err().to_string();
    assert!(error.starts_with("B: ") && error.contains("memory"), "{error}");
    // The engine says so, too, if it is used again.
    assert!(world.run(&mut engine, &PROMPT[..4], &greedy()).is_err());
}

#[test]
fn a_model_that_had_no_place_goes_on_when_its_device_is_back() {
    let world = World::new();
    let options = |split: Vec<f64>| LoadOptions { n_ctx: 64, n_ubatch: 4, split, ..LoadOptions::default() };
    let load = |devices: Vec<Arc<dyn Device>>, split: &[f64]| {
        PlacedModel::load(world.model.clone(), devices, &options(split.to_vec()), &|_, _| {}).unwrap()
    };
    let expected = world.run(&mut load(vec![world.device("A", None).0], &[1.0]), &PROMPT, &sampled()).unwrap();
    let (small, _) = world.device("A", Some(300 << 10));
    let (large, fate) = world.device("B", None);
    fate.runs.store(6, Ordering::SeqCst);
    fate.forgets.store(true, Ordering::SeqCst);
    let mut engine = load(vec![small, large], &[0.0, 1.0]);
    let helper = Helper::default();
    engine.set_failover(Box::new(helper.clone()));
    let sampling = Sampling { sampler: sampled().sampler, penalties: sampled().penalties, log_probs: LogProbs::None };
    let sequence = engine.open().unwrap();
    engine.begin(sequence, &PROMPT, sampling, 12).unwrap();
    let mut tokens = Vec::new();
    let error = loop {
        match engine.next_token() {
            Ok(token) => tokens.push(token.unwrap().id),
            Err(e) => break e.to_string(),
        }
    };
    assert!(error.contains("memory") && !tokens.is_empty(), "{error}, {tokens:?}");
    assert!(engine.next_token().unwrap_err().to_string().contains("memory"), "it is still away");
    helper.spare.lock().unwrap().push(world.device("B", None).0);
    while let Some(token) = engine.next_token().unwrap() {
        tokens.push(token.id);
    }
    assert_eq!(tokens, expected.tokens);
}

/// While a text is read again, the cache does not have what it had before.
#[test]
fn a_second_fault_may_come_before_the_first_one_is_mended() {
    let world = World::new();
    let expected = world.run(&mut world.engine(world.pair(0, i64::MAX).0), &PROMPT, &sampled()).unwrap();
    for behind in 0..6 {
        let (devices, fate) = world.pair(0, 9);
        fate.forgets.store(true, Ordering::SeqCst);
        // What takes its place is cut off while the text is read again, and keeps what it holds.
        let (spare, second) = world.device("A", None);
        second.runs.store(behind, Ordering::SeqCst);
        let helper = Helper::default();
        helper.spare.lock().unwrap().push(spare);
        let mut engine = world.engine(devices);
        engine.set_failover(Box::new(helper.clone()));
        let got = world.run(&mut engine, &PROMPT, &sampled()).unwrap();
        assert_eq!((got.tokens, got.log_probs), (expected.tokens.clone(), expected.log_probs.clone()), "{behind}");
        assert_eq!(helper.told.lock().unwrap().len(), 2, "{behind}");
    }
}

#[test]
fn a_token_that_is_none_is_an_error() {
    let world = World::new();
    let n_vocab = world.model.hparams().n_vocab as i32;
    for lie in [n_vocab, i32::MAX, -n_vocab] {
        let (devices, fates): (Vec<_>, Vec<_>) = ["A", "B"].map(|name| world.device(name, None)).into_iter().unzip();
        let mut engine = world.engine(devices);
        fates.iter().for_each(|fate| fate.lies.store(lie, Ordering::SeqCst));
        let error = world.run(&mut engine, &PROMPT, &sampled()).unwrap_err().to_string();
        assert!(error.contains("outside the model's vocabulary"), "{error}");
    }
}

#[test]
fn a_sequence_is_closed_in_any_case() {
    let world = World::new();
    // B, which has the ends of runs that have begun.
    let (devices, fate) = world.pair(1, i64::MAX);
    let options = LoadOptions { n_ctx: 256, n_seqs: 3, n_ubatch: 8, split: vec![1.0; 2], ..LoadOptions::default() };
    let mut engine = PlacedModel::load(world.model.clone(), devices, &options, &|_, _| {}).unwrap();
    let sampling = Sampling { sampler: greedy().sampler, penalties: None, log_probs: LogProbs::None };
    let all: Vec<Sequence> = (0..3).map(|_| engine.open().unwrap()).collect();
    for sequence in &all {
        engine.begin(*sequence, &PROMPT, sampling, 30).unwrap();
    }
    engine.next_token().unwrap().unwrap();
    fate.is_cut.store(true, Ordering::SeqCst);
    let errors = all.iter().filter(|sequence| engine.close(**sequence).is_err()).count();
    assert!(errors > 0 && engine.is_empty());
    assert_eq!(engine.free_tokens(), engine.cache_tokens());
}

#[test]
fn a_device_that_always_fails_is_given_up() {
    let world = World::new();
    let (devices, fate) = world.pair(1, i64::MAX);
    fate.never_runs.store(true, Ordering::SeqCst);
    let mut engine = world.engine(devices);
    let helper = Helper::default();
    engine.set_failover(Box::new(helper.clone()));
    let error = world.run(&mut engine, &PROMPT, &sampled()).unwrap_err().to_string();
    assert!(error.starts_with("B: ") && error.contains("no token has come"), "{error}");
    let times = helper.told.lock().unwrap().len();
    assert!((2..20).contains(&times) && fate.resumed.load(Ordering::SeqCst) == times);
}

#[test]
fn a_wait_is_told_of_and_can_be_cancelled() {
    let world = World::new();
    let (devices, fate) = world.pair(1, i64::MAX);
    let mut engine = world.engine(devices);
    fate.delay.store(600_000, Ordering::SeqCst);
    let stalls: Arc<Mutex<Vec<String>>> = Arc::default();
    let (to, cancel) = (stalls.clone(), engine.cancel_token());
    engine.set_watch(Arc::new(move |stall| {
        to.lock().unwrap().push(stall.to_string());
        cancel.store(true, Ordering::SeqCst);
    }));
    let got = world.run(&mut engine, &PROMPT, &sampled()).unwrap();
    assert_eq!(got.finish, Finish::Cancelled);
    let stalls = stalls.lock().unwrap();
    println!("{stalls:?}");
    assert!(stalls.len() == 1 && stalls[0].starts_with("waiting ") && stalls[0].contains(" s for B ("), "{stalls:?}");
}

/// The one that is waited for may itself wait for what the lost one was to hand it, and be patient.
#[test]
fn a_wait_for_one_device_ends_when_another_one_is_lost() {
    let world = World::new();
    let (devices, fates): (Vec<_>, Vec<_>) = ["A", "B"].map(|name| world.device(name, None)).into_iter().unzip();
    let mut engine = world.engine(devices);
    fates[1].delay.store(600_000, Ordering::SeqCst);
    let cancel = engine.cancel_token();
    engine.set_watch(Arc::new(move |_| cancel.store(true, Ordering::SeqCst)));
    let error = std::thread::scope(|scope| {
        scope.spawn(|| {
            // By then all is enqueued.
            std::thread::sleep(Duration::from_millis(500));
            fates[0].is_cut.store(true, Ordering::SeqCst);
        });
        world.run(&mut engine, &PROMPT, &greedy()).map(|text| text.finish)
    });
    assert_eq!(error.unwrap_err().to_string(), "A: the connection was lost");
}
