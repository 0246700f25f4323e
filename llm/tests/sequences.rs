//! Many sequences of one model: each text is the same alone and among others, whatever begins and ends beside it.
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "small/mod.rs"]
mod small;
mod texts;

use outboard_core::{Device, Host};
use outboard_cpu::{CpuOptions, cpu_device};
use outboard_detached::{DetachedOptions, detached_device};
use outboard_host::MemoryBudget;
use outboard_llm::{
    Error, LoadOptions, LogProbs, N_TOP, Penalties, PlacedModel, Prefixes, Reuse, Sampler, Sampling, Sequence,
};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use texts::{Random, Request, Text, alone, bits, rest, together};

/// Requests of all kinds: prompts of one token up to some blocks, all samplers, with and without penalties.
fn requests(n: usize, random: &mut Random) -> Vec<Request> {
    let lengths = [1, 2, 3, 7, 20, 33, 64, 90, 128, 150];
    (0..n)
        .map(|i| Request {
            prompt: (0..lengths[random.below(lengths.len())]).map(|_| random.below(128) as u32).collect(),
            sampling: Sampling {
                sampler: match i % 3 {
                    0 => Sampler::GREEDY,
                    _ => Sampler { temperature: 1.2, top_k: 30, top_p: 0.95, min_p: 0.01, seed: i as u64 },
                },
                penalties: (i % 4 == 1).then_some(Penalties { last_n: 40, repeat: 1.2, frequency: 0.1, presence: 0.1 }),
                log_probs: [LogProbs::Chosen, LogProbs::None, LogProbs::Top, LogProbs::None][i % 4],
            },
            most: 1 + random.below(30),
        })
        .collect()
}

fn options(n_seqs: usize, devices: usize) -> LoadOptions {
    LoadOptions { n_ctx: 256, n_seqs, n_ubatch: 24, split: vec![1.0; devices], ..LoadOptions::default() }
}

fn cpus(n: usize) -> Vec<Arc<dyn Device>> {
    let (host, budget) = (Host::new(), MemoryBudget::new(None));
    let cpu = |i| cpu_device(&host, &format!("CPU{i}"), CpuOptions::with_threads(1), &budget);
    (0..n).map(|i| -> Arc<dyn Device> { cpu(i) }).collect()
}

fn load(name: &str, devices: Vec<Arc<dyn Device>>, options: &LoadOptions) -> PlacedModel {
    PlacedModel::load(small::model(name), devices, options, &|_, _| {}).unwrap()
}

fn check(name: &str, devices: &dyn Fn() -> Vec<Arc<dyn Device>>, n_seqs: usize) {
    let mut random = Random(n_seqs as u64);
    let requests = requests(16, &mut random);
    let n_devices = devices().len();
    let mut model = load(name, devices(), &options(n_seqs, n_devices));
    let want: Vec<Text> = requests.iter().map(|request| alone(&mut model, request)).collect();
    assert!(want.iter().zip(&requests).all(|(text, request)| text.len() == request.most));
    for round in 0..3 {
        let cut: HashMap<usize, usize> = (0..4).map(|_| (random.below(16), 1 + random.below(3))).collect();
        let cut = cut.into_iter().filter(|(i, n)| *n < requests[*i].most).collect();
        let got = together(&mut model, &requests, &cut, &mut random, &mut |_| {});
        for (i, (got, want)) in got.iter().zip(&want).enumerate() {
            let want = &want[..cut.get(&i).copied().unwrap_or(want.len())];
            assert_eq!(got, want, "{name}, {n_devices} devices, round {round}, text {i}: {:?}", requests[i]);
        }
        assert_eq!(model.free_tokens(), model.cache_tokens(), "what was given up is free");
    }
}

#[test]
fn a_text_is_the_same_alone_and_among_others() {
    for n_seqs in [2, 5, 16] {
        check("llama-dense", &|| cpus(1), n_seqs);
    }
    check("gemma3-dense", &|| cpus(1), 7);
    check("phi3-dense", &|| cpus(1), 7);
}

