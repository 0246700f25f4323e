//! Random texts of JSON schemas and of other forms: each is one of its form, whatever tokens are drawn.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod words;

use outboard_llm::tokenizer::{SpecialTokens, Tokenizer};
use outboard_llm::{Constraint, Form, TokenSet, Vocabulary};
use serde_json::Value;
use std::sync::Arc;

/// Tokens of a text before it is made to end.
const FREE: usize = 60;
/// Tokens of a text at most.
const MOST: usize = 1500;

/// SplitMix64 (Steele, Lea and Flood, 2014).
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ z >> 31) % n as u64) as usize
    }
}

/// What a text is, for how it is made to end.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Json,
    Other,
}

/// What has been written of a text.
#[derive(Default)]
struct Written {
    bytes: Vec<u8>,
    tokens: usize,
    in_string: bool,
    escapes: bool,
}

impl Written {
    fn push(&mut self, bytes: &[u8]) {
        self.tokens += 1;
        self.bytes.extend(bytes);
        for byte in bytes {
            match byte {
                _ if self.escapes => self.escapes = false,
                b'\\' if self.in_string => self.escapes = true,
                b'"' => self.in_string = !self.in_string,
                _ => {}
            }
        }
    }

    fn text(&self) -> String {
        String::from_utf8(self.bytes.clone()).unwrap()
    }
}

struct World {
    tokenizer: Tokenizer,
    vocabulary: Arc<Vocabulary>,
}

impl World {
    fn new() -> World {
        let tokenizer = words::large();
        let vocabulary = Arc::new(Vocabulary::new(&tokenizer).unwrap());
        World { tokenizer, vocabulary }
    }

    fn bytes(&self, id: u32) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.tokenizer.token_bytes(id, SpecialTokens::Skip, &mut bytes);
        bytes
    }

    /// One of those that are allowed: any at first, later what ends a text, and for JSON what ends a string, an object, a list soonest.
    fn draw(&self, allowed: &TokenSet, written: &Written, kind: Kind, random: &mut Random) -> u32 {
        let ids: Vec<u32> = (0..self.tokenizer.n_vocab() as u32).filter(|id| allowed.has(*id)).collect();
        if written.tokens < FREE && random.below(4) > 0 {
            return ids[random.below(ids.len())];
        }
        let rank = |id: u32| match self.bytes(id).as_slice() {
            _ if self.tokenizer.is_eog(id) => 0,
            _ if kind == Kind::Other => 1,
            [b'"'] if written.in_string => 1,
            _ if written.in_string => 2,
            [b'}'] => 1,
            [b']'] => 2,
            [b'"'] => 3,
            [b':' | b','] => 4,
            [b'0'..=b'9'] => 5,
            [b'{' | b'['] => 6,
            _ => 7,
        };
        let best = ids.iter().map(|id| rank(*id)).min().unwrap();
        let best: Vec<u32> = ids.into_iter().filter(|id| rank(*id) == best).collect();
        best[random.below(best.len())]
    }

    /// A random text; `None` if it did not end.
    fn text(&self, constraint: &Constraint, kind: Kind, random: &mut Random) -> Option<String> {
        let mut text = constraint.begin();
        let (mut allowed, mut written) = (text.first(), Written::default());
        while written.tokens < MOST {
            let id = self.draw(&allowed, &written, kind, random);
            if self.tokenizer.is_eog(id) {
                return Some(written.text());
            }
            written.push(&self.bytes(id));
            match text.push(id).unwrap() {
                Some(next) => allowed = next,
                None => return Some(written.text()),
            }
        }
        println!("no end: {:?}", written.text());
        None
    }

    fn constraint(&self, schema: &Value) -> outboard_llm::Result<Constraint> {
        self.vocabulary.constraint(&Form::JsonSchema(schema.to_string()))
    }
}

