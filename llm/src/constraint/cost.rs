//! What a JSON schema costs to compile, before anybody does it.
//!
//! Schemas that have to hold at once (`allOf`, `$ref` beside others) are merged, alternative by alternative and property by property, and nothing is
//! remembered: a few hundred bytes can ask for as many mergers as there are atoms. So mergers are counted first, from above.

use serde_json::{Map, Value};
use std::collections::HashMap;

/// Mergers, at most: some hundred milliseconds.
const MOST: u64 = 20_000;
/// Schemas that are written once more for each alternative that they have to hold with, at most: some dozens of MiB.
const MOST_COPIES: u64 = 100_000;

/// Fails with what is wrong if a schema costs too much.
pub(super) fn check(schema: &Value) -> Result<(), String> {
    let mut counter = Counter { root: schema, known: HashMap::new(), mergers: 0, copies: 0 };
    counter.count(schema);
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

/// How large a schema is, with what it refers to written out.
#[derive(Clone, Copy, Debug)]
struct Size {
    /// Alternatives of itself, or of one of its parts.
    alternatives: u64,
    /// Schemas in it; the most if it refers to itself.
    schemas: u64,
    /// Schemas in a copy of it: what refers to itself stays a reference.
    copied: u64,
}

const ONE: Size = Size { alternatives: 1, schemas: 1, copied: 1 };
const ENDLESS: Size = Size { alternatives: 1, schemas: u64::MAX, copied: 1 };

struct Counter<'s> {
    root: &'s Value,
    /// Those of references. One that is being counted is endless.
    known: HashMap<&'s str, Size>,
    mergers: u64,
    copies: u64,
}

impl<'s> Counter<'s> {
    fn count(&mut self, schema: &'s Value) -> Size {
        let Value::Object(keys) = schema else { return ONE };
        // What has to hold at once.
        let mut at_once = vec![self.parts(keys)];
        for name in ["anyOf", "oneOf"] {
            if let Some(Value::Array(options)) = keys.get(name) {
                let sizes: Vec<Size> = options.iter().map(|option| self.count(option)).collect();
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

    /// What its own keywords say of parts of a value.
    fn parts(&mut self, keys: &'s Map<String, Value>) -> Size {
        let mut parts: Vec<&'s Value> = Vec::new();
        for name in ["properties", "patternProperties"] {
            parts.extend(keys.get(name).and_then(Value::as_object).into_iter().flat_map(Map::values));
        }
        parts.extend(keys.get("prefixItems").and_then(Value::as_array).into_iter().flatten());
        for name in ["items", "additionalItems", "additionalProperties"] {
            match keys.get(name) {
                Some(Value::Array(list)) => parts.extend(list),
                Some(part) => parts.push(part),
                None => {}
            }
        }
        let sizes: Vec<Size> = parts.into_iter().map(|part| self.count(part)).collect();
        let alternatives = sizes.iter().map(|size| size.alternatives).max().unwrap_or(1);
        Size { alternatives, ..sum(&sizes) }
    }

    fn reference(&mut self, to: &'s str) -> Size {
        if let Some(known) = self.known.get(to) {
            return *known;
        }
        let target = target(self.root, to);
        // What does not exist is an error elsewhere.
        let Some(target) = target else { return ONE };
        self.known.insert(to, ENDLESS);
        let size = self.count(target);
        self.known.insert(to, size);
        size
    }

    /// Each alternative of one with each of the others; the parts of the largest meet those of the others alone.
    fn merge(&mut self, at_once: &[Size]) -> Size {
        let alternatives = at_once.iter().fold(1, |all: u64, size| all.saturating_mul(size.alternatives));
        let mut schemas: Vec<u64> = at_once.iter().map(|size| size.schemas).collect();
        schemas.sort_unstable();
        let all = |schemas: &[u64]| schemas.iter().fold(0, |all: u64, schemas| all.saturating_add(*schemas));
        let copied = at_once.iter().fold(0, |all: u64, size| all.saturating_add(size.copied));
        let size = Size { alternatives, schemas: all(&schemas), copied };
        if at_once.iter().filter(|size| size.alternatives > 1 || size.schemas > 1).count() > 1 {
            schemas.pop();
            self.mergers = self.mergers.saturating_add(alternatives.saturating_mul(all(&schemas)));
            let largest = at_once.iter().map(|size| size.copied).max().unwrap_or(0);
            self.copies = self.copies.saturating_add((alternatives - 1).saturating_mul(largest));
        }
        size
    }
}

fn sum(sizes: &[Size]) -> Size {
    let add = |of: fn(&Size) -> u64| sizes.iter().fold(0, |all: u64, size| all.saturating_add(of(size)));
    Size {
        alternatives: add(|size| size.alternatives).max(1),
        schemas: add(|size| size.schemas).saturating_add(1),
        copied: add(|size| size.copied).saturating_add(1),
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
        let mut counter = Counter { root: &schema, known: HashMap::new(), mergers: 0, copies: 0 };
        counter.count(&schema);
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
