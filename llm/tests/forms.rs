//! Texts that have a form, beside others that have none: each is the same alone, and nobody waits for them but themselves.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod failing;
mod small;
mod texts;
mod words;

use failing::{Helper, World};
use outboard_core::op::Sampler;
use outboard_core::{Device, Host};
use outboard_cpu::{CpuOptions, cpu_device};
use outboard_detached::{DetachedOptions, detached_device};
use outboard_host::MemoryBudget;
use outboard_llm::tokenizer::Tokenizer;
use outboard_llm::{
    Constraint, Finish, Form, FormedText, GenerateOptions, Generation, LoadOptions, LogProbs, PlacedModel, Sampling,
    TextEvent, TextRequest, Texts, TokenSet, Vocabulary,
};
use std::ops::ControlFlow;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use texts::Random;

const SCHEMA: &str = r#"{"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}, "n": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "n"], "additionalProperties": false}"#;

fn forms(tokenizer: &Tokenizer) -> Vec<Constraint> {
    let vocabulary = Arc::new(Vocabulary::new(tokenizer).unwrap());
    let forms = [
        Form::JsonSchema(SCHEMA.into()),
        Form::Regex("([a-z]{1,4} ){6,9}end".into()),
        Form::Lark("start: word (\",\" word){5,20}\nword: /[a-p]{2,5}/\n".into()),
    ];
    forms.iter().map(|form| vocabulary.constraint(form).unwrap()).collect()
}

/// Texts of all kinds; every second one has a form.
fn requests(n: usize, forms: &[Constraint], random: &mut Random) -> Vec<TextRequest> {
    let lengths = [1, 2, 3, 7, 20, 33, 64, 90, 128, 150];
    let request = |i: usize| TextRequest {
        prompt: (0..lengths[random.below(lengths.len())]).map(|_| random.below(127) as u32).collect(),
        options: GenerateOptions {
            n_predict: Some(5 + random.below(50)),
            sampler: Sampler { temperature: 1.2, top_k: 0, top_p: 0.98, min_p: 0.0, seed: i as u64 },
            log_probs: LogProbs::Chosen,
            ignore_eos: i % 2 == 0,
            constraint: (i % 2 == 1).then(|| forms[i / 2 % forms.len()].clone()),
            ..GenerateOptions::default()
        },
    };
    (0..n).map(request).collect()
}

type Tokens = (Vec<u32>, Vec<u32>, Finish);

fn tokens(generation: &Generation) -> Tokens {
    (generation.tokens.clone(), generation.log_probs.iter().map(|p| p.to_bits()).collect(), generation.finish)
}

fn cpus(n: usize) -> Vec<Arc<dyn Device>> {
    let (host, budget) = (Host::new(), MemoryBudget::new(None));
    (0..n)
        .map(|i| -> Arc<dyn Device> { cpu_device(&host, &format!("CPU{i}"), CpuOptions::with_threads(1), &budget) })
        .collect()
}

fn cards() -> Vec<Arc<dyn Device>> {
    let host = Host::new();
    ["A", "B"].map(|name| -> Arc<dyn Device> { detached_device(&host, name, DetachedOptions::default()) }).into()
}

fn load(name: &str, devices: Vec<Arc<dyn Device>>, n_seqs: usize) -> PlacedModel {
    let options =
        LoadOptions { n_ctx: 256, n_seqs, n_ubatch: 24, split: vec![1.0; devices.len()], ..LoadOptions::default() };
    PlacedModel::load(small::model(name), devices, &options, &|_, _| {}).unwrap()
}

/// All texts, as many at a time as there is room for, the next ones whenever one has ended.
fn run(model: &mut PlacedModel, tokenizer: &Tokenizer, requests: &[(usize, TextRequest)]) -> Vec<(usize, Tokens)> {
    let mut texts = Texts::new(tokenizer);
    requests.iter().cloned().for_each(|(number, request)| texts.push(number, request));
    let mut done = Vec::new();
    while !texts.is_empty() {
        texts.step(model, &mut |number, event| {
            match event {
                TextEvent::Token { .. } => {}
                TextEvent::Ended { generation, .. } => done.push((*number, tokens(&generation))),
                TextEvent::Embedded(_) | TextEvent::Scored(_) => panic!("nobody asked for one"),
                TextEvent::Failed(error) => panic!("{error}"),
            }
            ControlFlow::Continue(())
        });
    }
    done
}

