//! Texts that are read for embeddings and for the probabilities of their tokens: the same whatever is computed beside them, and behind faults.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod failing;
#[path = "small/mod.rs"]
mod small;
mod texts;

use failing::{Helper, World, greedy};
use outboard_core::{DType, Device, Host};
use outboard_cpu::{CpuOptions, cpu_device};
use outboard_host::MemoryBudget;
use outboard_llm::{
    EmbedRequest, Embedding, Error, GenerateOptions, LoadOptions, Model, N_TOP, PlacedModel, Pooling, Prefixes, Result,
    Scale, ScoreRequest, Scores, TextEvent, TextRequest, Texts, Wanted,
};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use texts::Random;

fn cpus(n: usize) -> Vec<Arc<dyn Device>> {
    let (host, budget) = (Host::new(), MemoryBudget::new(None));
    let cpu = |i| cpu_device(&host, &format!("CPU{i}"), CpuOptions::with_threads(1), &budget);
    (0..n).map(|i| -> Arc<dyn Device> { cpu(i) }).collect()
}

fn load(name: &str, devices: usize, n_seqs: usize) -> PlacedModel {
    let split = vec![1.0; devices];
    let options = LoadOptions { n_ctx: 512, n_seqs, n_ubatch: 24, split, ..LoadOptions::default() };
    // Runs of as many tokens of whose probabilities are asked for as there is room for are cut in several ways.
    let options = LoadOptions { scores: if n_seqs % 2 == 0 { 0 } else { 5 * n_seqs }, ..options };
    let options = LoadOptions { prefixes: Prefixes::Shared, ..options };
    PlacedModel::load(small::model(name), cpus(devices), &options, &|_, _| {}).unwrap()
}

fn request(tokens: &[u32], pooling: Pooling) -> EmbedRequest {
    EmbedRequest { tokens: tokens.to_vec(), pooling, scale: Scale::AsItIs, cache_salt: None }
}

/// The embedding of a text that is alone.
fn embed(model: &mut PlacedModel, request: &EmbedRequest) -> Result<Embedding> {
    let sequence = model.open().unwrap();
    let came = model.begin_embedding(sequence, request).and_then(|()| model.next_embedding());
    model.close(sequence).unwrap();
    let (of, embedding) = came?.expect("an embedding should have come");
    assert_eq!(of, sequence);
    embedding
}

fn values(model: &mut PlacedModel, tokens: &[u32], pooling: Pooling) -> Vec<f32> {
    embed(model, &request(tokens, pooling)).unwrap().values
}

fn score_request(tokens: &[u32], top: usize) -> ScoreRequest {
    ScoreRequest { tokens: tokens.to_vec(), top, cache_salt: None }
}

/// The probabilities of a text's tokens that is alone.
fn score(model: &mut PlacedModel, request: &ScoreRequest) -> Scores {
    let sequence = model.open().unwrap();
    model.begin_scores(sequence, request).unwrap();
    let (of, scores) = model.next_scores().unwrap().expect("probabilities should have come");
    model.close(sequence).unwrap();
    assert_eq!(of, sequence);
    scores.unwrap()
}

fn prompt(random: &mut Random, len: usize) -> Vec<u32> {
    (0..len).map(|_| random.below(128) as u32).collect()
}

/// Mean square of what differs, beside that of what is expected.
fn error(got: &[f32], want: &[f32]) -> f64 {
    assert_eq!(got.len(), want.len());
    let square = |value: f64| value * value;
    let off: f64 = got.iter().zip(want).map(|(a, b)| square(f64::from(a - b))).sum();
    off / want.iter().map(|b| square(f64::from(*b))).sum::<f64>()
}

/// The rows of the output matrix.
fn output_matrix(model: &Model) -> Vec<Vec<f32>> {
    let gguf = model.gguf();
    let tensor = gguf.tensor("output.weight").or(gguf.tensor("token_embd.weight")).unwrap();
    assert_eq!(tensor.layout.dtype(), DType::F32);
    let all: Vec<f32> = gguf.data(tensor).as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    all.chunks(tensor.layout.ne()[0]).map(<[f32]>::to_vec).collect()
}

