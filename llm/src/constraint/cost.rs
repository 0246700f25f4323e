//! What a JSON schema costs to compile, before anybody does it.
//!
//! Schemas that have to hold at once (`allOf`, `$ref` beside others) are merged, alternative by alternative and property by property, and nothing is
//! remembered: a few hundred bytes can ask for as many mergers as there are atoms. So mergers are counted first, from above.
//!
//! Of patterns that one string has to match at once all ways to go on are combined, in one step that nothing bounds: how many there are of them, and how
//! long they are, is bounded here. The same holds for what numbers have to be multiples of.

use super::numbers::Multiple;
use serde_json::{Map, Value};
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

/// Mergers, at most: some hundred milliseconds.
const MOST: u64 = 20_000;
/// Schemas that are written once more for each alternative that they have to hold with, at most: some dozens of MiB.
const MOST_COPIES: u64 = 100_000;

/// Patterns that one string has to match at once, at most, and the product of their bytes.
const MOST_PATTERNS: u32 = 3;
const MOST_PATTERN_BYTES: u64 = 1_000_000;
/// Patterns of names of properties, at most.
const MOST_NAME_PATTERNS: usize = 64;
/// Bytes that a format counts as.
const FORMAT_BYTES: u64 = 100;
/// Parts of a regular expression that are repeated or may be left out, at most: each is looked at with all behind it.
const MOST_REPEATED: usize = 2000;

/// The least common multiple of what one number has to be a multiple of, at most, without its point.
const MOST_MULTIPLE: u64 = 20_000;
/// What is to be remembered for all multiples of a schema, at most: some hundred milliseconds.
const MOST_MULTIPLES: u64 = 100_000;

/// Times that a schema is counted, at most: each takes references to itself one step further.
const MOST_TIMES: usize = 8;

/// Fails if a regular expression, or a grammar with some, takes too long to be compiled.
pub(super) fn check_regex(text: &str) -> Result<(), String> {
    check_repeated(count_repeated(text))
}

/// Parts of a regular expression that are repeated or may be left out.
fn count_repeated(text: &str) -> usize {
    let mut repeated = 0;
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        match byte {
            b'\\' => drop(bytes.next()),
            b'?' | b'*' | b'+' | b'{' => repeated += 1,
            _ => {}
        }
    }
    repeated
}

fn check_repeated(repeated: usize) -> Result<(), String> {
    if repeated > MOST_REPEATED {
        return Err(format!(
            "{repeated} parts of it are repeated or may be left out, and {MOST_REPEATED} are the most"
        ));
    }
    Ok(())
}

/// Fails with what is wrong if a schema costs too much.
pub(super) fn check(schema: &Value) -> Result<(), String> {
    let (counter, size) = Counter::of(schema)?;
    let AtOnce { patterns, multiple } = counter.most;
    if patterns.number > MOST_PATTERNS || patterns.number > 1 && patterns.bytes > MOST_PATTERN_BYTES {
        return Err(format!(
            "the patterns and formats that a string has to match at once are too many or too long: {MOST_PATTERNS} are the most, and {MOST_PATTERN_BYTES} the \
             product of their bytes"
        ));
    }
    if multiple.units() > MOST_MULTIPLE {
        return Err(format!(
            "'multipleOf' is too large, or has too many decimal places: what one number can be asked to be a multiple of, in all its alternatives, has a \
             least common multiple of at most {MOST_MULTIPLE} without its point"
        ));
    }
    if size.multiples > MOST_MULTIPLES {
        return Err(format!("its 'multipleOf' come to more than {MOST_MULTIPLES} together"));
    }
    let mut written = Written::default();
    written.collect(schema);
    written.check()?;
    if counter.mergers > MOST {
        return Err(format!(
            "its alternatives and properties that have to hold at once ('allOf') come to more than {MOST} mergers"
        ));
    }
    if counter.copies > MOST_COPIES {
        return Err(format!(
            "what has to hold with each of its alternatives ('anyOf' beside other keywords) comes to more than {MOST_COPIES} copies"
        ));
    }
    Ok(())
}

/// All patterns of a schema.
#[derive(Default)]
struct Written {
    /// Their parts that are repeated or may be left out.
    repeated: usize,
    /// Those of names of properties.
    names: usize,
}

