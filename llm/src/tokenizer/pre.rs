//! Pre-tokenization: the expressions that cut a text into words before byte-pair merges, by the value of
//! `tokenizer.ggml.pre`. The expressions are those of the models' own `tokenizer.json` files.

use crate::error::{Error, Result};
use fancy_regex::Regex;
use std::ops::Range;

/// How a family of models cuts text.
#[derive(Debug)]
pub(super) struct Family {
    names: &'static [&'static str],
    /// Applied one after the other: each cuts the pieces that the one before has left into matches and what is between.
    splits: &'static [&'static str],
    /// A word that is a token as a whole is taken as such, whatever the merges say.
    pub(super) ignore_merges: bool,
    /// Whether a text begins with BOS where the file does not say.
    pub(super) add_bos: bool,
}

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const DEEPSEEK_V3: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##;
/// Cased letters, as far as the Unicode of that time knew them.
const DEEPSEEK_LLM_WORDS: &str = concat!(
    r"\s?[",
    r"A-Za-z\u{B5}\u{C0}-\u{D6}\u{D8}-\u{F6}\u{F8}-\u{1BA}\u{1BC}-\u{1BF}\u{1C4}-\u{293}\u{295}-\u{2AF}",
    r"\u{370}-\u{373}\u{376}\u{377}\u{37B}-\u{37D}\u{37F}\u{386}\u{388}-\u{38A}\u{38C}\u{38E}-\u{3A1}",
    r"\u{3A3}-\u{3F5}\u{3F7}-\u{481}\u{48A}-\u{52F}\u{531}-\u{556}\u{10A0}-\u{10C5}\u{13A0}-\u{13F5}",
    r"\u{13F8}-\u{13FD}\u{1C90}-\u{1CBA}\u{1CBD}-\u{1CBF}\u{1D00}-\u{1D2B}\u{1D6B}-\u{1D77}",
    r"\u{1D79}-\u{1D9A}\u{1E00}-\u{1F15}\u{1F18}-\u{1F1D}\u{1F20}-\u{1F45}\u{1F48}-\u{1F4D}",
    r"\u{1F50}-\u{1F57}\u{1F59}\u{1F5B}\u{1F5D}\u{1F5F}-\u{1F7D}\u{1F80}-\u{1FB4}\u{1FB6}-\u{1FBC}\u{1FBE}",
    r"\u{1FC2}-\u{1FC4}\u{1FC6}-\u{1FCC}\u{1FD0}-\u{1FD3}\u{1FD6}-\u{1FDB}\u{1FE0}-\u{1FEC}",
    r"\u{1FF2}-\u{1FF4}\u{1FF6}-\u{1FFC}\u{2102}\u{2107}\u{210A}-\u{2113}\u{2115}\u{2119}-\u{211D}\u{2124}",
    r"\u{2126}\u{2128}\u{212A}-\u{212D}\u{212F}-\u{2134}\u{2139}\u{213C}-\u{213F}\u{2145}-\u{2149}\u{214E}",
    r"\u{2183}\u{2184}\u{2C00}-\u{2C7B}\u{2C7E}-\u{2CE4}\u{2CEB}-\u{2CEE}\u{2CF2}\u{2CF3}\u{A640}-\u{A66D}",
    r"\u{A680}-\u{A69B}\u{A722}-\u{A76F}\u{A771}-\u{A787}\u{A78B}-\u{A78E}\u{AB70}-\u{ABBF}",
    r"\u{FB00}-\u{FB06}\u{FB13}-\u{FB17}\u{FF21}-\u{FF3A}\u{FF41}-\u{FF5A}\u{10400}-\u{1044F}",
    r"\u{104B0}-\u{104D3}\u{104D8}-\u{104FB}\u{10C80}-\u{10CB2}\u{10CC0}-\u{10CF2}\u{118A0}-\u{118DF}",
    r"\u{1E900}-\u{1E943}",
    r"]+"
);
const CJK: &str = r"[一-龥ࠀ-一가-퟿]+";

const fn family(names: &'static [&'static str], splits: &'static [&'static str]) -> Family {
    Family { names, splits, ignore_merges: false, add_bos: false }
}