#[test]
fn the_same_over_several_devices() {
    for n in [2, 4] {
        check("llama-dense", &|| cpus(n), 9);
        check("qwen3-dense", &|| cpus(n), 16);
    }
    let cards = || -> Vec<Arc<dyn Device>> {
        let host = Host::new();
        ["A", "B"].map(|name| -> Arc<dyn Device> { detached_device(&host, name, DetachedOptions::default()) }).into()
    };
    check("llama-dense", &cards, 6);
}

/// The model of all others: what they have in common is there once.
#[test]
fn a_beginning_in_common_is_read_and_kept_once() {
    let mut random = Random(3);
    let beginning: Vec<u32> = (0..600).map(|_| random.below(128) as u32).collect();
    let sampling = Sampling { sampler: Sampler::GREEDY, penalties: None, log_probs: LogProbs::Chosen };
    let request = |rest: &[u32]| Request { prompt: [&beginning, rest].concat(), sampling, most: 5 };
    let requests = [request(&[1, 2, 3]), request(&[7, 8, 9, 10]), request(&[]), request(&[1, 2, 3])];
    let options = LoadOptions { n_ctx: 1024, ..options(3, 1) };
    let mut apart = load("llama-dense", cpus(1), &options);
    let want: Vec<Text> = requests.iter().map(|request| alone(&mut apart, request)).collect();
    let mut model = load("llama-dense", cpus(1), &LoadOptions { prefixes: Prefixes::Shared, ..options });
    let first = model.open().unwrap();
    model.begin(first, &requests[0].prompt, sampling, 5).unwrap();
    let text: Text = (0..5).map(|_| bits(&model.next_token().unwrap().unwrap())).collect();
    assert_eq!(text, want[0]);
    let before = model.free_tokens();
    let second = model.open().unwrap();
    model.begin(second, &requests[1].prompt, sampling, 5).unwrap();
    // 600 tokens are four whole blocks and a part of one.
    assert_eq!(before - model.free_tokens(), 128);
    let text: Text = (0..5).map(|_| bits(&model.next_token().unwrap().unwrap())).collect();
    assert_eq!(text, want[1]);
    // What one of them does to its own text, the other one does not see: it goes back into what both have.
    model.truncate(second, 300).unwrap();
    let other = Request {
        prompt: requests[1].prompt[..300].iter().chain(&[99, 98, 97]).copied().collect(),
        ..requests[1].clone()
    };
    let expected = alone(&mut apart, &other);
    model.begin(second, &[99, 98, 97], sampling, 5).unwrap();
    let text: Text = (0..5).map(|_| bits(&model.next_token().unwrap().unwrap())).collect();
    assert_eq!(text, expected);
    model.close(first).unwrap();
    model.close(second).unwrap();
    for (request, want) in requests.iter().zip(&want) {
        assert_eq!(alone(&mut model, request), *want);
    }
    assert_eq!(model.free_tokens(), model.cache_tokens());
}

/// What a sequence has generated stays for those that go on from it and say so; others read it as a prompt.
#[test]
fn what_was_generated_is_used_by_those_who_ask_for_it() {
    let (prompt, more): (Vec<u32>, Vec<u32>) =
        ((0..300).map(|i| i * 37 % 128).collect(), (0..30).map(|i| i * 11 % 128).collect());
    let sampling = Sampling { sampler: Sampler::GREEDY, penalties: None, log_probs: LogProbs::Chosen };
    let options = LoadOptions { n_ctx: 1024, prefixes: Prefixes::Shared, ..options(3, 1) };
    let mut model = load("llama-dense", cpus(1), &options);
    // Four blocks, of which two are of the prompt.
    let first = model.open().unwrap();
    model.begin(first, &prompt, sampling, 300).unwrap();
    let said: Vec<u32> = (0..212).map(|_| model.next_token_of(first).unwrap().unwrap().id).collect();
    model.close(first).unwrap();
    assert_eq!(model.free_tokens(), model.cache_tokens());
    let next = Request { prompt: [&prompt[..], &said, &more].concat(), sampling, most: 6 };
    let mut turn = |reuse| {
        let sequence = model.open().unwrap();
        model.set_reuse(sequence, reuse).unwrap();
        model.begin(sequence, &next.prompt, sampling, next.most).unwrap();
        let text = rest(&mut model, sequence, sampling);
        let shared = model.shared(sequence).unwrap();
        model.close(sequence).unwrap();
        (shared, text)
    };
    // As the first one would have gone on.
    let mut other = load("llama-dense", cpus(1), &options);
    let first = other.open().unwrap();
    other.begin(first, &prompt, sampling, 300).unwrap();
    (0..212).for_each(|_| drop(other.next_token_of(first).unwrap()));
    other.begin(first, &more, sampling, next.most).unwrap();
    assert_eq!(turn(Reuse::All), (512, rest(&mut other, first, sampling)));
    // As if nobody had said anything.
    assert_eq!(turn(Reuse::Prompts), (256, alone(&mut load("llama-dense", cpus(1), &options), &next)));
    // What that one has read is there now for both.
    let (shared, text) = turn(Reuse::Prompts);
    assert_eq!((shared, turn(Reuse::All)), (512, (512, text)));
}

