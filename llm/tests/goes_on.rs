//! Errors that nothing can be done about: what is under way ends with them, and what is asked for next is as if they had never been.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod failing;
mod small;

use failing::{Fate, Helper, PROMPT, World, greedy, sampled, written};
use outboard_core::Device;
use outboard_core::local::LocalDevice;
use outboard_host::MemoryBudget;
use outboard_llm::{Error, GenerateOptions, LoadOptions, PlacedModel, Prefixes, Result, TextEvent, TextRequest, Texts};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

type Devices = Vec<Arc<dyn Device>>;

fn free(devices: &Devices) -> Vec<u64> {
    devices.iter().map(|device| device.memory().unwrap().free).collect()
}

fn is_broken(error: &Error) -> bool {
    matches!(error, Error::Core(outboard_core::Error::Device { .. }))
}

/// Two devices with so much memory that it can be counted, of which the one with this number has this fate.
fn pair(world: &World, unlucky: usize) -> (Devices, Arc<Fate>) {
    let (devices, mut fates): (Vec<_>, Vec<_>) =
        ["A", "B"].map(|name| world.device(name, Some(1 << 30))).into_iter().unzip();
    (devices, fates.remove(unlucky))
}

/// Prompts of other lengths are other graphs, with the same ops.
#[test]
fn devices_are_not_asked_again_what_they_support_of_other_sizes() {
    let world = World::new();
    let (devices, fate) = pair(&world, 1);
    let mut engine = world.engine(devices);
    let mut asked = |length: usize, refuses: bool| {
        let sequence = failing::only(&mut engine);
        engine.truncate(sequence, 0).unwrap();
        let before = fate.asked.load(Ordering::SeqCst);
        fate.refuses.store(refuses, Ordering::SeqCst);
        let text = world.run(&mut engine, &PROMPT[..length], &sampled()).unwrap();
        assert!(!fate.refuses.load(Ordering::SeqCst), "something was compiled");
        (text.tokens, fate.asked.load(Ordering::SeqCst) - before)
    };
    let (expected, first) = asked(4, false);
    assert!(first > 0);
    assert_eq!(asked(3, false).1, 0);
    // Its sizes may matter to a device.
    assert_eq!(asked(2, true).1, 1);
    assert_eq!(asked(4, false), (expected, 0));
}

/// Graphs that one of two devices runs for the prompt and the text.
const RUNS: i64 = 3 + 12;

#[test]
fn a_text_behind_an_error_of_a_device_is_right() {
    let world = World::new();
    let mut errors = 0;
    for (runs, unlucky) in (0..RUNS).flat_map(|runs| [(runs, 0), (runs, 1)]) {
        let (devices, fate) = pair(&world, unlucky);
        let mut engine = world.engine(devices.clone());
        if runs % 2 == 0 {
            engine.set_failover(Box::new(Helper::default()));
        }
        let expected = world.run(&mut engine, &PROMPT, &sampled()).unwrap();
        let sequence = failing::only(&mut engine);
        engine.truncate(sequence, 0).unwrap();
        let before = free(&devices);
        fate.until_broken.store(runs, Ordering::SeqCst);
        // The last graphs are of steps that are run too far, or not.
        let Err(error) = world.run(&mut engine, &PROMPT, &sampled()) else { continue };
        assert!(is_broken(&error) && engine.has_failed(), "{error}");
        errors += 1;
        engine.truncate(sequence, 0).unwrap();
        let again = world.run(&mut engine, &PROMPT, &sampled()).unwrap();
        assert_eq!((again.tokens, again.log_probs), (expected.tokens, expected.log_probs), "after {runs} graphs");
        assert!(!engine.has_failed());
        assert_eq!(free(&devices), before, "after {runs} graphs");
    }
    assert!(errors >= 2 * RUNS - 3, "{errors} errors");
}

#[test]
fn logits_behind_an_error_of_a_device_are_right() {
    let world = World::new();
    let (devices, fate) = world.pair(1, i64::MAX);
    let mut engine = world.engine(devices);
    let sequence = engine.open().unwrap();
    let expected = engine.logits(sequence, &PROMPT).unwrap();
    engine.truncate(sequence, 0).unwrap();
    engine.logits(sequence, &PROMPT[..5]).unwrap();
    fate.until_broken.store(1, Ordering::SeqCst);
    assert!(is_broken(&engine.logits(sequence, &PROMPT[5..]).unwrap_err()));
    let rest = engine.logits(sequence, &PROMPT[5..]).unwrap();
    assert_eq!(rest, expected[expected.len() - rest.len()..]);
}