fn is_valid(schema: &Value, text: &str) -> bool {
    let value: Value = match serde_json::from_str(text) {
        // JSON may have larger numbers than floats.
        Err(e) if e.to_string().starts_with("number out of range") => return true,
        value => value.unwrap_or_else(|e| panic!("{e}: {text:?} of {schema}")),
    };
    let validator = jsonschema::options().should_validate_formats(true).build(schema).unwrap();
    validator.is_valid(&value)
}

#[test]
fn texts_of_schemas_are_valid() {
    let world = World::new();
    let schemas = r##"[
        {"type": "object", "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer", "minimum": 0, "maximum": 130}},
            "required": ["name", "age"], "additionalProperties": false},
        {"type": "array", "items": {"type": "number", "exclusiveMinimum": -1.5, "maximum": 7.25}, "minItems": 2, "maxItems": 5},
        {"enum": ["red", "grün", 3, null, {"a": [1]}]},
        {"anyOf": [{"type": "null"}, {"type": "boolean"}, {"const": "x"}]},
        {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3,5}$"},
        {"type": "object", "properties": {"kind": {"const": "a"}, "n": {"type": "integer"}}, "required": ["kind"], "additionalProperties": {"type": "null"}},
        {"oneOf": [{"type": "object", "properties": {"kind": {"const": "cat"}}, "required": ["kind"], "additionalProperties": false},
            {"type": "object", "properties": {"kind": {"const": "dog"}, "barks": {"type": "boolean"}}, "required": ["kind"], "additionalProperties": false}]},
        {"$defs": {"tree": {"type": "object", "properties": {"value": {"type": "integer"}, "children": {"type": "array", "items": {"$ref": "#/$defs/tree"}, "maxItems": 2}},
            "required": ["value"], "additionalProperties": false}}, "$ref": "#/$defs/tree"},
        {"type": "array", "prefixItems": [{"type": "string", "format": "date"}, {"type": "string", "format": "uuid"}], "items": false, "minItems": 2},
        {"allOf": [{"type": "object", "properties": {"a": {"type": "integer", "minimum": 3}}, "required": ["a"]},
            {"type": "object", "properties": {"a": {"type": "integer", "maximum": 9}, "b": {"type": "string"}}}]},
        {"type": "integer", "multipleOf": 7, "minimum": 0, "maximum": 1000},
        {"type": ["object", "null"], "patternProperties": {"^x-": {"type": "string"}}, "additionalProperties": false},
        {"type": "string", "format": "date-time"},
        {"type": "object"},
        true
    ]"##;
    let schemas: Vec<Value> = serde_json::from_str(schemas).unwrap();
    let mut random = Random(1);
    for schema in &schemas {
        let constraint = world.constraint(schema).unwrap_or_else(|e| panic!("{e}: {schema}"));
        for _ in 0..8 {
            let text = world.text(&constraint, Kind::Json, &mut random).unwrap_or_else(|| panic!("no end: {schema}"));
            assert!(is_valid(schema, &text), "{text:?} of {schema}");
        }
    }
}

/// The schemas of the official JSON Schema Test Suite, as the Python package jsonschema has them.
#[test]
fn schemas_of_the_test_suite_are_refused_or_their_texts_are_valid() {
    let world = World::new();
    let suite: Vec<Value> = serde_json::from_str(include_str!("data/schemas/suite.json")).unwrap();
    let (mut taken, mut refused, mut endless, mut random) = (0, 0, 0, Random(2));
    for case in &suite {
        let (name, schema) = (&case["name"], &case["schema"]);
        let constraint = match world.constraint(schema) {
            Ok(constraint) => constraint,
            Err(error) => {
                let said = error.to_string();
                println!("{name}: {said}");
                assert!(
                    said.contains("the JSON schema cannot be used: ") && said.len() > 40 && !said.contains("panic"),
                    "{said}"
                );
                refused += 1;
                continue;
            }
        };
        // What it takes for an address is longer than what mail takes.
        if name.as_str().is_some_and(|name| name.contains("email format")) {
            continue;
        }
        for _ in 0..3 {
            let Some(text) = world.text(&constraint, Kind::Json, &mut random) else {
                endless += 1;
                println!("{name}: no end");
                break;
            };
            assert!(is_valid(schema, &text), "{name}: {text:?} of {schema}");
        }
        taken += 1;
    }
    println!("{taken} taken, {refused} refused, {endless} without an end");
    assert!(taken >= 140 && refused + taken >= 200 && endless == 0);
}

