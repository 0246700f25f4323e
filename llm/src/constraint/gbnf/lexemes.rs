//! Whether the longest lexeme is the right one wherever it is cut.
//!
//! Two lexemes that may begin at the same place are run side by side, as automata of their characters (Glushkov, 1961). If one of them may end where the other
//! one can go on with a character that may also follow the first, the longest is not the only right one. That is found from above: what may follow
//! a lexeme anywhere counts everywhere.

use super::{Class, Lowering, Part, Production, Symbol};
use std::collections::{BTreeSet, HashSet};

/// Places in lexemes, and pairs of places that are compared, at most.
const MOST_PLACES: usize = 2000;
const MOST_PAIRS: usize = 20_000_000;

/// A lexeme that may be longer than is right; `None` if there is none. `pairs` counts places that have been compared, of which there is a bound.
pub(super) fn too_long(grammar: &Lowering<'_>, pairs: &mut usize) -> Result<Option<usize>, String> {
    let places: usize = grammar.lexemes.iter().map(places).sum();
    if places > MOST_PLACES {
        return Err(format!(
            "it has {places} characters and classes with its rules written out, and {MOST_PLACES} are the most"
        ));
    }
    let automata: Vec<Automaton> = grammar.lexemes.iter().map(Automaton::of).collect();
    let links = |automaton: &Automaton| automaton.follow.iter().map(Vec::len).sum::<usize>();
    spend(pairs, automata.iter().map(links).sum())?;
    let order = Order::of(grammar);
    for begins in order.places() {
        for &a in begins {
            let follows: Vec<&Class> = order.follow[a].iter().flat_map(|&b| automata[b].first_classes()).collect();
            for &b in begins {
                if goes_on(&automata[a], &automata[b], &follows, pairs)? {
                    return Ok(Some(b));
                }
            }
        }
    }
    Ok(None)
}

fn spend(pairs: &mut usize, more: usize) -> Result<(), String> {
    *pairs += more;
    if *pairs > MOST_PAIRS { Err("it takes too long to find out whether it is ambiguous".into()) } else { Ok(()) }
}

/// Whether there is a character that may follow what `a` has matched, and with which `b` can go on from there.
fn goes_on(a: &Automaton, b: &Automaton, follows: &[&Class], pairs: &mut usize) -> Result<bool, String> {
    let mut seen: HashSet<(usize, usize)> = HashSet::new();
    let mut next = Vec::new();
    let mut meet = |from: &[usize], to: &[usize], next: &mut Vec<(usize, usize)>| {
        spend(pairs, from.len() * to.len())?;
        for &p in from {
            for &q in to {
                if have_common(&a.classes[p], &b.classes[q]) && seen.insert((p, q)) {
                    next.push((p, q));
                }
            }
        }
        Ok::<_, String>(())
    };
    meet(&a.first, &b.first, &mut next)?;
    while let Some((p, q)) = next.pop() {
        let may_follow = |q: &usize| follows.iter().any(|class| have_common(&b.classes[*q], class));
        if a.last[p] && b.follow[q].iter().any(may_follow) {
            return Ok(true);
        }
        meet(&a.follow[p], &b.follow[q], &mut next)?;
    }
    Ok(false)
}

/// Characters of a lexeme.
fn places(part: &Part) -> usize {
    match part {
        Part::Chars(_) => 1,
        Part::Sequence(parts) | Part::Any(parts) => parts.iter().map(places).sum(),
        Part::Repeat(part, ..) => places(part),
        Part::Rule(_) => 0,
    }
}

/// Whether there is a character of both.
fn have_common(a: &Class, b: &Class) -> bool {
    a.iter().any(|a| b.iter().any(|b| a.0.max(b.0) <= a.1.min(b.1)))
}

/// The places of a lexeme's characters: which come first and last, and which follow which. Repetitions are without end.
#[derive(Default)]
struct Automaton {
    classes: Vec<Class>,
    first: Vec<usize>,
    last: Vec<bool>,
    follow: Vec<Vec<usize>>,
}

/// First and last places of a part, and whether it may be empty.
struct Ends {
    first: Vec<usize>,
    last: Vec<usize>,
    is_nullable: bool,
}

impl Automaton {
    fn of(lexeme: &Part) -> Automaton {
        let mut automaton = Automaton::default();
        let ends = automaton.add(lexeme);
        automaton.last = vec![false; automaton.classes.len()];
        ends.last.into_iter().for_each(|place| automaton.last[place] = true);
        automaton.first = ends.first;
        automaton
    }

    fn first_classes(&self) -> impl Iterator<Item = &Class> {
        self.first.iter().map(|&place| &self.classes[place])
    }