/// A model for three texts at a time, which share what they begin with.
fn for_texts(world: &World, devices: Devices) -> PlacedModel {
    let split = vec![1.0; devices.len()];
    let prefixes = Prefixes::Shared;
    let options = LoadOptions { n_ctx: 512, n_seqs: 3, n_ubatch: 64, split, prefixes, ..LoadOptions::default() };
    PlacedModel::load(world.model.clone(), devices, &options, &|_, _| {}).unwrap()
}

fn request(prompt: &[u32], n_predict: usize) -> TextRequest {
    TextRequest { prompt: prompt.to_vec(), options: GenerateOptions { n_predict: Some(n_predict), ..greedy() } }
}

/// A text of two blocks and some tokens.
fn long() -> Vec<u32> {
    (0..300).map(|i| 1 + i * 7 % 90).collect()
}

/// The tokens of a text, and their log-probabilities.
type Tokens = (Vec<u32>, Vec<f32>);

/// What becomes of each text: its tokens or its error.
fn outcomes(world: &World, engine: &mut PlacedModel, requests: &[TextRequest]) -> Vec<Result<Tokens>> {
    let mut outcomes: Vec<Option<Result<Tokens>>> = vec![None; requests.len()];
    let mut texts = Texts::new(&world.tokenizer);
    requests.iter().cloned().enumerate().for_each(|(number, request)| texts.push(number, request));
    while !texts.is_empty() {
        texts.step(engine, &mut |&number, event| {
            let outcome = match event {
                TextEvent::Token { .. } => return ControlFlow::Continue(()),
                TextEvent::Ended { generation, .. } => Ok((generation.tokens, generation.log_probs)),
                TextEvent::Embedded(_) | TextEvent::Scored(_) => panic!("nobody asked for one"),
                TextEvent::Failed(error) => Err(error),
            };
            assert!(outcomes[number].replace(outcome).is_none(), "text {number} has ended twice");
            ControlFlow::Continue(())
        });
    }
    assert!(engine.is_empty());
    outcomes.into_iter().map(Option::unwrap).collect()
}

fn tokens(outcomes: &[Result<Tokens>]) -> Vec<&Tokens> {
    outcomes.iter().map(|outcome| outcome.as_ref().unwrap()).collect()
}

#[test]
fn no_block_that_was_not_written_is_shared() {
    let world = World::new();
    let requests = [request(&PROMPT, 3), request(&PROMPT[2..], 6), request(&long(), 4)];
    let (devices, _) = world.pair(0, i64::MAX);
    let expected = outcomes(&world, &mut for_texts(&world, devices), &requests);
    let expected = tokens(&expected);
    let mut failed = 0;
    for runs in 0..16 {
        let unlucky = runs as usize % 2;
        let (devices, fate) = world.pair(unlucky, i64::MAX);
        let mut engine = for_texts(&world, devices);
        fate.until_broken.store(runs, Ordering::SeqCst);
        let first = outcomes(&world, &mut engine, &requests);
        for (outcome, expected) in first.iter().zip(&expected) {
            match outcome {
                Ok(tokens) => assert_eq!(&tokens, expected),
                Err(error) => assert!(is_broken(error), "{error}"),
            }
        }
        failed += first.iter().filter(|outcome| outcome.is_err()).count();
        let again = outcomes(&world, &mut engine, &requests);
        assert_eq!(tokens(&again), expected, "device {unlucky} broken after {runs} graphs");
        assert_eq!(engine.free_tokens(), engine.cache_tokens());
    }
    assert!(failed >= 20, "{failed} texts failed");
}

#[test]
fn an_error_of_a_device_ends_what_is_under_way_and_one_of_a_text_ends_that_text() {
    let world = World::new();
    let (devices, fate) = pair(&world, 1);
    let alone = free(&devices);
    let mut engine = for_texts(&world, devices.clone());
    let good = request(&PROMPT, 12);
    let expected = outcomes(&world, &mut engine, std::slice::from_ref(&good)).remove(0).unwrap();
    // A token that the model does not have.
    let bad = request(&[4711], 1);
    let all = [good.clone(), bad.clone(), good.clone(), good.clone(), good.clone(), bad, good];
    let ended = outcomes(&world, &mut engine, &all);
    let is_right = |outcome: &Result<Tokens>| outcome.as_ref().is_ok_and(|tokens| *tokens == expected);
    assert_eq!(ended.iter().filter(|outcome| is_right(outcome)).count(), 5);
    assert!([1, 5].iter().all(|&bad| matches!(ended[bad], Err(Error::Request(_)))), "{ended:?}");
    // Three at a time: they end with the device, the others come behind it.
    fate.until_broken.store(4, Ordering::SeqCst);
    let ended = outcomes(&world, &mut engine, &all);
    assert!([0, 2, 3].iter().all(|&n| ended[n].as_ref().is_err_and(is_broken)), "{ended:?}");
    assert!([4, 6].iter().all(|&n| is_right(&ended[n])), "{ended:?}");
    assert!([1, 5].iter().all(|&bad| matches!(ended[bad], Err(Error::Request(_)))), "{ended:?}");
    drop(engine);
    assert_eq!(free(&devices), alone);
}