#[test]
fn a_cache_that_is_full_says_so_and_has_room_later() {
    let options = LoadOptions { cache_tokens: 300, ..options(4, 1) };
    let mut model = load("llama-dense", cpus(1), &options);
    assert_eq!(model.cache_tokens(), 384, "in whole blocks");
    let sampling = Sampling { sampler: Sampler::GREEDY, penalties: None, log_probs: LogProbs::None };
    let [a, b] = [(); 2].map(|()| model.open().unwrap());
    model.begin(a, &[1; 100], sampling, 29).unwrap();
    model.begin(b, &[2; 100], sampling, 100).unwrap();
    let c = model.open().unwrap();
    let full = model.begin(c, &[3; 10], sampling, 5).unwrap_err();
    assert!(matches!(full, Error::CacheFull { needed: 128, free: 0, total: 384 }), "{full}");
    assert_eq!(model.len(c).unwrap(), 0, "as if it had not been asked");
    model.close(a).unwrap();
    model.begin(c, &[3; 10], sampling, 5).unwrap();
    let mut came = 0;
    while let Some(token) = model.next_token().unwrap() {
        assert!(token.sequence != a);
        came += 1;
    }
    assert_eq!(came, 105);
    // What can never fit is known by its numbers.
    let never = model.begin(c, &[3; 200], sampling, 50).unwrap_err();
    assert!(matches!(never, Error::CacheFull { .. }), "{never}");
}

#[test]
fn handles_are_of_no_use_once_they_are_closed() {
    let mut model = load("llama-dense", cpus(1), &options(1, 1));
    let sampling = Sampling { sampler: Sampler::GREEDY, penalties: None, log_probs: LogProbs::None };
    let a = model.open().unwrap();
    let many = model.open().unwrap_err().to_string();
    assert!(many.contains("1 sequences at a time"), "{many}");
    let most = LoadOptions { n_seqs: usize::MAX, ..options(1, 1) };
    let most = PlacedModel::load(small::model("llama-dense"), cpus(1), &most, &|_, _| {}).map(drop).unwrap_err();
    assert!(most.to_string().contains("65536 are the most"), "{most}");
    model.close(a).unwrap();
    let b = model.open().unwrap();
    assert!(model.begin(a, &[1], sampling, 1).unwrap_err().to_string().contains("closed") && model.len(a).is_err());
    for wrong in
        [model.begin(b, &[128], sampling, 1), model.begin(b, &[1; 257], sampling, 1), model.begin(b, &[], sampling, 1)]
    {
        assert!(matches!(wrong, Err(Error::Request(_) | Error::ContextFull { .. })), "{wrong:?}");
    }
    // A context that is full gives one token more than it has room for.
    model.begin(b, &[1; 250], sampling, usize::MAX).unwrap();
    let mut came = 0;
    while model.next_token().unwrap().is_some() {
        came += 1;
    }
    assert_eq!(came, 7);
}