fn check(name: &str, devices: &dyn Fn() -> Vec<Arc<dyn Device>>, n_seqs: usize) {
    let tokenizer = words::ascii();
    let (forms, mut random) = (forms(&tokenizer), Random(n_seqs as u64));
    let requests: Vec<(usize, TextRequest)> = requests(14, &forms, &mut random).into_iter().enumerate().collect();
    let mut model = load(name, devices(), n_seqs);
    let want: Vec<(usize, Tokens)> =
        requests.iter().flat_map(|one| run(&mut model, &tokenizer, std::slice::from_ref(one))).collect();
    for round in 0..2 {
        let mut mixed = requests.clone();
        (1..mixed.len()).for_each(|i| mixed.swap(i, random.below(i + 1)));
        let mut got = run(&mut model, &tokenizer, &mixed);
        got.sort_by_key(|(number, _)| *number);
        for (got, want) in got.iter().zip(&want) {
            let what = format!(
                "{name}, {} devices, {n_seqs} at a time, round {round}, text {}",
                model.devices().len(),
                want.0
            );
            assert_eq!(got.1, want.1, "{what}");
        }
        assert_eq!(model.free_tokens(), model.cache_tokens(), "what was given up is free");
    }
}

#[test]
fn a_text_is_the_same_beside_texts_that_have_a_form() {
    for n_seqs in [2, 5, 16] {
        check("llama-dense", &|| cpus(1), n_seqs);
    }
    check("gemma3-dense", &|| cpus(1), 7);
}

#[test]
fn the_same_over_several_devices() {
    for n in [2, 4] {
        check("llama-dense", &|| cpus(n), 9);
    }
    check("qwen3-dense", &|| cpus(2), 16);
    check("llama-dense", &cards, 6);
}

#[test]
fn texts_have_their_form() {
    let tokenizer = words::ascii();
    let forms = forms(&tokenizer);
    let mut model = load("llama-dense", cpus(1), 4);
    let request = |seed: u64| {
        let sampler = Sampler { temperature: 1.0, seed, ..Sampler::GREEDY };
        let constraint = Some(forms[seed as usize % 3].clone());
        (
            seed as usize,
            TextRequest {
                prompt: vec![1, 2, 3],
                options: GenerateOptions { sampler, constraint, ..GenerateOptions::default() },
            },
        )
    };
    let requests: Vec<_> = (0..30).map(request).collect();
    for (number, (ids, _, finish)) in run(&mut model, &tokenizer, &requests) {
        let text = tokenizer.decode(&ids, outboard_llm::tokenizer::SpecialTokens::Skip);
        assert_eq!(finish, Finish::Eos, "{text}");
        match number % 3 {
            0 => {
                let value: serde_json::Value = serde_json::from_str(&text).unwrap();
                assert!(value["name"].as_str().unwrap().len() <= 12 && value["n"].as_u64().unwrap() < 100, "{text}");
            }
            1 => {
                assert!(text.ends_with(" end") && (7..=10).contains(&text.split(' ').count()), "{text}");
                assert!(!tokenizer.is_eog(*ids.last().unwrap()), "what is complete ends without one more token");
            }
            _ => assert!(text.split(',').all(|word| (2..=5).contains(&word.len())), "{text}"),
        }
    }
}