#[test]
fn texts_of_expressions_and_grammars_are_of_them() {
    let world = World::new();
    let mut random = Random(3);
    let regex = world.vocabulary.constraint(&Form::Regex(r"(yes|no), [a-f]{3,9}/\d+ (é|日本)?".into())).unwrap();
    for _ in 0..20 {
        let text = world.text(&regex, Kind::Other, &mut random).unwrap();
        let (head, rest) = text.split_once(", ").unwrap();
        let (letters, rest) = rest.split_once('/').unwrap();
        let (digits, rest) = rest.split_once(' ').unwrap();
        assert!(["yes", "no"].contains(&head) && (3..=9).contains(&letters.len()), "{text}");
        assert!(digits.chars().all(char::is_numeric) && ["", "é", "日本"].contains(&rest), "{text}");
    }
    let lark = "start: sum \"=\" NUMBER\nsum: NUMBER (\"+\" NUMBER)*\nNUMBER: /[1-9][0-9]{0,2}/\n";
    let lark = world.vocabulary.constraint(&Form::Lark(lark.into())).unwrap();
    for _ in 0..20 {
        let text = world.text(&lark, Kind::Other, &mut random).unwrap();
        let (sum, end) = text.split_once('=').unwrap();
        assert!(sum.split('+').chain([end]).all(|n| (1..1000).contains(&n.parse::<u32>().unwrap())), "{text}");
    }
    // Blanks before a line's end are cut in more than one way.
    let sums = "root ::= (sum \"=\" ws number \"\\n\")+\nsum ::= part (\"+\" ws part)*\npart ::= number | \"(\" ws sum \")\" ws\n\
                number ::= [1-9] [0-9]{0,2} ws\nws ::= [ \\n]*\n";
    let sums = world.vocabulary.constraint(&Form::of_grammar(sums.into())).unwrap();
    for _ in 0..20 {
        let text = world.text(&sums, Kind::Other, &mut random).unwrap();
        assert!(text.ends_with('\n') && text.contains('='), "{text}");
        let is_open = text.chars().scan(0i32, |open, c| {
            *open += i32::from(c == '(') - i32::from(c == ')');
            Some(*open)
        });
        assert!(is_open.clone().all(|open| open >= 0) && is_open.last() == Some(0), "{text}");
    }
    let json = "root ::= object\nvalue ::= object | string | \"[\" ws (value (\",\" ws value)*)? \"]\" ws\n\
                object ::= \"{\" ws (string \":\" ws value (\",\" ws string \":\" ws value)*)? \"}\" ws\n\
                string ::= \"\\\"\" ([^\"\\\\\\x7F\\x00-\\x1F] | \"\\\\\" [\"\\\\bfnrt])* \"\\\"\" ws\nws ::= \" \"?\n";
    let json = world.vocabulary.constraint(&Form::of_grammar(json.into())).unwrap();
    for _ in 0..20 {
        let text = world.text(&json, Kind::Json, &mut random).unwrap();
        assert!(serde_json::from_str::<Value>(&text).unwrap().is_object(), "{text}");
    }
    let object = world.vocabulary.constraint(&Form::JsonObject).unwrap();
    for _ in 0..20 {
        let text = world.text(&object, Kind::Json, &mut random).unwrap();
        assert!(serde_json::from_str::<Value>(&text).unwrap().is_object(), "{text}");
    }
}