    fn add(&mut self, part: &Part) -> Ends {
        match part {
            Part::Chars(class) => {
                let place = self.classes.len();
                self.classes.push(class.clone());
                self.follow.push(Vec::new());
                Ends { first: vec![place], last: vec![place], is_nullable: false }
            }
            Part::Sequence(parts) => {
                let mut all = Ends { first: Vec::new(), last: Vec::new(), is_nullable: true };
                for part in parts {
                    let next = self.add(part);
                    self.link(&all.last, &next.first);
                    if all.is_nullable {
                        all.first.extend(&next.first);
                    }
                    if !next.is_nullable {
                        all.last.clear();
                    }
                    all.last.extend(next.last);
                    all.is_nullable &= next.is_nullable;
                }
                all
            }
            Part::Any(parts) => {
                let mut all = Ends { first: Vec::new(), last: Vec::new(), is_nullable: false };
                for part in parts {
                    let next = self.add(part);
                    all.first.extend(next.first);
                    all.last.extend(next.last);
                    all.is_nullable |= next.is_nullable;
                }
                all
            }
            Part::Repeat(part, least, most) => {
                let mut ends = self.add(part);
                if *most != Some(1) {
                    self.link(&ends.last, &ends.first);
                }
                ends.is_nullable |= *least == 0;
                ends
            }
            // Lexemes are without references.
            Part::Rule(_) => Ends { first: Vec::new(), last: Vec::new(), is_nullable: true },
        }
    }

    fn link(&mut self, from: &[usize], to: &[usize]) {
        for &place in from {
            self.follow[place].extend(to);
        }
    }
}

/// Which lexemes come first in each rule, and which follow which.
struct Order {
    start: BTreeSet<usize>,
    follow: Vec<BTreeSet<usize>>,
}

impl Order {
    /// Sets of lexemes that may begin at the same place.
    fn places(&self) -> impl Iterator<Item = &BTreeSet<usize>> {
        std::iter::once(&self.start).chain(&self.follow)
    }

    fn of(grammar: &Lowering<'_>) -> Order {
        let rules = &grammar.productions;
        let mut first = vec![BTreeSet::new(); rules.len()];
        let mut nullable = vec![false; rules.len()];
        until_nothing_changes(|| {
            let mut changed = false;
            for (i, rule) in rules.iter().enumerate() {
                let (found, is_nullable) = first_of_rule(rule, &first, &nullable);
                let before = (first[i].len(), nullable[i]);
                first[i].extend(found);
                nullable[i] |= is_nullable;
                changed |= before != (first[i].len(), nullable[i]);
            }
            changed
        });
        let mut of_rules = vec![BTreeSet::new(); rules.len()];
        let mut follow = vec![BTreeSet::new(); grammar.lexemes.len()];
        until_nothing_changes(|| {
            let mut changed = false;
            for (i, rule) in rules.iter().enumerate() {
                for sequence in sequences(rule) {
                    let mut behind = of_rules[i].clone();
                    for symbol in sequence.iter().rev() {
                        let (to, mine, is_nullable) = match symbol {
                            Symbol::Lexeme(lexeme) => (&mut follow[*lexeme], BTreeSet::from([*lexeme]), false),
                            Symbol::Rule(rule) => (&mut of_rules[*rule], first[*rule].clone(), nullable[*rule]),
                        };
                        let before = to.len();
                        to.extend(&behind);
                        changed |= to.len() > before;
                        if !is_nullable {
                            behind.clear();
                        }
                        behind.extend(mine);
                    }
                }
            }
            changed
        });
        Order { start: first[grammar.grammar.root].clone(), follow }
    }
}

fn until_nothing_changes(mut step: impl FnMut() -> bool) {
    while step() {}
}

/// The sequences that a rule stands for: of a repetition one and two.
fn sequences(rule: &Production) -> Vec<Vec<Symbol>> {
    match rule {
        Production::Any(options) => options.clone(),
        Production::Repeat(of, _, Some(1)) => vec![vec![*of]],
        Production::Repeat(of, ..) => vec![vec![*of, *of]],
    }
}

fn first_of_rule(rule: &Production, first: &[BTreeSet<usize>], nullable: &[bool]) -> (BTreeSet<usize>, bool) {
    let mut found = BTreeSet::new();
    let mut is_nullable = matches!(rule, Production::Repeat(_, 0, _));
    for sequence in sequences(rule) {
        let mut ends = true;
        for symbol in sequence {
            match symbol {
                Symbol::Lexeme(lexeme) => {
                    found.insert(lexeme);
                    ends = false;
                }
                Symbol::Rule(rule) => {
                    found.extend(&first[rule]);
                    ends = nullable[rule];
                }
            }
            if !ends {
                break;
            }
        }
        is_nullable |= ends;
    }
    (found, is_nullable)
}