#[test]
fn the_last_row_times_the_output_matrix_is_the_logits() {
    for name in ["llama-dense", "qwen3-dense", "gemma3-dense", "phi3-dense"] {
        let (mut model, tokens) = (load(name, 1, 2), prompt(&mut Random(1), 60));
        let last = values(&mut model, &tokens, Pooling::Last);
        assert_eq!(last.len(), model.model().hparams().n_embd);
        let product = |row: &Vec<f32>| row.iter().zip(&last).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
        let matrix = output_matrix(model.model());
        let got: Vec<f32> = matrix.iter().map(|row| product(row) as f32).collect();
        let sequence = model.open().unwrap();
        let logits = model.logits(sequence, &tokens).unwrap();
        let want = &logits[logits.len() - got.len()..];
        assert!(error(&got, want) < 1e-6, "{name}: {}", error(&got, want));
    }
}

#[test]
fn the_mean_is_that_of_the_last_rows_of_all_beginnings() {
    for name in ["llama-dense", "gemma3-dense"] {
        let (mut model, tokens) = (load(name, 1, 1), prompt(&mut Random(2), 40));
        let mean = values(&mut model, &tokens, Pooling::Mean);
        let mut sum = vec![0.0; mean.len()];
        for end in 1..=tokens.len() {
            let last = values(&mut model, &tokens[..end], Pooling::Last);
            sum.iter_mut().zip(last).for_each(|(sum, value)| *sum += value / tokens.len() as f32);
        }
        assert!(error(&mean, &sum) < 1e-6, "{name}: {}", error(&mean, &sum));
        let unit = EmbedRequest { scale: Scale::Unit, ..request(&tokens, Pooling::Mean) };
        let unit = embed(&mut model, &unit).unwrap().values;
        let length: f32 = mean.iter().map(|value| value * value).sum::<f32>().sqrt();
        let scaled: Vec<f32> = mean.iter().map(|value| value / length).collect();
        assert!(error(&unit, &scaled) < 1e-10);
    }
}

/// The log-probabilities of a row of logits.
fn log_softmax(logits: &[f32]) -> Vec<f64> {
    let sum: f64 = logits.iter().map(|&logit| f64::from(logit).exp()).sum();
    logits.iter().map(|&logit| f64::from(logit) - sum.ln()).collect()
}

#[test]
fn probabilities_are_those_of_the_logits() {
    for name in ["llama-dense", "gemma2-dense", "qwen3-dense", "llama-moe"] {
        let (mut model, tokens) = (load(name, 2, 3), prompt(&mut Random(8), 90));
        let scores = score(&mut model, &score_request(&tokens, N_TOP));
        assert_eq!(scores.log_probs.len(), tokens.len() - 1);
        let sequence = model.open().unwrap();
        let logits = model.logits(sequence, &tokens).unwrap();
        model.close(sequence).unwrap();
        let rows = logits.chunks(logits.len() / tokens.len());
        for (at, (row, own)) in rows.zip(&scores.log_probs).enumerate() {
            let top = scores.top(at);
            let expected = log_softmax(row);
            let (target, best) = (tokens[at + 1], expected.iter().copied().fold(f64::NEG_INFINITY, f64::max));
            assert!((f64::from(*own) - expected[target as usize]).abs() < 1e-4, "{name}, {at}");
            assert!((f64::from(top[0].1) - best).abs() < 1e-4, "{name}, {at}");
            assert!(top.len() == N_TOP && top.is_sorted_by(|a, b| a.1 >= b.1), "{name}, {at}");
            for (id, value) in top {
                assert!((f64::from(*value) - expected[*id as usize]).abs() < 1e-4, "{name}, {at}");
                assert!(*id != target || value == own, "the same token has the same number");
            }
        }
        // With fewer they are the same numbers.
        let few = score(&mut model, &score_request(&tokens, 3));
        assert!((0..few.log_probs.len()).all(|at| few.top(at) == &scores.top(at)[..3]));
        let alone = score(&mut model, &score_request(&tokens, 0));
        assert_eq!((&few.log_probs, &alone.log_probs, alone.top(0).len()), (&scores.log_probs, &scores.log_probs, 0));
    }
}

