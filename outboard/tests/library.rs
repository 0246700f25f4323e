//! The library as a program sees it, on this machine's devices.
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[allow(unreachable_pub)]
#[path = "../../integration/src/small.rs"]
mod small;

use outboard::{
    ConnectOptions, Devices, Error, Finish, Message, Model, PlaceOptions, Request, Runner, ScoreRequest, Split, devices,
};
use std::io::ErrorKind;
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio_stream::StreamExt;

fn model() -> &'static Model {
    static MODEL: OnceLock<(TempDir, Model)> = OnceLock::new();
    let open = || {
        let dir = tempfile::tempdir().unwrap();
        let model = Model::open(small::small_model(dir.path())).unwrap();
        (dir, model)
    };
    &MODEL.get_or_init(open).1
}

fn cpu() -> Devices {
    devices::local(Some(1)).unwrap()
}

fn runner(options: PlaceOptions) -> Runner {
    model().place(&cpu(), &options).unwrap().run().unwrap()
}

fn request(prompt: &str) -> Request {
    Request::new(prompt).max_tokens(12).ignore_eos()
}

#[test]
fn a_text_has_as_many_probabilities_as_tokens_behind_the_first() {
    let runner = runner(PlaceOptions { context: Some(64), ..PlaceOptions::default() });
    let written = runner.generate(request("abcd").log_probs()).unwrap().complete().unwrap();
    let prompt = model().encode("abcd").unwrap();
    let whole = [prompt.clone(), written.tokens.clone()].concat();
    let scores = runner.score(ScoreRequest::tokens(whole).top(2)).unwrap().wait().unwrap();
    assert_eq!(scores.log_probs.len(), prompt.len() - 1 + 12);
    for (i, (own, id)) in written.log_probs.iter().zip(&written.tokens).enumerate() {
        let place = prompt.len() - 1 + i;
        assert!((own - scores.log_probs[place]).abs() < 1e-3, "{i}");
        // The most probable token was taken.
        assert_eq!((scores.top(place).len(), scores.top(place)[0]), (2, (*id, scores.log_probs[place])), "{i}");
    }
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let again = runtime.block_on(runner.score("abcd").unwrap()).unwrap();
    assert_eq!(again.log_probs, scores.log_probs[..prompt.len() - 1]);
    // What is dropped ends, and what cannot be is told of at once.
    drop(runner.score(ScoreRequest::tokens(vec![5; 64])));
    assert!(matches!(runner.check_scores(ScoreRequest::tokens(vec![5; 66])), Err(Error::ContextFull { .. })));
    assert!(runner.check_scores(ScoreRequest::tokens(vec![5; 65])).is_ok());
    assert!(matches!(runner.score(ScoreRequest::tokens(vec![])), Err(Error::Request(_))));
}

#[test]
fn a_text_is_the_same_as_an_iterator_and_as_a_stream_and_as_a_whole() {
    let runner = runner(PlaceOptions { context: Some(64), ..PlaceOptions::default() });
    let whole = runner.generate(request("abcd").log_probs()).unwrap().complete().unwrap();
    assert!(whole.tokens.len() == 12 && whole.finish == Finish::Length && whole.log_probs.len() == 12, "{whole:?}");
    let pieces: Vec<_> = runner.generate(request("abcd")).unwrap().map(Result::unwrap).collect();
    let tokens: Vec<u32> = pieces.iter().filter_map(|piece| piece.token).collect();
    let text: String = pieces.iter().map(|piece| piece.text.as_str()).collect();
    assert_eq!((&text, &tokens), (&whole.text, &whole.tokens));
    assert!(pieces.iter().rev().skip(1).all(|piece| piece.end.is_none()) && pieces.last().unwrap().end.is_some());
    let read = async {
        let mut text = runner.generate(request("abcd")).unwrap().stream();
        let mut all = String::new();
        while let Some(piece) = text.next().await {
            all += &piece.unwrap().text;
        }
        assert!(text.next().await.is_none());
        // As an iterator, it may be used in a task, too.
        assert_eq!(runner.generate(request("abcd")).unwrap().count(), pieces.len());
        all
    };
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    assert_eq!(runtime.block_on(read), whole.text);
}

#[test]
fn texts_side_by_side_and_in_a_queue_are_those_that_are_alone() {
    let prompts = ["ab", "cdef", "gh", "abcdef", "hg"];
    let alone = runner(PlaceOptions { context: Some(64), ..PlaceOptions::default() });
    let alone: Vec<_> =
        prompts.iter().map(|p| alone.generate(request(p)).unwrap().complete().unwrap().tokens).collect();
    // Room for two at a time, and in the cache for little more than one.
    for cache_tokens in [None, Some(128)] {
        let options = PlaceOptions { context: Some(64), sequences: 2, cache_tokens, ..PlaceOptions::default() };
        let runner = runner(options);
        let texts: Vec<_> = prompts.iter().map(|p| runner.generate(request(p)).unwrap()).collect();
        drop(runner);
        let together: Vec<_> = texts.into_iter().map(|text| text.complete().unwrap().tokens).collect();
        assert_eq!(together, alone, "{cache_tokens:?}");
    }
}

