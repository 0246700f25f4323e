use super::Bos::{Add, Omit};
use super::SpecialText::{Literal, Parse};
use super::SpecialTokens::{Show, Skip};
use super::*;
use crate::gguf::GgufWriter;
use proptest::prelude::*;

/// A byte-level vocabulary with a few merges; the byte 0x04 is missing, as in real ones.
fn tiny_bpe_file() -> Vec<u8> {
    let mut tokens: Vec<String> = Vec::new();
    let mut types = Vec::new();
    for b in (0..=255u8).filter(|&b| b != 4) {
        tokens.push(bpe::char_of(b).to_string());
        types.push(1);
    }
    for t in ["he", "ll", "hell", "hello", "Ġw", "Ġwo"] {
        tokens.push(t.into());
        types.push(1);
    }
    for (t, kind) in [("<|im_start|>", 3), ("<|im_end|>", 1), ("<tool>", 4), ("<tool><x>", 4)] {
        tokens.push(t.into());
        types.push(kind);
    }
    let mut w = GgufWriter::new();
    w.text("tokenizer.ggml.model", "gpt2").text("tokenizer.ggml.pre", "smollm").texts("tokenizer.ggml.tokens", &tokens);
    w.i32s("tokenizer.ggml.token_type", &types);
    w.texts("tokenizer.ggml.merges", &["h e", "l l", "he ll", "hell o", "Ġ w", "Ġw o", "no such", "x"]);
    w.u32("tokenizer.ggml.bos_token_id", 261).bool("tokenizer.ggml.add_bos_token", true);
    w.finish().unwrap()
}

fn tiny_bpe() -> Tokenizer {
    Tokenizer::from_gguf(&Gguf::parse(tiny_bpe_file().into()).unwrap()).unwrap()
}

/// A SentencePiece vocabulary: bytes, characters, some joins.
/// Whether a space is put before a text.
#[derive(Clone, Copy, PartialEq)]
enum SpacePrefix {
    Put,
    Left,
}

fn tiny_spm_file(prefix: SpacePrefix) -> Vec<u8> {
    let mut tokens: Vec<String> = vec!["<unk>".into(), "<s>".into(), "</s>".into()];
    let mut types = vec![2, 3, 3];
    tokens.extend((0..=255).map(|b| format!("<0x{b:02X}>")));
    types.extend([6; 256]);
    let pieces = [("▁", -9.0), ("a", -9.0), ("b", -9.0), ("ab", -2.0), ("ba", -1.0), ("▁ab", -3.0), ("aba", -1.5)];
    let mut scores = vec![0.0; tokens.len()];
    for (piece, score) in pieces {
        tokens.push(piece.into());
        types.push(1);
        scores.push(score);
    }
    let mut w = GgufWriter::new();
    w.text("tokenizer.ggml.model", "llama")
        .texts("tokenizer.ggml.tokens", &tokens)
        .f32s("tokenizer.ggml.scores", &scores);
    w.i32s("tokenizer.ggml.token_type", &types).bool("tokenizer.ggml.add_space_prefix", prefix == SpacePrefix::Put);
    w.finish().unwrap()
}

fn tiny_spm(prefix: SpacePrefix) -> Tokenizer {
    Tokenizer::from_gguf(&Gguf::parse(tiny_spm_file(prefix).into()).unwrap()).unwrap()
}

fn texts(t: &Tokenizer, ids: &[u32]) -> Vec<String> {
    ids.iter().map(|&id| String::from_utf8_lossy(t.token_text(id).unwrap()).into_owned()).collect()
}

#[test]
fn bpe_merges_by_rank() {
    let t = tiny_bpe();
    let ids = t.encode("hello wow", Literal, Omit).unwrap();
    assert_eq!(texts(&t, &ids), ["hello", "Ġwo", "w"]);
    // A missing byte disappears and does not join its neighbours.
    assert_eq!(texts(&t, &t.encode("h\u{4}e", Literal, Omit).unwrap()), ["h", "e"]);
    assert_eq!(t.decode(&ids, Skip), "hello wow");
}

#[test]
fn special_tokens() {
    let t = tiny_bpe();
    let start = t.encode("<|im_start|>", Parse, Omit).unwrap();
    assert_eq!(texts(&t, &start), ["<|im_start|>"]);
    assert!(t.encode("<|im_start|>", Literal, Omit).unwrap().len() > 5);
    // Added tokens are found in any text, the longest first; "<|im_end|>" is a control token whatever the file says.
    assert_eq!(texts(&t, &t.encode("<tool><x>a<tool>", Literal, Omit).unwrap()), ["<tool><x>", "a", "<tool>"]);
    assert_eq!(t.kind(t.eot().unwrap()), Some(TokenKind::Control));
    assert!(t.is_eog(t.eot().unwrap()) && !t.is_eog(start[0]));
    assert_eq!((t.decode(&start, Skip), t.decode(&start, Show)), (String::new(), "<|im_start|>".into()));
    assert_eq!((t.encode("", Parse, Add).unwrap(), t.adds_bos()), (vec![261], true));
    assert_eq!(t.token_text(9999), None);
}