/// A model on two devices, for which the first one has no room; what happens to the second one; who helps.
fn on_two(world: &World) -> (Devices, PlacedModel, Arc<Fate>, Helper) {
    let options = LoadOptions { n_ctx: 64, n_ubatch: 4, split: vec![1.0, 1.0], ..LoadOptions::default() };
    let (whole, _) = world.device("A", Some(1 << 30));
    let alone = LoadOptions { split: vec![1.0], ..options.clone() };
    let engine = PlacedModel::load(world.model.clone(), vec![whole.clone()], &alone, &|_, _| {}).unwrap();
    let needed = (1 << 30) - whole.memory().unwrap().free;
    drop(engine);
    let (small, _) = world.device("A", Some(needed * 4 / 5));
    let (large, fate) = world.device("B", Some(1 << 30));
    let devices: Devices = vec![small, large];
    let mut engine = PlacedModel::load(world.model.clone(), devices.clone(), &options, &|_, _| {}).unwrap();
    let helper = Helper::default();
    engine.set_failover(Box::new(helper.clone()));
    (devices, engine, fate, helper)
}

#[test]
fn a_model_without_a_place_holds_nothing_and_every_text_tries_once() {
    let world = World::new();
    let (devices, mut engine, fate, helper) = on_two(&world);
    let total = devices[0].memory().unwrap().total;
    let requests = [request(&PROMPT, 5), request(&PROMPT, 5), request(&PROMPT, 5)];
    let expected = outcomes(&world, &mut engine, &requests);
    let before = free(&devices);
    assert!(before[0] < total, "the small one has its part");
    fate.runs.store(4, Ordering::SeqCst);
    fate.forgets.store(true, Ordering::SeqCst);
    let ended = outcomes(&world, &mut engine, &requests);
    for outcome in &ended {
        let error = outcome.as_ref().unwrap_err().to_string();
        assert!(error.starts_with("B: ") && error.contains("memory"), "{error}");
        assert_eq!(error.matches("cannot go on").count(), 1, "{error}");
    }
    // The one that was under way, and the first of those that waited, for both.
    assert_eq!(helper.asked.load(Ordering::SeqCst), 2);
    assert_eq!(devices[0].memory().unwrap().free, total);
    let (again, _) = world.device("B", Some(1 << 30));
    helper.spare.lock().unwrap().push(again.clone());
    let ended = outcomes(&world, &mut engine, &requests);
    assert_eq!(tokens(&ended), tokens(&expected));
    assert_eq!(free(&vec![devices[0].clone(), again]), before);
}

#[test]
fn a_lost_device_is_waited_for_where_the_rest_has_no_room() {
    let world = World::new();
    let (devices, mut engine, fate, helper) = on_two(&world);
    let requests = [request(&PROMPT, 5), request(&PROMPT[1..], 5)];
    let expected = outcomes(&world, &mut engine, &requests);
    let before = free(&devices);
    let lose = |fate: &Fate| {
        fate.runs.store(4, Ordering::SeqCst);
        fate.forgets.store(true, Ordering::SeqCst);
    };
    // It comes back too late, in time, and where nobody waits.
    let wait = |milliseconds: u64| helper.patience.store(milliseconds as usize, Ordering::SeqCst);
    lose(&fate);
    wait(700);
    let start = Instant::now();
    let ended = outcomes(&world, &mut engine, &requests[..1]);
    let took = start.elapsed();
    let error = ended[0].as_ref().unwrap_err().to_string();
    assert!(error.starts_with("B: ") && error.contains("memory"), "{error}");
    assert!(took >= Duration::from_millis(700) && took < Duration::from_secs(20), "{took:?}");
    assert!(helper.asked.load(Ordering::SeqCst) > 1, "it was asked for again");
    let (again, fate) = world.device("B", Some(1 << 30));
    helper.spare.lock().unwrap().push(again);
    assert_eq!(tokens(&outcomes(&world, &mut engine, &requests)), tokens(&expected));
    // In time: the text goes on, and what the other one has is not sent again.
    wait(60_000);
    lose(&fate);
    let (again, fate) = world.device("B", Some(1 << 30));
    let (later, spare) = (again.clone(), helper.spare.clone());
    let comes_back = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(600));
        spare.lock().unwrap().push(later);
    });
    let (told, sent) = (helper.told.lock().unwrap().len(), written(&devices[0]));
    assert_eq!(tokens(&outcomes(&world, &mut engine, &requests)), tokens(&expected));
    comes_back.join().unwrap();
    assert_eq!(helper.told.lock().unwrap().len(), told + 1);
    let weights = engine.loads()[0].weight_bytes;
    let sent = written(&devices[0]) - sent;
    assert!(sent < weights / 2, "{sent} bytes were written beside weights of {weights}");
    assert_eq!(free(&vec![devices[0].clone(), again]), before);
    // Nobody waits.
    wait(0);
    lose(&fate);
    let asked = helper.asked.load(Ordering::SeqCst);
    assert!(outcomes(&world, &mut engine, &requests[..1])[0].is_err());
    assert_eq!(helper.asked.load(Ordering::SeqCst), asked + 1);
}