/// The error about a form.
fn error(world: &World, form: Form) -> String {
    let Err(error) = world.vocabulary.constraint(&form) else { panic!("no error: {form:?}") };
    error.to_string()
}

#[test]
fn forms_that_cannot_be_used_say_why() {
    let world = World::new();
    let schema = |text: &str| Form::JsonSchema(text.into());
    for (form, why) in [
        (schema("{"), "it is not JSON"),
        (schema("[]"), "a schema is an object"),
        (schema(r#"{"type": "text"}"#), "text"),
        (schema(r#"{"type": "array", "uniqueItems": true}"#), "what there is nothing for here: \"uniqueItems\""),
        (schema(r#"{"oneOf": [{"type": "number"}, {"type": "integer"}]}"#), "anyOf is"),
        (schema(r#"{"x-guidance": {"lenient": true}}"#), "x-guidance"),
        (schema(r##"{"$ref": "#/$defs/none"}"##), "none"),
        (schema(r#"{"$ref": "http://elsewhere.example/schema"}"#), "elsewhere"),
        (schema("false"), "the JSON schema cannot be used"),
        (schema(&format!("{{\"description\": \"{}\"}}", "x".repeat(70_000))), "65536 are the most"),
        (Form::Regex("(".into()), "the regular expression cannot be used"),
        (Form::Regex("a(?=b)".into()), "look-around"),
        (Form::Lark("start: other".into()), "other"),
        (Form::Lark("start: a::0x0\na::_: a::incr(_) | \"b\"".into()), "not supported"),
        (schema(r#"{"type": "integer", "minimum": 5, "maximum": 7, "multipleOf": 19997}"#), "no multiple of 19997"),
        (Form::Lark(String::new()), "the grammar cannot be used"),
        (Form::Lark("start: T\nT: /[a-z]+/ & /.*x/".into()), "'&' is not taken"),
        (Form::Regex("a?".repeat(15_000)), "2000 are the most"),
        (Form::of_grammar("root = \"a\"".into()), "it was read as Lark"),
        (Form::Gbnf("root ::= root \"b\"".into()), "never end"),
        (Form::Gbnf("root ::= \"a\" | other".into()), "no rule 'other'"),
    ] {
        let said = error(&world, form.clone());
        assert!(said.contains(why) && said.len() < 800, "{form:?}: {said}");
        assert!(!said.contains("panic") && !said.contains("verbose"), "{said}");
    }
}

/// What llguidance would take for another number, or end the process for.
#[test]
fn numbers_are_written_as_a_schema_has_them_or_refused() {
    let world = World::new();
    let schema = |text: &str| Form::JsonSchema(text.into());
    for refused in [
        r#"{"const": -9223372036854775808}"#,
        r#"{"enum": [1, 9007199254740993]}"#,
        r#"{"type": "integer", "maximum": -9223372036854775808}"#,
        r#"{"allOf": [{"type": "integer", "maximum": -1e19}, {"minimum": -2e19}]}"#,
        r#"{"type": "integer", "minimum": -9223372036854775809, "maximum": -9223372036854775808}"#,
        r##"{"$defs": {"a": {"x": {"const": -9223372036854775808}}}, "$ref": "#/$defs/a/x"}"##,
    ] {
        assert!(error(&world, schema(refused)).contains("2^53"), "{refused}");
    }
    let hidden = r##"{"default": {"const": -9223372036854775808}, "items": {"$ref": "#/default"}}"##;
    assert!(error(&world, schema(hidden)).contains("no schema"));
    let mut random = Random(4);
    for taken in [
        r#"{"type": "integer", "minimum": -9223372036854775808, "maximum": 9223372036854775807}"#,
        r#"{"type": "integer", "exclusiveMinimum": 9007199254740980, "maximum": 18446744073709551615}"#,
        r#"{"type": "number", "minimum": -1e300, "maximum": 1e300}"#,
        r#"{"enum": [9007199254740991, -9007199254740991]}"#,
    ] {
        let value: Value = serde_json::from_str(taken).unwrap();
        let constraint = world.constraint(&value).unwrap_or_else(|e| panic!("{e}: {taken}"));
        for _ in 0..8 {
            let text = world.text(&constraint, Kind::Json, &mut random).unwrap();
            assert!(is_valid(&value, &text), "{text} of {taken}");
        }
    }
}

/// Small forms that ask for much: each is refused in no time, or bounded later.
#[test]
fn what_a_form_costs_is_bounded() {
    let world = World::new();
    let options = (0..10)
        .map(|i| format!("{{\"type\":\"object\",\"properties\":{{\"p{i}\":true}}}}"))
        .collect::<Vec<_>>()
        .join(",");
    let all = vec![format!("{{\"anyOf\":[{options}]}}"); 9].join(",");
    let said = error(&world, Form::JsonSchema(format!("{{\"allOf\":[{all}]}}")));
    assert!(said.contains("mergers"), "{said}");
    // Two chains of which each link has two of the next.
    let link = |chain: &str, i: usize| {
        let next = format!("{{\"$ref\":\"#/$defs/{chain}{}\"}}", i + 1);
        format!("\"{chain}{i}\":{{\"type\":\"object\",\"properties\":{{\"x\":{next},\"y\":{next}}}}}")
    };
    let chain =
        |chain: &str| (0..60).map(|i| link(chain, i)).collect::<Vec<_>>().join(",") + &format!(",\"{chain}60\":true");
    let two = format!(
        "{{\"$defs\":{{{},{}}},\"allOf\":[{{\"$ref\":\"#/$defs/a0\"}},{{\"$ref\":\"#/$defs/b0\"}}]}}",
        chain("a"),
        chain("b")
    );
    let said = error(&world, Form::JsonSchema(two));
    assert!(said.contains("mergers"), "{said}");
    let multiple = |of: u32| format!(r#"{{"type": "integer", "multipleOf": {of}}}"#);
    assert!(error(&world, Form::JsonSchema(multiple(99_999_989))).contains("multiple"));
    let many = (0..200).map(|i| multiple(10_007 + i)).collect::<Vec<_>>().join(",");
    assert!(error(&world, Form::JsonSchema(format!(r#"{{"anyOf": [{many}]}}"#))).contains("multiple"));
    let at_once = [97, 89, 83].map(multiple).join(",");
    assert!(error(&world, Form::JsonSchema(format!(r#"{{"allOf": [{at_once}]}}"#))).contains("multiple"));
    assert!(world.vocabulary.constraint(&Form::JsonSchema(multiple(20_000))).is_ok());
    // A deep form is compiled on a stack that is deep enough.
    let deep = |n: usize| format!("start: {}\"a\"{}", "(".repeat(n), ")".repeat(n));
    let _ = world.vocabulary.constraint(&Form::Lark(deep(32_000)));
    let chain: String = (1..4000).map(|i| format!("A{i}: A{} \"a\"\n", i - 1)).collect();
    let _ = world.vocabulary.constraint(&Form::Lark(format!("start: A3999\nA0: \"a\"\n{chain}")));
    let rules: String = (1..4000).map(|i| format!("a{i}: a{} \"a\"\n", i - 1)).collect();
    let long = world.vocabulary.constraint(&Form::Lark(format!("start: a3999\na0: \"a\"\n{rules}")));
    if let Ok(long) = long {
        let _ = long.begin().push(u32::from(b'a'));
    }
    for regex in [r"((a{1,1000}){1,1000}){1,1000}", r"(\w+\s?){500}x", r"[^a]*a[^b]{900}"] {
        if let Ok(constraint) = world.vocabulary.constraint(&Form::Regex(regex.into())) {
            let mut text = constraint.begin();
            let _ = (0..50).try_fold((), |(), _| text.push(u32::from(b'a')).map(drop));
        }
    }
}