#[test]
fn spm_joins_by_score() {
    let t = tiny_spm(SpacePrefix::Left);
    // "ba" has the best score, so that "ab" never comes to be; of equal ones the left comes first.
    assert_eq!(texts(&t, &t.encode("aba", Literal, Omit).unwrap()), ["aba"]);
    assert_eq!(texts(&t, &t.encode("abab", Literal, Omit).unwrap()), ["aba", "b"]);
    assert_eq!(texts(&t, &t.encode(" ab é", Literal, Add).unwrap()), ["<s>", "▁ab", "▁", "<0xC3>", "<0xA9>"]);
    assert_eq!(t.decode(&t.encode(" ab é", Literal, Add).unwrap(), Skip), " ab é");
    assert_eq!(texts(&t, &t.encode("a</s>ab", Parse, Omit).unwrap()), ["a", "</s>", "ab"]);
    let t = tiny_spm(SpacePrefix::Put);
    assert_eq!(texts(&t, &t.encode("ab</s>ab", Parse, Omit).unwrap()), ["▁ab", "</s>", "▁ab"]);
}

#[test]
fn characters_are_put_together() {
    let t = tiny_bpe();
    let ids = t.encode("日é", Literal, Omit).unwrap();
    assert_eq!(ids.len(), 5);
    let mut stream = TextStream::new();
    let pieces: Vec<String> = ids.iter().map(|&id| stream.push(&t, id, Skip)).collect();
    assert_eq!(pieces, ["", "", "日", "", "é"]);
    // A first byte without the rest, then text: the byte is given up as soon as it is clear.
    let lone = t.encode("日", Literal, Omit).unwrap()[0];
    let x = t.encode("x", Literal, Omit).unwrap()[0];
    assert_eq!([stream.push(&t, lone, Skip), stream.push(&t, x, Skip)], ["", "\u{fffd}x"]);
    assert_eq!([stream.push(&t, lone, Skip), stream.finish(), stream.finish()], ["", "\u{fffd}", ""]);
}

#[test]
fn what_is_missing_is_named() {
    let error = |f: &dyn Fn(&mut GgufWriter)| {
        let mut w = GgufWriter::new();
        f(&mut w);
        Tokenizer::from_gguf(&Gguf::parse(w.finish().unwrap().into()).unwrap()).unwrap_err().to_string()
    };
    assert!(error(&|_| ()).contains("no tokenizer"));
    assert!(
        error(&|w| _ = w.text("tokenizer.ggml.model", "t5"))
            .contains("\"t5\" is not supported (supported: gpt2, llama)")
    );
    assert!(error(&|w| _ = w.text("tokenizer.ggml.model", "llama")).contains("no vocabulary"));
    assert!(
        error(&|w| _ = w.text("tokenizer.ggml.model", "gpt2").texts("tokenizer.ggml.tokens", &["a"]))
            .contains("merges")
    );
    assert!(
        error(&|w| _ = w.text("tokenizer.ggml.model", "llama").texts("tokenizer.ggml.tokens", &["a"]))
            .contains("scores")
    );
}

proptest! {
    #[test]
    fn any_text_comes_back(text in any::<String>().prop_map(|t| t.replace('\u{4}', ""))) {
        for t in [tiny_bpe(), tiny_spm(SpacePrefix::Left)] {
            prop_assert_eq!(t.decode(&t.encode(&text, Literal, Add).unwrap(), Skip), &text[..]);
        }
    }

    #[test]
    fn damaged_files_never_panic(flips in prop::collection::vec((any::<u16>(), any::<u8>()), 1..20), text in any::<String>()) {
        for mut file in [tiny_bpe_file(), tiny_spm_file(SpacePrefix::Put)] {
            for (at, value) in &flips {
                let at = usize::from(*at) % file.len();
                file[at] = *value;
            }
            let tokenizer = Gguf::parse(file.into()).ok().and_then(|g| Tokenizer::from_gguf(&g).ok());
            if let Some(t) = tokenizer {
                let ids = t.encode(&format!("{text} hello<|im_start|>"), Parse, Add).unwrap();
                t.decode(&ids, Show);
                prop_assert!(ids.iter().all(|&id| (id as usize) < t.n_vocab()));
            }
        }
    }
}