impl Written {
    fn collect(&mut self, value: &Value) {
        match value {
            Value::Array(list) => list.iter().for_each(|value| self.collect(value)),
            Value::Object(keys) => {
                for (key, value) in keys {
                    if let (true, Some(text)) = (key == "pattern", value.as_str()) {
                        self.repeated += count_repeated(text);
                    }
                    if let (true, Some(by_pattern)) = (key == "patternProperties", value.as_object()) {
                        self.names += by_pattern.len();
                        self.repeated += by_pattern.keys().map(|name| count_repeated(name)).sum::<usize>();
                    }
                    self.collect(value);
                }
            }
            _ => {}
        }
    }

    fn check(&self) -> Result<(), String> {
        if self.names > MOST_NAME_PATTERNS {
            return Err(format!(
                "'patternProperties' have {} patterns, and {MOST_NAME_PATTERNS} are the most: each is compared with the others",
                self.names
            ));
        }
        check_repeated(self.repeated)
    }
}

/// Patterns that a string has to match at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Patterns {
    number: u32,
    /// The product of their bytes.
    bytes: u64,
}

impl Patterns {
    const NONE: Patterns = Patterns { number: 0, bytes: 1 };

    /// Those that are said with these keywords themselves.
    fn of(keys: &Map<String, Value>) -> Patterns {
        let one = |bytes| Patterns { number: 1, bytes };
        let pattern = keys.get("pattern").and_then(Value::as_str).map(|text| one(text.len().max(1) as u64));
        let format = keys.get("format").map(|_| one(FORMAT_BYTES));
        pattern.into_iter().chain(format).fold(Patterns::NONE, Patterns::and)
    }

    fn and(self, other: Patterns) -> Patterns {
        Patterns { number: self.number.saturating_add(other.number), bytes: self.bytes.saturating_mul(other.bytes) }
    }

    /// The larger of each.
    fn or(self, other: Patterns) -> Patterns {
        Patterns { number: self.number.max(other.number), bytes: self.bytes.max(other.bytes) }
    }
}

/// What a string or a number has to be at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct AtOnce {
    patterns: Patterns,
    multiple: Multiple,
}

impl AtOnce {
    const NOTHING: AtOnce = AtOnce { patterns: Patterns::NONE, multiple: Multiple::OF_NOTHING };

    /// What these keywords say themselves.
    fn of(keys: &Map<String, Value>) -> AtOnce {
        AtOnce { patterns: Patterns::of(keys), multiple: Multiple::of(keys) }
    }

    fn and(self, other: AtOnce) -> AtOnce {
        AtOnce { patterns: self.patterns.and(other.patterns), multiple: self.multiple.and(other.multiple) }
    }

    fn larger(self, other: AtOnce) -> AtOnce {
        let is_larger = other.multiple.units() > self.multiple.units();
        let multiple = if is_larger { other.multiple } else { self.multiple };
        AtOnce { patterns: self.patterns.or(other.patterns), multiple }
    }

    /// One or the other. Digits are counted for both, whichever it will be.
    fn or(self, other: AtOnce) -> AtOnce {
        AtOnce { patterns: self.patterns.or(other.patterns), multiple: self.multiple.and(other.multiple) }
    }
}

/// Where a string or a number is in a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Place<'s> {
    /// It is the value.
    Itself,
    /// A property of this name, in whatever depth.
    Named(&'s str),
    /// An item, or a property of any name.
    Any,
}

/// What strings and numbers have to be, by where these are.
type Scalars<'s> = BTreeMap<Place<'s>, AtOnce>;

fn add<'s>(scalars: &mut Scalars<'s>, place: Place<'s>, at_once: AtOnce) {
    let known = scalars.entry(place).or_insert(AtOnce::NOTHING);
    *known = known.or(at_once);
}

/// Those that have to be as all of these say.
fn all_at_once<'s>(sizes: &[Size<'s>]) -> Scalars<'s> {
    let places = sizes.iter().flat_map(|size| size.scalars.keys().copied());
    let of = |size: &Size<'s>, place: Place<'s>| {
        let [there, any] = [place, Place::Any].map(|at| size.scalars.get(&at).copied().unwrap_or(AtOnce::NOTHING));
        if place == Place::Itself { there } else { there.or(any) }
    };
    places.map(|place| (place, sizes.iter().fold(AtOnce::NOTHING, |all, size| all.and(of(size, place))))).collect()
}

