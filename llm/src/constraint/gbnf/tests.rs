//! Texts of grammars, and almost of grammars, against a reader that tries every way.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use super::{Grammar, Part, parse, to_lark};
use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, TokEnv};
use llguidance::{Matcher, ParserFactory};
use std::collections::BTreeSet;

const JSON: &str = r#"
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws

object ::=
  "{" ws (
            string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws

array  ::= # of anything
  "[" ws (
            value
    ("," ws value)*
  )? "]" ws

string ::=
  "\"" (
    [^"\\\x7F\x00-\x1F] |
    "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) # escapes
  )* "\"" ws

number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws

# A limit on blanks
ws ::= | " " | "\n" [ \t]{0,20}
"#;

const GRAMMARS: [&str; 18] = [
    JSON,
    // Sums, whose groups go into one another.
    "root ::= (expr \"=\" ws term \"\\n\")+\nexpr ::= term ([-+*/] term)*\nterm ::= \"(\" ws expr \")\" ws | ident | num\n\
     ident ::= [a-z] [a-z0-9_]* ws\nnum ::= [0-9]+ ws\nws ::= [ \\t\\n]*\n",
    // No rule goes back to itself.
    "root ::= item+\nitem ::= \"- \" [^\\r\\n\\x0b\\x0c\\x85\\u2028\\u2029]+ \"\\n\"\n",
    // As a schema's grammar is written.
    "root ::= \"{\" space a-kv ( \",\" space ( b-kv ) )? \"}\" space\na-kv ::= \"\\\"a\\\"\" space \":\" space node\n\
     b-kv ::= \"\\\"b\\\"\" space \":\" space integer\nnode ::= \"[\" space (node (\",\" space node)*)? \"]\" space | string\n\
     integer ::= (\"-\"? integral-part) space\nintegral-part ::= [0] | [1-9] [0-9]{0,15}\nstring ::= \"\\\"\" char* \"\\\"\" space\n\
     char ::= [^\"\\\\\\x7F\\x00-\\x1F] | [\\\\] ([\"\\\\bfnrt] | \"u\" [0-9a-fA-F]{4})\nspace ::= | \" \" | \"\\n\"{1,2} [ \\t]{0,20}\n",
    // Alternatives on lines of their own, and names that are used before they are there.
    "root ::=\n  \"a\" rest\n  | \"b\" # or\n  | rest rest\n\nrest ::= \"<\" root \">\" | [日-本é]\n",
    "root ::= \"x\"{2,3} nest? .\nnest ::= \"(\" nest{0,2} \")\" | \"()\"\n",
    // Lexemes of the same length at the same place.
    "root ::= [0-9] tail | [1-5] \"!\" tail | \"\" \"?\"\ntail ::= \".\" tail \".\" | \"0\"\n",
    "root ::= \"a\" root \"b\" | \"\"\n",
    "root ::= root \",\" [a-c]{2} | [a-c]{2}\n",
    // The longest lexeme may be the wrong one.
    "root ::= [a-z]* more\nmore ::= \"end\" more | \"end\"\n",
    "root ::= [0-9]+ root \"x\" | \"y\"\n",
    "root ::= \"a\" root \"c\" | \"ab\" root | \"bc\"\n",
    "root ::= item root | item\nitem ::= \"<\" root \">\" | \"<\" .* \">\"\n",
    "root ::= \"(\" root \")\" | (\"a\" | \"b\"? \"c\")* (\"ca\" | \"b\")\n",
    // Characters that begin with the same byte.
    "root ::= s\ns ::= [^。]+ (\"。\" s)?\n",
    "root ::= s\ns ::= \"あ\"+ (\"い\" s)? \"う\"\n",
    // Lexemes that match the same text, behind which others come.
    "root ::= [xy] n \"p\" m | [xz] o \"pqr\"\nn ::= \"(\" n \")\" | \"\"\no ::= \"<\" o \">\" | \"\"\nm ::= \"q\" m \"q\" | \"s\"\n",
    "root ::= \"[\" root \"]\" | [a-c]{1,5000}\n",
];

struct Random(u64);

impl Random {
    /// SplitMix64 (Steele, Lea and Flood, 2014).
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ z >> 31) % n as u64) as usize
    }
}