#[test]
fn of_the_first_token_nothing_is_known() {
    let mut model = load("llama-dense", 1, 2);
    let first = score(&mut model, &score_request(&[7], N_TOP));
    assert!(first.log_probs.is_empty() && first.top(0).is_empty());
    assert_eq!(score(&mut model, &score_request(&[7, 8], N_TOP)).log_probs.len(), 1);
    let sequence = model.open().unwrap();
    let wrong =
        |tokens: &[u32], model: &mut PlacedModel| model.begin_scores(sequence, &score_request(tokens, 0)).unwrap_err();
    assert!(matches!(wrong(&[], &mut model), Error::Request(_)));
    assert!(matches!(wrong(&[1, 128], &mut model), Error::Request(_)));
    // The last one is not read.
    assert!(matches!(wrong(&[1; 514], &mut model), Error::ContextFull { tokens: 513, .. }));
    let capacity = model.capacity();
    assert!(capacity.check_scores(&score_request(&[1; 513], 0)).is_ok());
    assert!(capacity.check_scores(&score_request(&[1; 514], 0)).is_err());
    assert!(capacity.check_scores(&score_request(&[], 0)).is_err());
}

/// Who writes behind a text whose tokens were asked about reads its end only.
#[test]
fn a_text_behind_one_that_was_scored_finds_it_in_the_cache() {
    let mut model = load("llama-dense", 1, 2);
    let tokens = prompt(&mut Random(9), 300);
    let tokenizer = small::tokenizer();
    let mut cached = Vec::new();
    for salt in [None, Some("another")] {
        let salt = salt.map(Arc::from);
        score(&mut model, &ScoreRequest { cache_salt: salt, ..score_request(&tokens, 0) });
        let request =
            TextRequest { prompt: tokens.clone(), options: GenerateOptions { n_predict: Some(1), ..greedy() } };
        let done =
            outboard_llm::generate_many(&mut model, &tokenizer, &[request], &mut |_, _| ControlFlow::Continue(()));
        cached.push(done.unwrap()[0].cached);
        model = load("llama-dense", 1, 2);
    }
    assert!(cached[0] >= 256 && cached[1] == 0, "{cached:?}");
}

/// What is asked for side by side, and what has come of each: the numbers of an embedding or of tokens, or the tokens of a text.
fn outcomes(model: &mut PlacedModel, wanted: &[Wanted]) -> Vec<Result<Vec<u32>>> {
    let tokenizer = small::tokenizer();
    let mut outcomes: Vec<Option<Result<Vec<u32>>>> = vec![None; wanted.len()];
    let mut texts = Texts::new(&tokenizer);
    wanted.iter().cloned().enumerate().for_each(|(number, wanted)| texts.push(number, wanted));
    while !texts.is_empty() {
        texts.step(model, &mut |&number, event| {
            let outcome = match event {
                TextEvent::Token { .. } => return ControlFlow::Continue(()),
                TextEvent::Ended { generation, .. } => Ok(generation.tokens),
                TextEvent::Embedded(embedding) => Ok(embedding.values.iter().map(|value| value.to_bits()).collect()),
                TextEvent::Scored(scores) => Ok(numbers(&scores)),
                TextEvent::Failed(error) => Err(error),
            };
            assert!(outcomes[number].replace(outcome).is_none(), "{number} has ended twice");
            ControlFlow::Continue(())
        });
    }
    assert!(model.is_empty());
    assert_eq!(model.free_tokens(), model.cache_tokens());
    outcomes.into_iter().map(Option::unwrap).collect()
}

fn numbers(scores: &Scores) -> Vec<u32> {
    let places = 0..scores.log_probs.len();
    let top = places.flat_map(|place| scores.top(place)).flat_map(|(id, value)| [*id, value.to_bits()]);
    scores.log_probs.iter().map(|value| value.to_bits()).chain(top).collect()
}

fn text(prompt: Vec<u32>, n_predict: usize) -> Wanted {
    TextRequest { prompt, options: GenerateOptions { n_predict: Some(n_predict), ..greedy() } }.into()
}

/// Texts, embeddings and probabilities of all lengths, some of which begin alike.
fn mixture(random: &mut Random) -> Vec<Wanted> {
    let beginning = prompt(random, 300);
    let lengths = [1, 2, 3, 25, 60, 129, 280, 400];
    let one = |i: usize| {
        let mut tokens = if i % 3 == 0 { beginning.clone() } else { Vec::new() };
        tokens.extend(prompt(random, lengths[i % lengths.len()].min(500 - tokens.len())));
        match i % 5 {
            0 => text(tokens, 1 + i % 11),
            1 => request(&tokens, Pooling::Mean).into(),
            2 => score_request(&tokens, N_TOP).into(),
            3 => score_request(&tokens, 0).into(),
            _ => request(&tokens, Pooling::Last).into(),
        }
    };
    (0..40).map(one).collect()
}