/// How large a schema is, with what it refers to written out.
#[derive(Clone, Debug)]
struct Size<'s> {
    /// Alternatives of itself, or of one of its parts.
    alternatives: u64,
    /// Schemas in it; the most if it refers to itself.
    schemas: u64,
    /// Schemas in a copy of it: what refers to itself stays a reference.
    copied: u64,
    /// What is to be remembered of digits for all 'multipleOf' in it.
    multiples: u64,
    scalars: Rc<Scalars<'s>>,
}

impl Size<'_> {
    fn one() -> Self {
        Size { alternatives: 1, schemas: 1, copied: 1, multiples: 0, scalars: Rc::default() }
    }

    fn endless() -> Self {
        Size { schemas: u64::MAX, ..Size::one() }
    }
}

/// Sizes of references.
type Known<'s> = HashMap<&'s str, Size<'s>>;

struct Counter<'s> {
    root: &'s Value,
    /// One that is being counted is endless.
    known: Known<'s>,
    /// From the time before: what strings and numbers have to be in one that refers to itself.
    before: Known<'s>,
    mergers: u64,
    copies: u64,
    /// The most of any part.
    most: AtOnce,
}

impl<'s> Counter<'s> {
    /// Counts a schema, until what it says of its strings and numbers includes what it says by references to itself.
    fn of(root: &'s Value) -> Result<(Counter<'s>, Size<'s>), String> {
        let mut before = Known::new();
        for _ in 0..MOST_TIMES {
            let most = AtOnce::NOTHING;
            let mut counter = Counter { root, known: Known::new(), before, mergers: 0, copies: 0, most };
            let size = counter.count(root);
            let scalars =
                |known: &Known<'s>, to: &str| known.get(to).map(|size| size.scalars.clone()).unwrap_or_default();
            if counter.known.keys().all(|to| scalars(&counter.known, to) == scalars(&counter.before, to)) {
                return Ok((counter, size));
            }
            before = counter.known;
        }
        Err("it has to hold at once with itself, again and again".into())
    }