/// A prompt that another one reads meanwhile does not hold up a text that waits after each token, and is not enqueued all at once behind it.
#[test]
fn a_long_prompt_does_not_hold_up_a_text_that_has_a_form() {
    let world = World::new();
    for n in 1..=2 {
        let (devices, fates): (Vec<_>, Vec<_>) = (0..n).map(|i| world.device(["A", "B"][i], None)).unzip();
        let runs = || fates[0].runs.load(Ordering::SeqCst);
        let options = LoadOptions { n_ctx: 256, n_seqs: 4, n_ubatch: 8, split: vec![1.0; n], ..LoadOptions::default() };
        let mut model = PlacedModel::load(world.model.clone(), devices, &options, &|_, _| {}).unwrap();
        let sampling = Sampling { sampler: Sampler::GREEDY, penalties: None, log_probs: LogProbs::None };
        let [held, long] = [(); 2].map(|()| model.open().unwrap());
        model.begin(held, &[1, 2, 3, 4], sampling, 20).unwrap();
        model.allow(held, &TokenSet::new(128, 7..9)).unwrap();
        assert!((7..9).contains(&model.next_token().unwrap().unwrap().id));
        model.begin(long, &(0..240).map(|i| i * 7 % 120).collect::<Vec<u32>>(), sampling, 1).unwrap();
        let mut most = 0;
        for id in 10..29 {
            let before = runs();
            model.allow(held, &TokenSet::new(128, [id])).unwrap();
            let token = model.next_token_of(held).unwrap().unwrap();
            assert_eq!((token.sequence, token.id), (held, id));
            most = most.max(before - runs());
        }
        // Of more than sixty parts.
        assert!(most <= 2 * (n as i64 + 3), "{n} devices: {most} graphs for a token");
        assert!(model.next_token().unwrap().is_some_and(|token| token.sequence == long));
        assert!(model.next_token().unwrap().is_none());
    }
}

/// A text of any tokens that says nothing of the second one until it is told to, or everybody who could tell has gone.
struct Slow(Arc<Mutex<Receiver<()>>>);

impl FormedText for Slow {
    fn first(&self) -> TokenSet {
        TokenSet::new(128, 0..120)
    }

    fn push(&mut self, _: u32) -> outboard_llm::Result<Option<TokenSet>> {
        let _ = self.0.lock().unwrap().recv();
        Ok(Some(self.first()))
    }
}

fn slow() -> (Sender<()>, Constraint) {
    let (go_on, told) = channel();
    let told = Arc::new(Mutex::new(told));
    (go_on, Constraint::new(128, move || Box::new(Slow(told.clone()))))
}

fn greedy(n_predict: usize, constraint: Option<Constraint>) -> TextRequest {
    let options =
        GenerateOptions { n_predict: Some(n_predict), ignore_eos: true, constraint, ..GenerateOptions::default() };
    TextRequest { prompt: vec![1, 2, 3], options }
}

#[test]
fn a_form_that_takes_long_holds_up_its_own_text_alone() {
    let (tokenizer, mut model) = (words::ascii(), load("llama-dense", cpus(1), 4));
    let (go_on, form) = slow();
    let mut texts = Texts::new(&tokenizer);
    texts.push("slow", greedy(5, Some(form)));
    (0..3).for_each(|_| texts.push("free", greedy(30, None)));
    let regex = Form::Regex("[a-z]{40}".into());
    let quick = Arc::new(Vocabulary::new(&tokenizer).unwrap()).constraint(&regex).unwrap();
    texts.push("formed", greedy(30, Some(quick)));
    let mut order = Vec::new();
    while !texts.is_empty() {
        texts.step(&mut model, &mut |key, event| {
            if let TextEvent::Ended { generation, .. } = event {
                order.push(*key);
                assert!(generation.tokens.len() == if *key == "slow" { 5 } else { 30 } || *key == "formed");
            }
            ControlFlow::Continue(())
        });
        if order.len() == 4 {
            (0..5).for_each(|_| go_on.send(()).unwrap());
        }
    }
    assert_eq!(order, ["free", "free", "free", "formed", "slow"]);
}

#[test]
fn a_form_that_takes_too_long_ends_its_text_and_few_are_left_at_work() {
    let (tokenizer, mut model) = (words::ascii(), load("llama-dense", cpus(1), 2));
    let mut texts = Texts::new(&tokenizer);
    let (go_on, form) = slow();
    texts.push((), greedy(5, Some(form.clone())));
    let mut failed = String::new();
    while !texts.is_empty() {
        texts.step(&mut model, &mut |(), event| {
            if let TextEvent::Failed(error) = event {
                failed = error.to_string();
            }
            ControlFlow::Continue(())
        });
    }
    assert!(failed.contains("not found in 10 s"), "{failed}");
    let mut refused = None;
    for given_up in 1..20 {
        texts.push((), greedy(5, Some(form.clone())));
        let mut has_token = false;
        while !has_token && refused.is_none() {
            texts.step(&mut model, &mut |(), event| {
                match event {
                    TextEvent::Token { .. } => has_token = true,
                    TextEvent::Failed(error) => refused = Some((given_up, error.to_string())),
                    event => panic!("{event:?}"),
                }
                ControlFlow::Continue(())
            });
        }
        texts.retain(&mut model, |()| false, &mut |_, _| ControlFlow::Continue(()));
    }
    let (given_up, error) = refused.unwrap();
    // One of the text that was too late, and those that were given up.
    assert!(given_up == 8 && error.contains("ask again"), "{given_up}: {error}");
    drop(go_on);
    // Those that are at work end now.
    let (start, mut ended) = (Instant::now(), false);
    while !ended {
        assert!(start.elapsed() < Duration::from_secs(60), "they are still at work");
        texts.push((), greedy(5, Some(form.clone())));
        while !texts.is_empty() {
            texts.step(&mut model, &mut |(), event| {
                ended |= matches!(event, TextEvent::Ended { .. });
                ControlFlow::Continue(())
            });
        }
    }
}