#[test]
fn what_is_read_is_the_same_alone_among_others_and_over_several_devices() {
    let wanted = mixture(&mut Random(3));
    let mut apart = load("llama-dense", 1, 1);
    let expected: Vec<Vec<u32>> =
        wanted.iter().map(|one| outcomes(&mut apart, std::slice::from_ref(one)).remove(0).unwrap()).collect();
    for (devices, n_seqs) in [(1, 2), (1, 7), (2, 1), (2, 5), (4, 6)] {
        let mut model = load("llama-dense", devices, n_seqs);
        for round in 0..2 {
            let got = outcomes(&mut model, &wanted);
            for (i, (got, expected)) in got.iter().zip(&expected).enumerate() {
                let got = got.as_ref().unwrap();
                assert_eq!(got, expected, "{i} of {n_seqs} at a time over {devices} devices, round {round}");
            }
        }
    }
}

/// Nobody's tokens wait for the end of a long text that is read.
#[test]
fn texts_go_on_beside_a_long_text_that_is_read() {
    let tokens = prompt(&mut Random(4), 500);
    let reads: [Wanted; 2] = [request(&tokens, Pooling::Mean).into(), score_request(&tokens, 0).into()];
    for read in reads {
        let mut model = load("llama-dense", 1, 2);
        let tokenizer = small::tokenizer();
        let mut texts = Texts::new(&tokenizer);
        texts.push(0, text(vec![1, 2, 3], 200));
        texts.push(1, read);
        let (mut tokens, mut before) = (0, None);
        while !texts.is_empty() {
            texts.step(&mut model, &mut |_, event| {
                match event {
                    TextEvent::Token { .. } => tokens += 1,
                    TextEvent::Embedded(_) | TextEvent::Scored(_) => before = Some(tokens),
                    TextEvent::Ended { .. } => {}
                    TextEvent::Failed(error) => panic!("{error}"),
                }
                ControlFlow::Continue(())
            });
        }
        // 500 tokens are 21 micro-batches at least, each behind a step; and the text does not keep them from their turn.
        assert!(before.is_some_and(|before| (15..180).contains(&before)), "{before:?} tokens came before");
    }
}

/// A run is for embeddings or for probabilities: those of the other kind do not wait for the end of long texts.
#[test]
fn a_short_text_is_read_beside_long_ones_of_the_other_kind() {
    let tokens = prompt(&mut Random(11), 500);
    let embedding = |n: usize| -> Wanted { request(&tokens[..n], Pooling::Mean).into() };
    let scores = |n: usize| -> Wanted { score_request(&tokens[..n], 1).into() };
    let both: [[&dyn Fn(usize) -> Wanted; 2]; 2] = [[&embedding, &scores], [&scores, &embedding]];
    for [long, short] in both {
        let (mut model, tokenizer) = (load("llama-dense", 1, 4), small::tokenizer());
        let (mut texts, mut came) = (Texts::new(&tokenizer), Vec::new());
        [long(500), long(499), long(498), short(20)].into_iter().enumerate().for_each(|(i, text)| texts.push(i, text));
        while !texts.is_empty() {
            texts.step(&mut model, &mut |&number, event| {
                assert!(matches!(event, TextEvent::Embedded(_) | TextEvent::Scored(_)), "{event:?}");
                came.push(number);
                ControlFlow::Continue(())
            });
        }
        assert_eq!((came.len(), came[0]), (4, 3), "{came:?}");
    }
}

#[test]
fn an_embedding_that_nobody_wants_any_more_gives_its_place_back() {
    let mut model = load("llama-dense", 2, 2);
    let tokenizer = small::tokenizer();
    let mut texts = Texts::new(&tokenizer);
    for number in 0..6 {
        texts.push(number, request(&prompt(&mut Random(5), 400), Pooling::Mean));
    }
    let mut came = Vec::new();
    let mut on_event = |&number: &i32, event| {
        assert!(matches!(event, TextEvent::Embedded(_)), "{event:?}");
        came.push(number);
        ControlFlow::Continue(())
    };
    (0..3).for_each(|_| texts.step(&mut model, &mut on_event));
    texts.retain(&mut model, |number| number % 2 == 1, &mut on_event);
    while !texts.is_empty() {
        texts.step(&mut model, &mut on_event);
    }
    came.sort_unstable();
    assert_eq!(came, [1, 3, 5]);
    assert!(model.is_empty() && model.free_tokens() == model.cache_tokens());
}