/// A restricted vocabulary is that of one sequence, and of the tokens that it is set for.
#[test]
fn a_bias_is_of_one_sequence() {
    let mut model = load("llama-dense", cpus(1), &options(3, 1));
    let request = requests(1, &mut Random(5)).remove(0);
    let want = alone(&mut model, &request);
    let n_vocab = model.model().hparams().n_vocab;
    let only = |id: usize| (0..n_vocab).map(|i| if i == id { 0.0 } else { f32::NEG_INFINITY }).collect();
    let [free, bound] = [(); 2].map(|()| model.open().unwrap());
    let wrong = model.set_bias(free, Some(vec![0.0; 3].into())).unwrap_err().to_string();
    assert!(wrong.contains("bias of 3 tokens"), "{wrong}");
    model.set_bias(bound, Some(only(5))).unwrap();
    model.begin(free, &request.prompt, request.sampling, request.most).unwrap();
    let sampling = Sampling {
        sampler: Sampler { temperature: 1.0, ..Sampler::GREEDY },
        penalties: None,
        log_probs: LogProbs::None,
    };
    model.begin(bound, &[1, 2, 3, 4], sampling, 6).unwrap();
    let mut texts: HashMap<Sequence, Text> = HashMap::new();
    while let Some(token) = model.next_token().unwrap() {
        texts.entry(token.sequence).or_default().push(bits(&token));
    }
    assert_eq!(texts[&free], want);
    assert_eq!(texts[&bound].iter().map(|(id, _)| *id).collect::<Vec<_>>(), [5; 6]);
    // Token by token, as a grammar has it.
    for id in [9, 3, 77] {
        model.set_bias(bound, Some(only(id))).unwrap();
        model.begin(bound, &[], sampling, 1).unwrap();
        let token = model.next_token().unwrap().unwrap();
        assert_eq!((token.sequence, token.id as usize), (bound, id));
    }
    assert_eq!(model.len(bound).unwrap(), 4 + 6 + 3);
}

/// They are those of the model, most probable first, whatever is wanted beside them.
#[test]
fn the_most_probable_tokens_come_with_a_token() {
    for n in 1..=2 {
        let mut model = load("llama-dense", cpus(n), &options(3, n));
        let sampler = Sampler { temperature: 1.5, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 3 };
        let of = |log_probs| Sampling { sampler, penalties: None, log_probs };
        let prompt = [1, 2, 3, 4, 5];
        let wanted = [LogProbs::None, LogProbs::Top, LogProbs::Chosen];
        let open = wanted.map(|log_probs| {
            let sequence = model.open().unwrap();
            model.begin(sequence, &prompt, of(log_probs), 12).unwrap();
            sequence
        });
        let mut tokens = [const { Vec::new() }; 3];
        while let Some(token) = model.next_token().unwrap() {
            tokens[open.iter().position(|sequence| *sequence == token.sequence).unwrap()].push(token);
        }
        let [none, top, chosen] = &tokens;
        assert!(none.iter().all(|token| token.log_prob.is_none() && token.top_log_probs.is_empty()));
        assert!(chosen.iter().all(|token| token.top_log_probs.is_empty()));
        assert_eq!(top.iter().map(bits).collect::<Text>(), chosen.iter().map(bits).collect::<Text>());
        let ids: Vec<u32> = top.iter().map(|token| token.id).collect();
        model.close(open[0]).unwrap();
        let again = model.open().unwrap();
        let logits = model.logits(again, &[&prompt[..], &ids[..11]].concat()).unwrap();
        let mut drawn_below = 0;
        for (token, logits) in top.iter().zip(logits.chunks(128).skip(4)) {
            let sum = logits.iter().map(|logit| logit.exp()).sum::<f32>().ln();
            let given = &token.top_log_probs;
            assert!(given.len() == N_TOP && given.is_sorted_by(|a, b| a.1 >= b.1), "{token:?}");
            let is_near = |(id, log_prob): &(u32, f32)| (logits[*id as usize] - sum - log_prob).abs() < 0.01;
            assert!(given.iter().all(is_near), "{token:?}");
            let is_given = |id: usize| given.iter().any(|(given, _)| *given as usize == id);
            let least = given[N_TOP - 1].1;
            assert!((0..128).all(|id| is_given(id) || logits[id] - sum < least + 0.01), "{token:?}");
            match given.iter().find(|(id, _)| *id == token.id) {
                Some((_, own)) => assert_eq!(Some(*own), token.log_prob),
                None => drawn_below += 1,
            }
        }
        assert!((1..12).contains(&drawn_below), "{drawn_below}");
    }
}