const FAMILIES: &[Family] = &[
    family(&["default"], &[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"]),
    family(
        &["smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"],
        &[r"\p{N}", GPT2],
    ),
    family(
        &["qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "megrez", "hunyuan", "stablelm2", "solar-open", "grok-2"],
        &[QWEN2],
    ),
    family(&["qwen35"], &[QWEN35]),
    Family {
        names: &["llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"],
        splits: &[LLAMA3],
        ignore_merges: true,
        add_bos: true,
    },
    family(&["dbrx", "smaug-bpe", "glm4", "chatglm-bpe"], &[LLAMA3]),
    family(
        &[
            "gpt-2",
            "phi-2",
            "mpt",
            "olmo",
            "jais",
            "trillion",
            "granite-docling",
            "exaone4",
            "gigachat",
            "a.x-4.0",
            "mellum",
        ],
        &[GPT2],
    ),
    family(&["falcon"], &[r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]"]),
    Family { names: &["tekken"], splits: &[TEKKEN], ignore_merges: true, add_bos: true },
    family(&["gpt-4o", "llama4", "kanana2", "minimax-m2"], &[GPT4O]),
    family(
        &["deepseek-llm"],
        &[r"[\r\n]", DEEPSEEK_LLM_WORDS, r"\s?[!-/:-~！-／：-～‘-‟　-。]+", r"\s+$", CJK, r"\p{N}+"],
    ),
    family(&["deepseek-coder"], &[r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", CJK, r"\p{N}"]),
    family(&["deepseek-v3", "hunyuan-dense", "joyai-llm"], &[r"\p{N}{1,3}", r"[一-龥぀-ゟ゠-ヿ]+", DEEPSEEK_V3]),
];

/// The family of that name.
pub(super) fn by_name(name: &str) -> Result<&'static Family> {
    FAMILIES.iter().find(|f| f.names.contains(&name)).ok_or_else(|| {
        let known: Vec<&str> = FAMILIES.iter().flat_map(|f| f.names).copied().collect();
        Error::Model(format!(
            "tokenizer.ggml.pre \"{}\" is not supported (supported: {})",
            crate::gguf::shown(name),
            known.join(", ")
        ))
    })
}

/// The expressions of a family, ready to cut.
#[derive(Debug)]
pub(super) struct Splitter {
    splits: Vec<Regex>,
}

impl Splitter {
    pub(super) fn new(family: &Family) -> Result<Splitter> {
        let splits = family.splits.iter().map(|s| Regex::new(s)).collect::<std::result::Result<_, _>>();
        Ok(Splitter { splits: splits.map_err(|e| Error::Model(format!("pre-tokenizer: {e}")))? })
    }

    /// The words of a text, which together are the whole text.
    pub(super) fn split<'t>(&self, text: &'t str) -> Result<Vec<&'t str>> {
        let mut pieces = vec![text];
        for regex in &self.splits {
            let mut next = Vec::with_capacity(pieces.len() * 2);
            for piece in pieces {
                cut(regex, piece, &mut next)?;
            }
            pieces = next;
        }
        Ok(pieces)
    }
}

/// Cuts a piece into matches and what is between them; none is empty.
fn cut<'t>(regex: &Regex, piece: &'t str, out: &mut Vec<&'t str>) -> Result<()> {
    let mut add = |range: Range<usize>| out.extend(piece.get(range).filter(|p| !p.is_empty()));
    let mut end = 0;
    for found in regex.find_iter(piece) {
        // The expressions go back over long runs of white space; the library bounds how far.
        let found = found.map_err(|_| {
            Error::Request("the text has a run of white space that is too long to be cut into words".into())
        })?;
        add(end..found.start());
        add(found.range());
        end = found.end();
    }
    add(end..piece.len());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split<'t>(name: &str, text: &'t str) -> Vec<&'t str> {
        Splitter::new(by_name(name).unwrap()).unwrap().split(text).unwrap()
    }

    #[test]
    fn every_family_keeps_the_whole_text() {
        let text = "I'm HERE,\tdon't  1234 x\r\n\n  é日本語 カ\u{301} 가 `<=>` ~-- \u{1f642} end  ";
        for name in FAMILIES.iter().flat_map(|f| f.names) {
            assert_eq!(split(name, text).concat(), text, "{name}");
            assert!(split(name, "").is_empty());
        }
    }

    #[test]
    fn families_differ_where_they_should() {
        assert_eq!(split("gpt-2", "a 123  b'll"), ["a", " 123", " ", " b", "'ll"]);
        assert_eq!(split("smollm", "a 123"), ["a", " ", "1", "2", "3"]);
        assert_eq!(split("qwen2", "a 12\n\n DON'T"), ["a", " ", "1", "2", "\n\n", " DON", "'T"]);
        assert_eq!(split("llama-bpe", "12345 (x)"), ["123", "45", " (", "x", ")"]);
        assert_eq!(split("default", "a<=b12345"), ["a", "<=", "b", "123", "45"]);
        assert_eq!(split("deepseek-coder", "x\n12 y"), ["x", "\n", "1", "2", " y"]);
    }

    #[test]
    fn an_unknown_family_is_named() {
        assert!(
            by_name("x\ny").unwrap_err().to_string().contains("\"x\\ny\" is not supported (supported: default, smollm")
        );
    }
}