#[test]
fn what_cannot_be_embedded_is_an_error_of_its_own() {
    let mut model = load("llama-dense", 1, 2);
    let sequence = model.open().unwrap();
    let wrong = |tokens: &[u32], model: &mut PlacedModel| {
        model.begin_embedding(sequence, &request(tokens, Pooling::Last)).unwrap_err()
    };
    assert!(matches!(wrong(&[], &mut model), Error::Request(_)));
    assert!(matches!(wrong(&[128], &mut model), Error::Request(_)));
    assert!(matches!(wrong(&[1; 513], &mut model), Error::ContextFull { tokens: 513, .. }));
    model.logits(sequence, &[1, 2]).unwrap();
    assert!(wrong(&[1], &mut model).to_string().contains("from its beginning"));
    model.close(sequence).unwrap();
    let wanted = [text(vec![1, 2], 4), request(&[], Pooling::Mean).into(), request(&[7; 512], Pooling::Mean).into()];
    let came = outcomes(&mut model, &wanted);
    assert!(came[0].is_ok() && matches!(came[1], Err(Error::Request(_))) && came[2].is_ok());
    let capacity = model.capacity();
    assert!(capacity.check_embedding(&request(&[1; 512], Pooling::Last)).is_ok());
    assert!(capacity.check_embedding(&request(&[1; 513], Pooling::Last)).is_err());
}

/// A small model for three texts at a time on two devices, of which one is lost or breaks when its fate says so.
fn unlucky(world: &World, unlucky: usize) -> (PlacedModel, Arc<failing::Fate>) {
    let (devices, fate) = world.pair(unlucky, i64::MAX);
    let options = LoadOptions { n_ctx: 512, n_seqs: 3, n_ubatch: 12, split: vec![1.0; 2], ..LoadOptions::default() };
    let options = LoadOptions { prefixes: Prefixes::Shared, ..options };
    (PlacedModel::load(world.model.clone(), devices, &options, &|_, _| {}).unwrap(), fate)
}

fn few(random: &mut Random) -> [Wanted; 6] {
    let tokens = prompt(random, 40);
    [
        request(&tokens, Pooling::Mean).into(),
        text(vec![5, 6, 7], 8),
        request(&tokens[..30], Pooling::Last).into(),
        request(&tokens[..3], Pooling::Mean).into(),
        score_request(&tokens[..35], N_TOP).into(),
        score_request(&tokens[..2], 0).into(),
    ]
}

#[test]
fn what_is_read_behind_a_lost_device_is_the_same() {
    let (world, wanted) = (World::new(), few(&mut Random(6)));
    let expected: Vec<_> = outcomes(&mut unlucky(&world, 0).0, &wanted).into_iter().map(Result::unwrap).collect();
    let mut faults = 0;
    for runs in [0, 1, 2, 3, 5, 8] {
        for (lost, forgets) in [(0, false), (1, false), (0, true), (1, true)] {
            let (mut model, fate) = unlucky(&world, lost);
            fate.forgets.store(forgets, Ordering::SeqCst);
            fate.runs.store(runs, Ordering::SeqCst);
            let helper = Helper::default();
            model.set_failover(Box::new(helper.clone()));
            let got: Vec<_> = outcomes(&mut model, &wanted).into_iter().map(Result::unwrap).collect();
            assert_eq!(got, expected, "device {lost} lost after {runs} graphs");
            faults += helper.told.lock().unwrap().len();
        }
    }
    assert!(faults >= 20, "{faults} faults");
}

#[test]
fn an_error_of_a_device_ends_what_is_read_and_later_texts_are_right() {
    let (world, wanted) = (World::new(), few(&mut Random(7)));
    let expected: Vec<_> = outcomes(&mut unlucky(&world, 0).0, &wanted).into_iter().map(Result::unwrap).collect();
    let mut failed = 0;
    for runs in 0..10 {
        let (mut model, fate) = unlucky(&world, runs as usize % 2);
        fate.until_broken.store(runs, Ordering::SeqCst);
        for (got, expected) in outcomes(&mut model, &wanted).iter().zip(&expected) {
            match got {
                Ok(got) => assert_eq!(got, expected, "after {runs} graphs"),
                Err(error) => assert!(matches!(error, Error::Core(_)), "{error}"),
            }
            failed += usize::from(got.is_err());
        }
        let again: Vec<_> = outcomes(&mut model, &wanted).into_iter().map(Result::unwrap).collect();
        assert_eq!(again, expected, "after {runs} graphs");
    }
    assert!(failed >= 10, "{failed} have failed");
}