/// A random text of a part. Far down the last alternative is taken, which comes to an end.
fn sample(grammar: &Grammar, part: &Part, depth: usize, random: &mut Random, to: &mut String) {
    match part {
        Part::Chars(class) => {
            let (first, last) = class[random.below(class.len())];
            let c = first + random.below((last - first + 1).min(90) as usize) as u32;
            to.push(char::from_u32(c).unwrap());
        }
        Part::Sequence(parts) => parts.iter().for_each(|part| sample(grammar, part, depth, random, to)),
        Part::Choice(parts) => {
            let i = if depth > 12 { parts.len() - 1 } else { random.below(parts.len()) };
            sample(grammar, &parts[i], depth, random, to);
        }
        Part::Repeat(part, least, most) => {
            let most = most.unwrap_or(least + 4).min(least + 4) - least;
            let more = if depth > 12 { 0 } else { random.below(most as usize + 1) };
            (0..*least as usize + more).for_each(|_| sample(grammar, part, depth, random, to));
        }
        Part::Rule(rule) => sample(grammar, &grammar.rules[*rule], depth + 1, random, to),
    }
}

/// Where a part may end that begins at a place of a text. Nothing is done twice at the same place, so that rules may begin with themselves.
struct Reader {
    text: Vec<u32>,
    found: Vec<Vec<BTreeSet<usize>>>,
}

impl Reader {
    fn is_of(grammar: &Grammar, text: &str) -> bool {
        let text: Vec<u32> = text.chars().map(u32::from).collect();
        let found = vec![vec![BTreeSet::new(); text.len() + 1]; grammar.rules.len()];
        let mut reader = Reader { text, found };
        loop {
            let mut changed = false;
            for rule in 0..grammar.rules.len() {
                for at in 0..=reader.text.len() {
                    let ends = reader.ends(&grammar.rules[rule], at);
                    changed |= ends.len() > reader.found[rule][at].len();
                    reader.found[rule][at] = ends;
                }
            }
            if !changed {
                return reader.found[grammar.root][0].contains(&reader.text.len());
            }
        }
    }

    fn ends(&self, part: &Part, at: usize) -> BTreeSet<usize> {
        match part {
            Part::Chars(class) => {
                let is_one = |c: &&u32| class.iter().any(|(first, last)| (first..=last).contains(c));
                self.text.get(at).filter(is_one).map(|_| at + 1).into_iter().collect()
            }
            Part::Sequence(parts) => parts.iter().fold([at].into(), |ends, part| self.all(part, &ends)),
            Part::Choice(parts) => parts.iter().flat_map(|part| self.ends(part, at)).collect(),
            Part::Repeat(part, least, most) => {
                let mut now: BTreeSet<usize> = (0..*least).fold([at].into(), |ends, _| self.all(part, &ends));
                let mut all = now.clone();
                let more = most.map_or(usize::MAX, |most| (most - least) as usize).min(self.text.len() + 1);
                for _ in 0..more {
                    now = self.all(part, &now);
                    all.extend(&now);
                }
                all
            }
            Part::Rule(rule) => self.found[*rule][at].clone(),
        }
    }

    fn all(&self, part: &Part, from: &BTreeSet<usize>) -> BTreeSet<usize> {
        from.iter().flat_map(|at| self.ends(part, *at)).collect()
    }
}

fn factory() -> ParserFactory {
    let bytes: TokEnv = ApproximateTokEnv::single_byte_env();
    let mut factory = ParserFactory::new_simple(&bytes).unwrap();
    factory.quiet();
    factory
}

/// Whether llguidance takes a text as a whole.
fn takes(factory: &ParserFactory, lark: &str, text: &str) -> bool {
    let parser = factory.create_parser(TopLevelGrammar::from_lark(lark.to_owned()));
    let mut matcher = Matcher::new(Ok(parser.unwrap_or_else(|e| panic!("{lark}: {e}"))));
    let took = text.bytes().all(|byte| {
        let allowed = matcher.compute_mask_or_eos().is_ok_and(|mask| mask.is_allowed(byte.into()));
        allowed && matcher.consume_token(byte.into()).is_ok()
    });
    took && matcher.is_accepting().unwrap()
}

/// A text with a character more, less, or another one.
fn mistaken(text: &str, random: &mut Random) -> String {
    let mut chars: Vec<char> = text.chars().collect();
    let other = chars.get(random.below(chars.len().max(1))).copied().unwrap_or('"');
    let at = random.below(chars.len() + 1);
    match random.below(3) {
        0 if at < chars.len() => drop(chars.remove(at)),
        1 if at < chars.len() => chars[at] = other,
        _ => chars.insert(at, other),
    }
    chars.into_iter().collect()
}