#[test]
fn what_may_come_is_said_when_it_is_known() {
    let mut model = load("llama-dense", cpus(1), 2);
    let sampling = Sampling { sampler: Sampler::GREEDY, penalties: None, log_probs: LogProbs::None };
    let sequence = model.open().unwrap();
    model.begin(sequence, &[1, 2, 3, 4], sampling, 5).unwrap();
    let none = model.allow(sequence, &TokenSet::new(128, [])).unwrap_err().to_string();
    assert!(none.contains("no token is allowed"), "{none}");
    // A bias is added, and excludes.
    let bias: Arc<[f32]> = (0..128).map(|id| if id == 50 { f32::NEG_INFINITY } else { 0.0 }).collect();
    model.set_bias(sequence, Some(bias)).unwrap();
    assert!(model.allow(sequence, &TokenSet::new(128, [50])).is_err());
    model.allow(sequence, &TokenSet::new(128, [50, 51])).unwrap();
    let token = model.next_token().unwrap().unwrap();
    assert_eq!(token.id, 51);
    assert!(model.next_token().unwrap().is_none(), "it waits");
    model.allow(sequence, &TokenSet::new(128, [60])).unwrap();
    assert_eq!(model.next_token().unwrap().unwrap().id, 60);
    // Another prompt is free again.
    model.set_bias(sequence, None).unwrap();
    model.begin(sequence, &[9, 8], sampling, 3).unwrap();
    assert_eq!((0..4).filter(|_| model.next_token().unwrap().is_some()).count(), 3);
}

/// Servers are lost at every moment of texts that have a form, and of others beside them.
#[test]
fn texts_go_on_behind_a_fault() {
    let mut world = World::new();
    world.tokenizer = words::ascii();
    let forms = forms(&world.tokenizer);
    let requests: Vec<(usize, TextRequest)> = requests(4, &forms, &mut Random(5))
        .into_iter()
        .map(|request| {
            let prompt = request.prompt[..request.prompt.len().min(11)].to_vec();
            let options = GenerateOptions { n_predict: Some(9), ..request.options };
            TextRequest { prompt, options }
        })
        .enumerate()
        .collect();
    let model = |devices: Vec<Arc<dyn Device>>| {
        let split = vec![1.0; devices.len()];
        let options = LoadOptions { n_ctx: 64, n_seqs: 3, n_ubatch: 8, split, ..LoadOptions::default() };
        PlacedModel::load(world.model.clone(), devices, &options, &|_, _| {}).unwrap()
    };
    let sorted = |mut texts: Vec<(usize, Tokens)>| {
        texts.sort_by_key(|(number, _)| *number);
        texts
    };
    let want = sorted(run(&mut model(world.pair(0, i64::MAX).0), &world.tokenizer, &requests));
    let mut faults = 0;
    for runs in 0..14 {
        let (unlucky, forgets) = (runs as usize % 2, runs / 2 % 2 == 0);
        let (devices, fate) = world.pair(unlucky, runs);
        fate.forgets.store(forgets, Ordering::SeqCst);
        let mut engine = model(devices);
        let helper = Helper::default();
        engine.set_failover(Box::new(helper.clone()));
        let got = sorted(run(&mut engine, &world.tokenizer, &requests));
        assert_eq!(got, want, "lost after {runs} graphs, without its memory: {forgets}");
        faults += helper.told.lock().unwrap().len();
    }
    assert!(faults >= 12, "{faults} faults");
}