#[test]
fn nobody_waits_where_there_is_room() {
    let world = World::new();
    let (devices, fate) = pair(&world, 1);
    let mut engine = for_texts(&world, devices);
    let helper = Helper::default();
    helper.patience.store(600_000, Ordering::SeqCst);
    engine.set_failover(Box::new(helper.clone()));
    fate.runs.store(4, Ordering::SeqCst);
    fate.forgets.store(true, Ordering::SeqCst);
    assert!(outcomes(&world, &mut engine, &[request(&PROMPT, 5)])[0].is_ok());
    assert_eq!((helper.asked.load(Ordering::SeqCst), engine.loads().len()), (1, 1));
}

#[test]
fn a_wait_for_a_device_ends_when_the_run_is_cancelled() {
    let world = World::new();
    let (_, mut engine, fate, helper) = on_two(&world);
    helper.patience.store(600_000, Ordering::SeqCst);
    fate.runs.store(4, Ordering::SeqCst);
    fate.forgets.store(true, Ordering::SeqCst);
    let (cancel, asked) = (engine.cancel_token(), helper.asked.clone());
    let stops = std::thread::spawn(move || {
        while asked.load(Ordering::SeqCst) < 2 {
            std::thread::sleep(Duration::from_millis(10));
        }
        cancel.store(true, Ordering::SeqCst);
    });
    let ended = outcomes(&world, &mut engine, &[request(&PROMPT, 5), request(&PROMPT, 5)]);
    stops.join().unwrap();
    assert!(ended.iter().all(Result::is_ok), "{ended:?}");
}

#[test]
fn a_server_that_got_no_further_is_asked_again_for_another_text() {
    let world = World::new();
    let (_, mut engine, fate, helper) = on_two(&world);
    fate.runs.store(4, Ordering::SeqCst);
    fate.hangs.store(true, Ordering::SeqCst);
    let requests = [request(&PROMPT, 5)];
    assert!(outcomes(&world, &mut engine, &requests)[0].is_err());
    assert_eq!(helper.asked.load(Ordering::SeqCst), 0, "it would stop the run again");
    helper.spare.lock().unwrap().push(world.device("B", None).0);
    assert!(outcomes(&world, &mut engine, &requests)[0].is_ok());
    assert_eq!(helper.asked.load(Ordering::SeqCst), 1);
}

#[test]
fn a_device_of_this_process_that_hung_is_opened_again_for_another_text() {
    let world = World::new();
    let (_, mut engine, fate, helper) = on_two(&world);
    let requests = [request(&PROMPT, 5)];
    let expected = outcomes(&world, &mut engine, &requests);
    fate.runs.store(4, Ordering::SeqCst);
    fate.hangs.store(true, Ordering::SeqCst);
    fate.reopens.store(true, Ordering::SeqCst);
    assert!(outcomes(&world, &mut engine, &requests)[0].is_err(), "not by the same run");
    assert_eq!(tokens(&outcomes(&world, &mut engine, &requests)), tokens(&expected));
    assert_eq!(helper.asked.load(Ordering::SeqCst), 0);
}

#[test]
fn a_device_that_was_stopped_is_used_again() {
    let world = World::new();
    let device = outboard_reference::reference_device(&outboard_core::Host::new(), "R", &MemoryBudget::new(None));
    let local = device.as_any().downcast_ref::<LocalDevice>().unwrap();
    let mut engine = for_texts(&world, vec![device.clone()]);
    let requests = [request(&PROMPT, 6)];
    let expected = outcomes(&world, &mut engine, &requests);
    local.abort();
    // It is not as if the caller had stopped it.
    let stopped = outcomes(&world, &mut engine, &requests).remove(0).unwrap_err();
    assert!(stopped.to_string().contains("was stopped"), "{stopped}");
    assert_eq!(tokens(&outcomes(&world, &mut engine, &requests)), tokens(&expected));
}
