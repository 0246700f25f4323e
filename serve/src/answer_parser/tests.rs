use super::calls::MOST_SPACE;
use super::*;
use crate::style::Tags;
use outboard::Tool;
use proptest::prelude::*;

const THINK: Tags = ("<think>", "</think>");

fn tools() -> Arc<[Callable]> {
    // `m` to `u` as Pydantic writes what may be left out.
    let properties = serde_json::json!({
        "n": {"type": "integer"}, "s": {"type": "string"}, "m": {"anyOf": [{"type": "integer"}, {"type": "null"}]}, "l": {"$ref": "#/$defs/l"},
        "t": {"type": ["string", "null"]}, "u": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    });
    let definitions = serde_json::json!({"l": {"type": "array"}});
    let parameters = serde_json::json!({"type": "object", "properties": properties, "$defs": definitions});
    let tool = |name: &str| Tool { name: name.into(), description: String::new(), parameters: parameters.clone() };
    Callable::of(&["f", "g"].map(tool), false)
}

fn splitter(syntax: CallSyntax, thinks: Option<Tags>) -> Splitter {
    let style = Style { calls: Some(syntax), thinks, ..Style::default() };
    Splitter::new(&style, tools(), Calls::Any, false)
}

/// What comes of these pieces.
fn split(mut splitter: Splitter, pieces: &[&str]) -> Vec<Part> {
    let mut parts = Vec::new();
    pieces.iter().flat_map(|piece| splitter.push(piece)).for_each(|part| join(&mut parts, part));
    splitter.finish().into_iter().for_each(|part| join(&mut parts, part));
    parts
}

/// In a few characters: text as it is, reasoning in parentheses, calls with their arguments.
fn shown(parts: &[Part]) -> String {
    let show = |part: &Part| match part {
        Part::Text(text) => format!("'{text}'"),
        Part::Reasoning(text) => format!("({text})"),
        Part::Call(call) => format!("{}{}", call.name, call.json()),
    };
    parts.iter().map(show).collect()
}