    fn count(&mut self, schema: &'s Value) -> Size<'s> {
        let Value::Object(keys) = schema else { return Size::one() };
        // What has to hold at once.
        let mut at_once = vec![self.own(keys)];
        for name in ["anyOf", "oneOf"] {
            if let Some(Value::Array(options)) = keys.get(name) {
                let sizes: Vec<Size<'s>> = options.iter().map(|option| self.count(option)).collect();
                at_once.push(sum(&sizes));
            }
        }
        if let Some(Value::Array(all)) = keys.get("allOf") {
            at_once.extend(all.iter().map(|one| self.count(one)).collect::<Vec<_>>());
        }
        if let Some(Value::String(to)) = keys.get("$ref") {
            at_once.push(self.reference(to));
        }
        for name in ["$defs", "definitions"] {
            if let Some(Value::Object(defs)) = keys.get(name) {
                for def in defs.values() {
                    self.count(def);
                }
            }
        }
        self.merge(&at_once)
    }

    /// What its own keywords say of a value and of its parts.
    fn own(&mut self, keys: &'s Map<String, Value>) -> Size<'s> {
        let named = keys.get("properties").and_then(Value::as_object).into_iter().flatten();
        let mut parts: Vec<(Place<'s>, &'s Value)> = named.map(|(name, part)| (Place::Named(name), part)).collect();
        let mut of_any_name = |part| parts.push((Place::Any, part));
        keys.get("patternProperties")
            .and_then(Value::as_object)
            .into_iter()
            .flat_map(Map::values)
            .for_each(&mut of_any_name);
        for name in ["prefixItems", "items", "additionalItems", "additionalProperties"] {
            match keys.get(name) {
                Some(Value::Array(list)) => list.iter().for_each(&mut of_any_name),
                Some(part) => of_any_name(part),
                None => {}
            }
        }
        let sizes: Vec<(Place<'s>, Size<'s>)> =
            parts.into_iter().map(|(name, part)| (name, self.count(part))).collect();
        let itself = AtOnce::of(keys);
        let mut scalars = Scalars::from([(Place::Itself, itself)]);
        for (name, size) in &sizes {
            for (&within, &at_once) in &*size.scalars {
                add(&mut scalars, if within == Place::Itself { *name } else { within }, at_once);
            }
        }
        let sizes: Vec<Size<'s>> = sizes.into_iter().map(|(_, size)| size).collect();
        let alternatives = sizes.iter().map(|size| size.alternatives).max().unwrap_or(1);
        let parts = sum(&sizes);
        let multiples = parts.multiples.saturating_add(itself.multiple.states());
        Size { alternatives, multiples, scalars: scalars.into(), ..parts }
    }

    fn reference(&mut self, to: &'s str) -> Size<'s> {
        if let Some(known) = self.known.get(to) {
            return known.clone();
        }
        let target = target(self.root, to);
        // What does not exist is an error elsewhere.
        let Some(target) = target else { return Size::one() };
        let scalars = self.before.get(to).map(|size| size.scalars.clone()).unwrap_or_default();
        self.known.insert(to, Size { scalars, ..Size::endless() });
        let size = self.count(target);
        self.known.insert(to, size.clone());
        size
    }

    /// Each alternative of one with each of the others; the parts of the largest meet those of the others alone.
    fn merge(&mut self, at_once: &[Size<'s>]) -> Size<'s> {
        let alternatives = at_once.iter().fold(1, |all: u64, size| all.saturating_mul(size.alternatives));
        let mut schemas: Vec<u64> = at_once.iter().map(|size| size.schemas).collect();
        schemas.sort_unstable();
        let all = |schemas: &[u64]| schemas.iter().fold(0, |all: u64, schemas| all.saturating_add(*schemas));
        let copied = at_once.iter().fold(0, |all: u64, size| all.saturating_add(size.copied));
        let scalars = all_at_once(at_once);
        self.most = scalars.values().copied().fold(self.most, AtOnce::larger);
        let multiples = merged_multiples(at_once);
        let size = Size { alternatives, schemas: all(&schemas), copied, multiples, scalars: scalars.into() };
        if at_once.iter().filter(|size| size.alternatives > 1 || size.schemas > 1).count() > 1 {
            schemas.pop();
            self.mergers = self.mergers.saturating_add(alternatives.saturating_mul(all(&schemas)));
            let largest = at_once.iter().map(|size| size.copied).max().unwrap_or(0);
            self.copies = self.copies.saturating_add((alternatives - 1).saturating_mul(largest));
        }
        size
    }
}

/// What is to be remembered for the multiples of schemas that hold at once: of each, with each alternative of the others and what these say of the number.
fn merged_multiples(at_once: &[Size<'_>]) -> u64 {
    let with_others = |one: usize| {
        let others = at_once.iter().enumerate().filter(|(other, _)| *other != one).map(|(_, other)| other);
        // One that refers to itself is written out as often as others have parts.
        let parts = others.clone().fold(1, |all: u64, other| all.saturating_add(other.schemas));
        let written_out = if at_once[one].schemas == u64::MAX { parts } else { 1 };
        others.fold(at_once[one].multiples.saturating_mul(written_out), |all, other| {
            let most = other.scalars.values().map(|at_once| at_once.multiple.states()).max().unwrap_or(0);
            all.saturating_mul(other.alternatives).saturating_mul(most.max(1))
        })
    };
    (0..at_once.len()).fold(0, |all, one| all.saturating_add(with_others(one)))
}

/// Of several of which each is there.
fn sum<'s>(sizes: &[Size<'s>]) -> Size<'s> {
    let mut scalars = Scalars::new();
    for (&name, &at_once) in sizes.iter().flat_map(|size| size.scalars.iter()) {
        add(&mut scalars, name, at_once);
    }
    let add = |of: fn(&Size<'_>) -> u64| sizes.iter().fold(0, |all: u64, size| all.saturating_add(of(size)));
    Size {
        alternatives: add(|size| size.alternatives).max(1),
        schemas: add(|size| size.schemas).saturating_add(1),
        copied: add(|size| size.copied).saturating_add(1),
        multiples: add(|size| size.multiples),
        scalars: scalars.into(),
    }
}

/// What a reference means to llguidance, which takes the names between slashes as they are.
fn target<'s>(root: &'s Value, to: &str) -> Option<&'s Value> {
    if to == "#" || to == "#/" {
        return Some(root);
    }
    to.strip_prefix("#/")?.split('/').try_fold(root, |value, name| match value {
        Value::Array(list) => list.get(name.parse::<usize>().ok()?),
        other => other.get(name),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mergers_and_copies(text: &str) -> (u64, u64) {
        let schema: Value = serde_json::from_str(text).unwrap();
        let (counter, _) = Counter::of(&schema).unwrap();
        (counter.mergers, counter.copies)
    }

    fn mergers(text: &str) -> u64 {
        mergers_and_copies(text).0
    }

    #[test]
    fn what_holds_with_each_alternative_is_copied() {
        let properties = |n: usize| {
            let properties: Vec<String> = (0..n).map(|i| format!(r#""p{i}": {{"type": "string"}}"#)).collect();
            format!(r#""properties": {{{}}}"#, properties.join(","))
        };
        let options = |n: usize| {
            let options: Vec<String> = (0..n).map(|i| format!(r#"{{"required": ["p{i}"]}}"#)).collect();
            format!(r#""anyOf": [{}]"#, options.join(","))
        };
        let schema = |m: usize, n: usize| format!("{{{}, {}}}", properties(m), options(n));
        assert_eq!(mergers_and_copies(&schema(100, 10)).1, 9 * 101);
        let check = |text: &str| check(&serde_json::from_str(text).unwrap());
        assert!(check(&schema(100, 10)).is_ok());
        assert!(check(&schema(1000, 120)).unwrap_err().contains("copies"), "few mergers, and large copies");
        // What refers to itself is not written out.
        let recursive =
            r##"{"properties": {"a": {"$ref": "#"}}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}"##;
        assert!(mergers_and_copies(recursive).1 < 100);
    }

    #[test]
    fn patterns_of_one_string_are_bounded() {
        let pattern = |i: usize| format!(r#"{{"type": "string", "pattern": "x.{{{i}}}"}}"#);
        let all = |n: usize| (0..n).map(pattern).collect::<Vec<_>>().join(",");
        assert_eq!(error(&format!(r#"{{"allOf": [{}]}}"#, all(3))), "");
        assert!(error(&format!(r#"{{"allOf": [{}]}}"#, all(4))).contains("at once"));
        // Any number, where each is of another string.
        assert_eq!(error(&format!(r#"{{"anyOf": [{}]}}"#, all(40))), "");
        assert_eq!(error(&format!(r#"{{"prefixItems": [{}]}}"#, all(40))), "");
        let members = |name: fn(usize) -> String| -> String {
            let one = |i: usize| format!(r#"{{"properties": {{"{}": {}}}}}"#, name(i), pattern(i));
            format!(r#"{{"allOf": [{}]}}"#, (0..6).map(one).collect::<Vec<_>>().join(","))
        };
        assert_eq!(error(&members(|i| format!("p{i}"))), "", "classes that extend one another");
        assert!(error(&members(|_| "p".into())).contains("at once"));
        // Within what has to hold at once, and by references.
        let within =
            format!(r#"{{"allOf": [{}]}}"#, vec![format!(r#"{{"properties": {{"a": {}}}}}"#, pattern(1)); 4].join(","));
        assert!(error(&within).contains("at once"));
        let refer = [r##"{"$ref": "#/$defs/p"}"##; 4].join(",");
        assert!(
            error(&format!(r#"{{"$defs": {{"p": {}}}, "items": {{"allOf": [{refer}]}}}}"#, pattern(1)))
                .contains("at once")
        );
        let long = |n: usize| format!(r#"{{"pattern": "{}", "format": "date"}}"#, "a".repeat(n));
        assert_eq!((error(&long(10_000)), error(&long(10_001)).is_empty()), (String::new(), false));
    }

    /// What is wrong with a schema, or nothing.
    fn error(text: &str) -> String {
        check(&serde_json::from_str(text).unwrap()).err().unwrap_or_default()
    }

    #[test]
    fn multiples_of_one_number_are_bounded() {
        let of = |multiple: &str| format!(r#"{{"type": "integer", "multipleOf": {multiple}}}"#);
        let all = |multiples: &[&str]| multiples.iter().map(|multiple| of(multiple)).collect::<Vec<_>>().join(",");
        for multiple in ["1", "7", "20000", "0.01", "-0.5", "1e-8", "0", "100.00"] {
            assert_eq!(error(&of(multiple)), "", "{multiple}");
        }
        for multiple in ["20001", "99999989", "1e300", "1e-9", "0.12345678912", "-30000"] {
            assert!(error(&of(multiple)).contains("20000"), "{multiple}");
        }
        // At once, or in alternatives, whose digits are counted at once.
        for name in ["allOf", "anyOf", "oneOf"] {
            assert_eq!(error(&format!(r#"{{"{name}": [{}]}}"#, all(&["4", "6", "0.01"]))), "");
            assert!(error(&format!(r#"{{"{name}": [{}]}}"#, all(&["97", "89", "83"]))).contains("multiple"));
        }
        // By references, in items, and beside others.
        let defs = format!(r#""$defs": {{"a": {}, "b": {}}}"#, of("997"), of("983"));
        let beside = |rest: &str| error(&format!("{{{defs}, {rest}}}"));
        assert!(beside(r##""allOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}]"##).contains("multiple"));
        assert!(beside(r##""$ref": "#/$defs/a", "multipleOf": 991"##).contains("multiple"));
        assert!(beside(r##""items": {"$ref": "#/$defs/a", "multipleOf": 991}"##).contains("multiple"));
        assert_eq!(beside(r##""prefixItems": [{"$ref": "#/$defs/a"}], "items": {"type": "string"}"##), "");
    }

    #[test]
    fn multiples_of_a_schema_are_bounded_together() {
        let members = |n: usize, multiple: usize| {
            let one = |i: usize| format!(r#""p{i}": {{"type": "integer", "multipleOf": {}}}"#, multiple + i);
            format!(r#""properties": {{{}}}"#, (0..n).map(one).collect::<Vec<_>>().join(","))
        };
        assert_eq!(error(&format!("{{{}}}", members(50, 1000))), "");
        assert!(error(&format!("{{{}}}", members(50, 10_000))).contains("together"));
        // Those that are written once more for each alternative.
        let options = |n: usize| (0..n).map(|i| format!(r#"{{"required": ["p{i}"]}}"#)).collect::<Vec<_>>().join(",");
        assert_eq!(error(&format!(r#"{{{}, "anyOf": [{}]}}"#, members(9, 1000), options(9))), "");
        assert!(error(&format!(r#"{{{}, "anyOf": [{}]}}"#, members(9, 1000), options(40))).contains("together"));
    }

    #[test]
    fn what_refers_to_itself_is_followed() {
        // 'b' has an 'n' by way of 'a', which is not through when 'b' is counted.
        let round = |n: &str| {
            format!(
                r##"{{"$defs": {{"a": {{"properties": {{"x": {{"$ref": "#/$defs/b"}}, "n": {{"multipleOf": 997}}}}}},
                    "b": {{"properties": {{"y": {{"$ref": "#/$defs/a"}}}}}}}},
                "allOf": [{{"$ref": "#/$defs/b"}}, {{"properties": {{"y": {{"properties": {{"n": {n}}}}}}}}}]}}"##
            )
        };
        assert_eq!(error(&round("true")), "");
        assert!(error(&round(r#"{"multipleOf": 991}"#)).contains("multiple"));
    }

    #[test]
    fn parts_that_are_repeated_are_bounded() {
        assert!(check_regex(&"a?".repeat(2000)).is_ok() && check_regex(&"a?".repeat(2001)).is_err());
        assert!(check_regex(&r"\?".repeat(5000)).is_ok(), "characters");
        let names = |n: usize| (0..n).map(|i| format!(r#""^{i}$": true"#)).collect::<Vec<_>>().join(",");
        let of_names =
            |n: usize| check(&serde_json::from_str(&format!(r#"{{"patternProperties": {{{}}}}}"#, names(n))).unwrap());
        assert!(of_names(64).is_ok() && of_names(65).unwrap_err().contains("compared"));
        let schema = serde_json::json!({"patternProperties": {"(ab?c?)?".repeat(1000): true}});
        assert!(check(&schema).unwrap_err().contains("repeated"));
    }

    #[test]
    fn only_what_has_to_hold_at_once_is_merged() {
        assert_eq!(
            mergers(r#"{"anyOf": [{"type": "object", "properties": {"a": {"anyOf": [true, false]}}}, true]}"#),
            0
        );
        assert_eq!(mergers("true"), 0);
        let options = r#"{"anyOf": [{"properties": {"a": true}}, {"properties": {"b": true}}, {"type": "null"}]}"#;
        let four = mergers(&format!(r#"{{"allOf": [{options}, {options}, {options}, {options}]}}"#));
        assert!((81..5000).contains(&four), "{four}");
        // A class that extends one that refers to itself.
        let extended = r##"{"$defs": {"node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}},
            "allOf": [{"$ref": "#/$defs/node"}, {"properties": {"name": {"type": "string"}}}]}"##;
        assert!((1..10).contains(&mergers(extended)), "{}", mergers(extended));
    }
}