#[test]
fn a_text_that_is_dropped_makes_room() {
    let runner = runner(PlaceOptions { context: Some(100_000), ..PlaceOptions::default() });
    let mut endless = runner.generate(Request::new("ab").ignore_eos()).unwrap();
    assert!(endless.next().unwrap().is_ok());
    let next = runner.generate(request("cd")).unwrap();
    drop(endless);
    let start = Instant::now();
    assert_eq!(next.complete().unwrap().tokens.len(), 12);
    assert!(start.elapsed() < Duration::from_secs(30));
    // So does the end of everything: nobody waits for the rest of it.
    drop((runner.generate(Request::new("ab").ignore_eos()).unwrap(), runner));
    assert!(start.elapsed() < Duration::from_secs(60));
}

#[test]
fn what_does_not_fit_is_said_at_once_with_numbers() {
    let options = PlaceOptions { context: Some(256), sequences: 2, cache_tokens: Some(128), ..PlaceOptions::default() };
    let runner = runner(options);
    match runner.generate(Request::tokens(vec![1; 256])) {
        Err(Error::ContextFull { tokens: 257, used: 0, n_ctx: 256 }) => {}
        other => panic!("{other:?}"),
    }
    match runner.generate(Request::tokens(vec![1; 200]).max_tokens(1)) {
        Err(Error::CacheFull { needed, free: _, total }) => assert_eq!((needed, total), (256, 128)),
        other => panic!("{other:?}"),
    }
    // What is wrong with one text does not end others.
    let good = runner.generate(request("ab")).unwrap();
    let bad = runner.generate(Request::tokens([4711]).max_tokens(1)).unwrap().complete();
    assert!(matches!(bad, Err(Error::Request(_))), "{bad:?}");
    assert_eq!(good.complete().unwrap().tokens.len(), 12);
    assert!(runner.generate(Request::new("ab").max_tokens(0)).unwrap().complete().unwrap().tokens.is_empty());
}

#[test]
fn errors_are_types_by_blame() {
    let dir = tempfile::tempdir().unwrap();
    let missing = Model::open(dir.path().join("none.gguf"));
    assert!(matches!(missing, Err(Error::Io { kind: ErrorKind::NotFound, .. })), "{missing:?}");
    std::fs::write(dir.path().join("text.gguf"), "some text, which is no model at all").unwrap();
    let broken = Model::open(dir.path().join("text.gguf"));
    assert!(matches!(&broken, Err(Error::Model { path, .. }) if path.ends_with("text.gguf")), "{broken:?}");
    let nobody = devices::connect("127.0.0.1:1", &ConnectOptions::default());
    assert!(matches!(&nobody, Err(Error::Peer { endpoint, .. }) if endpoint == "127.0.0.1:1"), "{nobody:?}");
    for list in ["", "host:port:port", "ftp://host"] {
        assert!(matches!(devices::connect(list, &ConnectOptions::default()), Err(Error::Request(_))), "{list}");
    }
    let available = devices::Available::open(Some(1), devices::Servers::default()).unwrap();
    assert!(matches!(available.choose(&["CPU7"]), Err(Error::NoSuchDevice { name, .. }) if name == "CPU7"));
    assert!(matches!(available.choose(&["cpu0", "CPU0"]), Err(Error::Request(_))));
    let two = PlaceOptions { split: Split::Parts(vec![1.0, 1.0]), ..PlaceOptions::default() };
    let placed = model().place(&cpu(), &two);
    assert!(matches!(placed, Err(Error::PartsOfSplit { parts: 2, devices: 1 })), "{placed:?}");
    let huge = PlaceOptions { context: Some(1 << 40), ..PlaceOptions::default() };
    assert!(model().place(&cpu(), &huge).is_err());
}

#[test]
fn everything_may_go_to_another_thread() {
    fn is_send<T: Send>() {}
    is_send::<(Model, Devices, outboard::Placed, Runner, outboard::Text, outboard::TextStream, Error)>();
}

#[test]
fn a_chat_is_put_into_the_models_template() {
    let model = model();
    assert_eq!(model.chat(&[Message::new("user", "abcd")]).unwrap(), "abcd");
    let runner = runner(PlaceOptions { context: Some(64), ..PlaceOptions::default() });
    let chat = Request::chat([Message::new("user", "abcd")]).max_tokens(12).ignore_eos();
    let [chat, plain] = [chat, request("abcd")].map(|r| runner.generate(r).unwrap().complete().unwrap().tokens);
    assert_eq!(chat, plain);
    assert_eq!(runner.plan().devices[0].id, "CPU0");
}