/// What a cancelled run has not read, nobody shares, and the sequence reads it later.
#[test]
fn a_run_that_was_cancelled_leaves_nothing_half_read() {
    let prompt: Vec<u32> = (0..600).map(|i| i * 37 % 128).collect();
    let sampling = Sampling { sampler: Sampler::GREEDY, penalties: None, log_probs: LogProbs::Chosen };
    let request = Request { prompt, sampling, most: 5 };
    let options = LoadOptions { n_ctx: 1024, prefixes: Prefixes::Shared, ..options(2, 2) };
    let want = alone(&mut load("llama-dense", cpus(2), &options), &request);
    let mut model = load("llama-dense", cpus(2), &options);
    let first = model.open().unwrap();
    model.begin(first, &request.prompt, sampling, 5).unwrap();
    model.cancel_token().store(true, Ordering::SeqCst);
    let cancelled = model.next_token().unwrap_err();
    assert!(matches!(cancelled, Error::Core(outboard_core::Error::Cancelled)), "{cancelled}");
    model.cancel_token().store(false, Ordering::SeqCst);
    // The other one does not find what the first one was about to read; both go on to their ends.
    let second = model.open().unwrap();
    model.begin(second, &request.prompt, sampling, 5).unwrap();
    let mut texts: HashMap<Sequence, Text> = HashMap::new();
    while let Some(token) = model.next_token().unwrap() {
        texts.entry(token.sequence).or_default().push(bits(&token));
    }
    assert_eq!((&texts[&first], &texts[&second]), (&want, &want));
}

/// A run that is cancelled behind a step back does not count on what the cache had before that.
#[test]
fn a_cancelled_run_behind_a_step_back_is_read_again() {
    let prompt: Vec<u32> = (0..300).map(|i| i * 37 % 128).collect();
    let more: Vec<u32> = (0..50).map(|i| i * 11 % 128).collect();
    let sampling = Sampling { sampler: Sampler::GREEDY, penalties: None, log_probs: LogProbs::Chosen };
    let options = LoadOptions { n_ctx: 1024, prefixes: Prefixes::Shared, ..options(2, 1) };
    let text = |model: &mut PlacedModel, is_cancelled: bool| {
        let sequence = model.open().unwrap();
        model.begin(sequence, &prompt, sampling, 1).unwrap();
        rest(model, sequence, sampling);
        model.truncate(sequence, 200).unwrap();
        // Another one writes to the block that was given back.
        let request = Request { prompt: (0..128).rev().collect(), sampling, most: 1 };
        alone(model, &request);
        model.begin(sequence, &more, sampling, 6).unwrap();
        if is_cancelled {
            model.cancel_token().store(true, Ordering::SeqCst);
            model.next_token().unwrap_err();
            model.cancel_token().store(false, Ordering::SeqCst);
        }
        rest(model, sequence, sampling)
    };
    let want = text(&mut load("llama-dense", cpus(1), &options), false);
    assert_eq!(text(&mut load("llama-dense", cpus(1), &options), true), want);
}

/// After an error, what reads a whole text leaves the sequence as it was.
#[test]
fn what_was_not_read_to_its_end_is_not_there() {
    let sampling = Sampling { sampler: Sampler::GREEDY, penalties: None, log_probs: LogProbs::Chosen };
    let options = LoadOptions { scores: 24, ..options(1, 1) };
    let text = |model: &mut PlacedModel, cancel: &dyn Fn(&mut PlacedModel, Sequence)| {
        let sequence = model.open().unwrap();
        model.fill_cache(sequence, &[5; 40]).unwrap();
        cancel(model, sequence);
        model.begin(sequence, &[1, 2, 3, 4, 5, 6, 7, 8], sampling, 6).unwrap();
        rest(model, sequence, sampling)
    };
    let want = text(&mut load("llama-dense", cpus(1), &options), &|_, _| {});
    let with_cancelled = |act: &dyn Fn(&mut PlacedModel, Sequence) -> bool| {
        let mut model = load("llama-dense", cpus(1), &options);
        let got = text(&mut model, &|model, sequence| {
            model.cancel_token().store(true, Ordering::SeqCst);
            assert!(act(model, sequence));
            model.cancel_token().store(false, Ordering::SeqCst);
            assert_eq!(model.len(sequence).unwrap(), 40);
        });
        assert_eq!(got, want);
    };
    with_cancelled(&|model, sequence| model.fill_cache(sequence, &[9; 60]).is_err());
    with_cancelled(&|model, sequence| model.logits(sequence, &[9; 60]).is_err());
}