#[test]
fn what_is_taken_are_the_texts_of_a_grammar() {
    let (factory, mut random) = (factory(), Random(5));
    for (number, grammar) in GRAMMARS.iter().enumerate() {
        let (lark, grammar) =
            (to_lark(grammar).unwrap_or_else(|e| panic!("{number}: {e}")), parse::parse(grammar).unwrap());
        let mut wrong = 0;
        for _ in 0..40 {
            let mut text = String::new();
            sample(&grammar, &Part::Rule(grammar.root), 0, &mut random, &mut text);
            let text: String = if text.chars().count() > 120 { continue } else { text };
            assert!(Reader::is_of(&grammar, &text), "{number}: {text:?}");
            assert!(takes(&factory, &lark, &text), "{number}: {text:?} by\n{lark}");
            let other = mistaken(&text, &mut random);
            let is_of = Reader::is_of(&grammar, &other);
            assert_eq!(takes(&factory, &lark, &other), is_of, "{number}: {other:?} by\n{lark}");
            wrong += usize::from(!is_of);
        }
        assert!(wrong > 0, "{number}");
    }
}

#[test]
fn what_is_wrong_with_a_grammar_is_said() {
    for (grammar, why) in [
        ("", "no rule 'root'"),
        ("root ::= other", "no rule 'other'"),
        ("a ::= \"b\"", "no rule 'root'"),
        ("root ::= \"a", "line 1: '\"' is missing"),
        ("root ::= \"a\"\n  b ::= [a", "line 2: ']' is missing"),
        ("root ::= (\"a\"", "')' is missing"),
        ("root ::= \"a\")", "')' is not expected"),
        ("root ::= \"a\"{3", "'}' is missing"),
        ("root ::= \"a\"{3,2}", "smaller"),
        ("root ::= \"a\"{2001}", "more than 2000"),
        ("root ::= \"a\"{2001,}", "more than 2000"),
        ("root ::= \"\\q\"", "'\\q' is not known"),
        ("root ::= \"\\ud800\"", "D800 is no character"),
        ("root ::= [z-a]", "before its beginning"),
        ("root ::= []", "no character"),
        ("root ::= <think>", "tokens"),
        ("root ::= \"a\"\nroot ::= \"b\"", "two rules 'root'"),
        ("root = \"a\"", "'::=' is missing"),
        ("root ::= * \"a\"", "the name of a rule is expected, not '*'"),
        (&format!("root ::= {}", "(".repeat(100_000)), "within one another"),
    ] {
        let said = to_lark(grammar).unwrap_err();
        assert!(said.contains(why), "{grammar:?}: {said}");
    }
}

/// Small ones that ask for much: each ends soon, with an error or without.
#[test]
fn what_a_grammar_costs_is_bounded() {
    let double: String = (0..60).map(|i| format!("a{i} ::= a{0} a{0}\n", i + 1)).collect();
    let said = to_lark(&format!("root ::= a0\n{double}a60 ::= \"x\"")).unwrap_err();
    assert!(said.contains("20000 parts"), "{said}");
    let loops = |count| format!("root ::= \"a\" root | {}", "[a-z]* ".repeat(count));
    let options = vec!["[a-z]"; 1900].join("|");
    let nested = format!("root ::= {}{options}{} root |", "(".repeat(200), ")*".repeat(200));
    let ranges: String = (0..20_000).step_by(2).map(|i| char::from_u32(0x4e00 + i).unwrap()).collect();
    for (grammar, why) in [
        (loops(11_000), "20000 parts"),
        (loops(9000), "8000 are the most"),
        (loops(6000), "too long"),
        (loops(210), "200 places"),
        (format!("root ::= \"a\"{}", "*".repeat(60_000)), "one behind the other"),
        (nested, "too long"),
        (format!("root ::= [{ranges}]"), "256 are the most"),
    ] {
        let said = to_lark(&grammar).unwrap_err();
        assert!(said.contains(why), "{}: {said}", &grammar[..40]);
    }
    // A chain of rules, of which each comes back to the first one, and many lines of nothing.
    let chain: String = (0..3000).map(|i| format!("r{i} ::= \"{}\" r{} | root \"x\"\n", i % 10, i + 1)).collect();
    let _ = to_lark(&format!("root ::= r0\n{chain}r3000 ::= \"y\""));
    to_lark(&format!("root ::= \"a\"{}| \"b\"", "\n".repeat(65_000))).unwrap();
}