/// Texts with what comes of them.
fn cases() -> Vec<(CallSyntax, Option<Tags>, &'static str, &'static str)> {
    use CallSyntax::{Bare, Bracketed, Channels, Listed, Tagged};
    let think = Some(THINK);
    vec![
        (Tagged, None, "Hi <b>\n", "'Hi <b>\n'"),
        (Tagged, None, " \n", "' \n'"),
        (
            Tagged,
            None,
            "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"z\": 1, \"a\": \"x\"}}\n</tool_call>",
            r#"f{"z":1,"a":"x"}"#,
        ),
        (
            Tagged,
            None,
            "I look.\n<tool_call>{\"name\":\"f\"}</tool_call>\n<tool_call>{\"name\":\"g\",\"arguments\":\"{}\"}</tool_call>\n",
            "'I look.'f{}g{}",
        ),
        (Tagged, None, "<tool_call>{\"name\":\"f\"}\n<tool_call>{\"name\":\"g\"}", "f{}g{}"),
        (Tagged, None, "a <tool_call>{\"name\":\"f\"}</tool_call> b", "'a'f{}'b'"),
        (Tagged, None, "a <tool_call>{\"name\":}</tool_call> b", "'a <tool_call>{\"name\":}</tool_call> b'"),
        (Tagged, None, "<tool_call>{\"name\":\"h\"}</tool_call>", "'<tool_call>{\"name\":\"h\"}</tool_call>'"),
        (Tagged, None, "a <tool_call>{\"name\":\"f\", \"argu", "'a <tool_call>{\"name\":\"f\", \"argu'"),
        (Tagged, None, "a <tool_ca", "'a <tool_ca'"),
        (
            Tagged,
            None,
            "<tool_call>\n<function=f>\n<parameter=n>\n3\n</parameter>\n<parameter=s>\n4\n5\n</parameter>\n</function>\n</tool_call>",
            r#"f{"n":3,"s":"4\n5"}"#,
        ),
        (
            Tagged,
            None,
            "<tool_call>\n<function=f>\n<parameter=m>\n3\n</parameter>\n<parameter=l>\n[1]\n</parameter>\n<parameter=t>\n5\n</parameter>\n<parameter=u>\nnull\n</parameter>\n</function>\n</tool_call>",
            r#"f{"m":3,"l":[1],"t":"5","u":null}"#,
        ),
        (Tagged, None, "{\"name\": \"f\", \"arguments\": {\"s\": \"</tool_call>\"}}\n", r#"f{"s":"</tool_call>"}"#),
        (Tagged, None, "{\"name\": \"f\", \"age\": 3}", "'{\"name\": \"f\", \"age\": 3}'"),
        (Tagged, think, "<think>\nhm, é\n\nso\n</think>\n\nHi", "(hm, é\n\nso)'Hi'"),
        (Tagged, think, "\n<think>\n\n</think>\n\nHi \n", "'Hi \n'"),
        (Tagged, think, "Say <think>x</think>", "'Say <think>x</think>'"),
        (Tagged, think, "<think>x</think><tool_call>{\"name\":\"f\"}</tool_call><think>y</think>z", "(x)f{}(y)'z'"),
        (Tagged, think, "<think>x <", "(x <)"),
        (Bare, None, "{\"name\": \"f\", \"parameters\": {\"s\": \"}\\\"{\"}}", r#"f{"s":"}\"{"}"#),
        (Bare, None, "\n{\"name\": \"f\"}; {\"type\": \"function\", \"function\": \"g\"}\n", "f{}g{}"),
        (Bare, None, "{\"name\": \"f\"};", "f{}';'"),
        (Bare, None, "{\"name\": \"Bob\"} is one", "'{\"name\": \"Bob\"} is one'"),
        (Bare, None, "So: {\"name\": \"f\"}", "'So: {\"name\": \"f\"}'"),
        (Bare, None, "<|python_tag|>{\"name\": \"f\", \"parameters\": {}}", "f{}"),
        (Bare, None, "<|python_tag|>f.call(x)", "'<|python_tag|>f.call(x)'"),
        (
            Bracketed,
            None,
            "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"n\": [1]}}, {\"name\": \"g\", \"arguments\": {}}]",
            r#"f{"n":[1]}g{}"#,
        ),
        (Bracketed, None, "[TOOL_CALLS]f[ARGS]{\"n\": 1}[TOOL_CALLS]g[CALL_ID]abc[ARGS]{}", r#"f{"n":1}g{}"#),
        (Bracketed, None, "[TOOL_CALLS]f and\n{", "'[TOOL_CALLS]f and\n{'"),
        (Bracketed, Some(("[THINK]", "[/THINK]")), "[THINK]x[/THINK]a[1]", "(x)'a[1]'"),
        (Listed, None, "<|tool_call|>[{\"name\": \"f\", \"arguments\": {}}]<|/tool_call|>", "f{}"),
        (Listed, None, "<|tool_call|>none", "'<|tool_call|>none'"),
        (Channels, None, "Hi", "'Hi'"),
        (Channels, None, "<|channel|>final<|message|>Hi <b>", "'Hi <b>'"),
        (
            Channels,
            None,
            "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary to=functions.f \
             <|constrain|>json<|message|>{\"n\": 1}<|call|>",
            r#"(hm)f{"n":1}"#,
        ),
        (
            Channels,
            None,
            "<|channel|>analysis<|message|>a<|end|><|start|>assistant to=functions.g<|channel|>commentary json<|message|>{}<|end|>\
             <|start|>assistant<|channel|>analysis<|message|>b<|end|><|start|>assistant<|channel|>final<|message|>c<|return|>",
            "(a)g{}(\n\nb)'c'",
        ),
        (
            Channels,
            None,
            "<|channel|>commentary<|message|>One.<|end|><|start|>assistant<|channel|>commentary to=functions.f<|message|>{1}<|call|>",
            "'One.\n\n<|start|>assistant<|channel|>commentary to=functions.f<|message|>{1}'",
        ),
        (Channels, None, "<|channel|>final<|message|>Hi<|end|><|start|>assis", "'Hi'"),
    ]
}

#[test]
fn texts_come_apart() {
    for (syntax, thinks, text, expected) in cases() {
        assert_eq!(shown(&split(splitter(syntax, thinks), &[text])), expected, "{syntax:?}: {text}");
    }
}

#[test]
fn nothing_is_a_call_where_no_tool_is_offered() {
    let none: Arc<[Callable]> = Arc::default();
    for (syntax, thinks, text, _) in cases().into_iter().filter(|(syntax, ..)| *syntax != CallSyntax::Channels) {
        let style = Style { calls: Some(syntax), thinks: None, ..Style::default() };
        assert_eq!(
            split(Splitter::new(&style, none.clone(), Calls::Any, false), &[text]),
            [Part::Text(text.into())],
            "{thinks:?}"
        );
    }
}

#[test]
fn a_prompt_may_have_begun_the_reasoning() {
    let style = Style { calls: Some(CallSyntax::Tagged), thinks: Some(THINK), ..Style::default() };
    let mut splitter = Splitter::new(&style, tools(), Calls::Any, true);
    let piece = |text: &str| Piece { text: text.into(), token: Some(1), ..Piece::default() };
    assert_eq!(shown(&splitter.piece(&piece("\nhm "))), "(hm)");
    assert_eq!(shown(&splitter.piece(&piece("hm</thi"))), "( hm)");
    assert_eq!(shown(&splitter.piece(&piece("nk>\n\n"))), "");
    assert_eq!((shown(&splitter.piece(&piece("Hi"))).as_str(), splitter.reasoning_tokens), ("'Hi'", 3));
}

#[test]
fn only_the_first_call_counts_where_one_is_asked_for() {
    let style = Style { calls: Some(CallSyntax::Tagged), ..Style::default() };
    let text = "<tool_call>{\"name\":\"f\"}</tool_call><tool_call>{\"name\":\"g\"}</tool_call>";
    assert_eq!(shown(&split(Splitter::new(&style, tools(), Calls::One, false), &[text])), "f{}");
}

#[test]
fn an_answer_of_a_form_is_a_call_if_it_has_a_name_and_arguments_alone() {
    let style = Style { calls: Some(CallSyntax::Tagged), ..Style::default() };
    let parameters = serde_json::json!({"type": "object"});
    let tool = Tool { name: "f".into(), description: String::new(), parameters };
    let said = |text: &str| {
        shown(&split(
            Splitter::new(&style, Callable::of(std::slice::from_ref(&tool), true), Calls::Any, false),
            &[text],
        ))
    };
    assert_eq!(said("{\"name\": \"f\", \"arguments\": {\"z\": 1}}"), "f{\"z\":1}");
    for answer in [
        "{\"name\":\"f\"}",
        "{\"function\":\"f\"}",
        "{\"name\":\"f\",\"arguments\":{},\"id\":1}",
        "[{\"name\":\"f\",\"arguments\":{}}]",
    ] {
        assert_eq!(said(answer), format!("'{answer}'"));
    }
}

#[test]
fn a_schema_that_refers_to_itself_many_times_is_looked_at_for_a_moment() {
    let many = vec![serde_json::json!({"$ref": "#/$defs/d"}); 10_000];
    let parameters = serde_json::json!({"properties": {"x": {"$ref": "#/$defs/d"}}, "$defs": {"d": {"anyOf": many, "type": ["integer"]}}});
    let tool = Tool { name: "f".into(), description: String::new(), parameters };
    let style = Style { calls: Some(CallSyntax::Tagged), ..Style::default() };
    let splitter = Splitter::new(&style, Callable::of(&[tool], false), Calls::Any, false);
    let text = "<tool_call><function=f><parameter=x>5</parameter></function></tool_call>";
    assert_eq!(shown(&split(splitter, &[text])), "f{\"x\":5}");
}

#[test]
fn text_is_given_as_soon_as_it_is_certain() {
    let mut splitter = splitter(CallSyntax::Tagged, Some(THINK));
    assert_eq!(shown(&splitter.push("One two <to")), "'One two'");
    assert_eq!(shown(&splitter.push("ol> three")), "' <tool> three'");
    assert_eq!(shown(&splitter.push("<tool_call>{\"name\":\"f\"}")), "");
    assert_eq!(shown(&splitter.push("</tool_call>")), "f{}");
}

#[test]
fn what_waits_is_bounded() {
    use CallSyntax::{Bare, Bracketed, Channels, Tagged};
    let space = " ".repeat(MOST_SPACE + 100);
    let many = |beginning: &str, end: &str| format!("{beginning}{space}{end}");
    for (syntax, thinks, text, is_text) in [
        (Tagged, Some(THINK), many("", "<think>x</think>y"), true),
        (Tagged, Some(THINK), many("<think>x", "</think>y"), false),
        (Tagged, None, many("x", "<tool_call>{\"name\":\"f\"}</tool_call>"), false),
        (Bare, None, many("", "{\"name\": \"f\"}"), true),
        (Bare, None, many("{\"name\": \"f\"};", "{\"name\": \"g\"}"), false),
        (Bracketed, None, many("[TOOL_CALLS]", "[{\"name\": \"f\"}]"), true),
        (Bracketed, None, format!("[TOOL_CALLS]{}{{}}", "f".repeat(300)), true),
        (Channels, None, many("", "<|channel|>final<|message|>Hi"), false),
    ] {
        let whole = split(splitter(syntax, thinks), &[&text]);
        assert_eq!(whole == [Part::Text(text.clone())], is_text, "{syntax:?}: {}", shown(&whole));
        comes_apart_alike(syntax, thinks, &text);
    }
}

/// Whether pieces of a text give what the whole gives, with little that waits.
fn comes_apart_alike(syntax: CallSyntax, thinks: Option<Tags>, text: &str) {
    let whole = split(splitter(syntax, thinks), &[text]);
    for size in [1, 7] {
        let (mut splitter, mut parts) = (splitter(syntax, thinks), Vec::new());
        for piece in text.as_bytes().chunks(size).map(String::from_utf8_lossy) {
            splitter.push(&piece).into_iter().for_each(|part| join(&mut parts, part));
            assert!(splitter.held() <= MOST_SPACE + 600, "{syntax:?}: {} bytes wait", splitter.held());
        }
        splitter.finish().into_iter().for_each(|part| join(&mut parts, part));
        assert_eq!(shown(&parts), shown(&whole), "{syntax:?}");
    }
}

#[test]
fn where_waiting_ends_pieces_still_give_what_the_whole_gives() {
    use CallSyntax::{Bare, Bracketed, Channels, Tagged};
    for (syntax, thinks, most, beginning, end) in [
        (Tagged, Some(THINK), MOST_SPACE, "", "<think>x</think>y"),
        (Tagged, Some(THINK), MOST_SPACE, "<think>x", "</think>y"),
        (Tagged, None, MOST_SPACE, "x", "<tool_call>{\"name\":\"f\"}</tool_call>"),
        (Bare, None, MOST_SPACE, "{\"name\": \"f\"};", "{\"name\": \"g\"}"),
        (Bracketed, None, MOST_SPACE, "[TOOL_CALLS]", "[{\"name\": \"f\"}]"),
        (Channels, None, 512, "", "Hi, this is long enough to be no head"),
        (Channels, None, 512, "", "<|channel|>final<|message|>Hi"),
    ] {
        for spaces in most - 10..most + 3 {
            comes_apart_alike(syntax, thinks, &format!("{beginning}{}{end}", " ".repeat(spaces)));
        }
    }
}

proptest! {
    #[test]
    fn pieces_give_what_the_whole_gives(case in 0..cases().len(), cuts in prop::collection::vec(0usize..200, 0..12)) {
        let (syntax, thinks, text, expected) = cases().remove(case);
        let mut cuts: Vec<usize> = cuts.into_iter().filter(|at| text.is_char_boundary(*at)).collect();
        cuts.extend([0, text.len()]);
        cuts.sort_unstable();
        let pieces: Vec<&str> = cuts.windows(2).map(|cut| &text[cut[0]..cut[1]]).collect();
        prop_assert_eq!(shown(&split(splitter(syntax, thinks), &pieces)), expected);
    }

    /// Of marks in any order, too.
    #[test]
    fn no_text_comes_apart_in_two_ways(
        syntax in prop::sample::select(vec![CallSyntax::Tagged, CallSyntax::Bare, CallSyntax::Bracketed, CallSyntax::Listed, CallSyntax::Channels]),
        thinks in any::<bool>(), words in prop::collection::vec(prop::sample::select(WORDS.to_vec()), 0..24),
    ) {
        let (text, thinks) = (words.concat(), thinks.then_some(THINK));
        let whole = split(splitter(syntax, thinks), &[&text]);
        prop_assert_eq!(&split(splitter(syntax, thinks), &words), &whole);
        let letters: Vec<String> = text.chars().map(String::from).collect();
        let letters: Vec<&str> = letters.iter().map(String::as_str).collect();
        prop_assert_eq!(&split(splitter(syntax, thinks), &letters), &whole);
    }
}

const WORDS: [&str; 30] = [
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<|python_tag|>",
    "[TOOL_CALLS]",
    "[ARGS]",
    "<|tool_call|>",
    "<|/tool_call|>",
    "<|start|>",
    "assistant",
    "<|channel|>",
    "analysis",
    "final",
    "commentary to=functions.f",
    "<|message|>",
    "<|end|>",
    "<|call|>",
    "{\"name\":\"f\"}",
    "[{\"name\":\"g\",\"arguments\":{}}]",
    "{",
    "}",
    "\"",
    "\\",
    ";",
    " ",
    "\n",
    "é",
    "f",
    "x<",
];