/// A sequence goes on behind the tokens that were given to somebody, however many are under way or have come.
#[test]
fn a_prompt_comes_behind_the_tokens_that_were_given() {
    let sampling = Sampling { sampler: Sampler::GREEDY, penalties: None, log_probs: LogProbs::Chosen };
    let text = |model: &mut PlacedModel, waits: usize| {
        let [a, b] = [(); 2].map(|()| model.open().unwrap());
        model.begin(a, &[1, 2, 3, 4], sampling, 20).unwrap();
        model.begin(b, &[4, 3, 2, 1], sampling, 20).unwrap();
        let first = model.next_token_of(a).unwrap().unwrap();
        (0..waits).for_each(|_| assert_eq!(model.next_token_of(b).unwrap().unwrap().sequence, b));
        assert_eq!(model.len(a).unwrap(), 5);
        model.begin(a, &[7, 8, 9], sampling, 5).unwrap();
        let mut text = vec![bits(&first)];
        while let Some(token) = model.next_token_of(a).unwrap() {
            text.push(bits(&token));
        }
        // It has ended, and nobody waits for the other one.
        assert!(model.len(b).unwrap() < 4 + 20);
        model.close(a).unwrap();
        assert!(model.next_token_of(a).is_err());
        text
    };
    let want = text(&mut load("llama-dense", cpus(1), &options(2, 1)), 0);
    assert_eq!(want.len(), 6);
    assert_eq!(text(&mut load("llama-dense", cpus(1), &options(2, 1)), 5), want);
}

/// Penalties count a sequence's own tokens, whoever had its blocks before.
#[test]
fn penalties_do_not_count_what_others_have_left() {
    let plain = Sampling { sampler: Sampler::GREEDY, penalties: None, log_probs: LogProbs::Chosen };
    let penalties = Penalties { last_n: 256, repeat: 4.0, frequency: 1.0, presence: 1.0 };
    let weighed = Sampling { penalties: Some(penalties), ..plain };
    let text = |model: &mut PlacedModel| {
        let sequence = model.open().unwrap();
        model.begin(sequence, &[7; 60], plain, 3).unwrap();
        while model.next_token().unwrap().is_some() {}
        model.begin(sequence, &[9, 8, 7], weighed, 8).unwrap();
        let tokens = rest(model, sequence, weighed);
        model.close(sequence).unwrap();
        tokens
    };
    let want = text(&mut load("llama-dense", cpus(1), &options(2, 1)));
    let mut model = load("llama-dense", cpus(1), &options(2, 1));
    let other = Request { prompt: (0..128).collect(), sampling: weighed, most: 9 };
    alone(&mut model, &other);
    assert_eq!(text(&mut model), want);
}

/// Whoever asks for a token more without new tokens does not write to blocks that others use.
#[test]
fn nobody_writes_to_a_block_that_is_shared() {
    let options = LoadOptions { prefixes: Prefixes::Shared, ..options(3, 1) };
    let mut model = load("llama-dense", cpus(1), &options);
    let prompt: Vec<u32> = (0..128).map(|i| i * 3 % 128).collect();
    let sampling = Sampling { sampler: Sampler::GREEDY, penalties: None, log_probs: LogProbs::Chosen };
    let longer = Request { prompt: [&prompt[..], &[1, 2, 3, 4]].concat(), sampling, most: 6 };
    let want = alone(&mut model, &longer);
    let one = model.open().unwrap();
    let first = model.eval(one, &prompt, Sampler::GREEDY).unwrap();
    assert_eq!(model.len(one).unwrap(), 128);
    assert_eq!(model.eval(one, &[], Sampler::GREEDY).unwrap().0, first.0);
    assert_eq!(alone(&mut model, &longer), want);
}
