//! Habits that are on their way out: each is counted, and the counts may only fall. `xtask/tidy.toml` has them.

use serde::Deserialize;

use super::names::{NameSort, declared, segments};
use crate::Complaints;
use crate::source::code_only;

/// Words of a doc comment that says nothing.
const DOC_WORDS_MAX: usize = 3;

/// What is written less and less.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CountedHabit {
    /// An arm of a `match` that is `true` or `false`, where `if` says it.
    BoolArm,
    /// A doc comment of so few words that it says what the name says.
    ShortDoc,
    /// A type whose name is one word, so that it needs its module to be understood.
    OneWordType,
}

impl CountedHabit {
    const ALL: [CountedHabit; 3] = [
        CountedHabit::BoolArm,
        CountedHabit::ShortDoc,
        CountedHabit::OneWordType,
    ];

    /// What to do instead.
    pub(super) fn advice(self) -> &'static str {
        match self {
            CountedHabit::BoolArm => "write `if`, not `match` on a bool",
            CountedHabit::ShortDoc => "write doc comments of more than three words, or none",
            CountedHabit::OneWordType => "name types by two words or more",
        }
    }
}

/// How often each habit stands in the repository.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HabitCounts {
    bool_arms: usize,
    short_docs: usize,
    one_word_types: usize,
}

impl HabitCounts {
    /// Adds what one file has.
    pub(super) fn add(&mut self, found: &[(CountedHabit, usize)]) {
        for (habit, _) in found {
            *match habit {
                CountedHabit::BoolArm => &mut self.bool_arms,
                CountedHabit::ShortDoc => &mut self.short_docs,
                CountedHabit::OneWordType => &mut self.one_word_types,
            } += 1;
        }
    }

    fn of(self, habit: CountedHabit) -> (&'static str, usize) {
        match habit {
            CountedHabit::BoolArm => ("bool_arms", self.bool_arms),
            CountedHabit::ShortDoc => ("short_docs", self.short_docs),
            CountedHabit::OneWordType => ("one_word_types", self.one_word_types),
        }
    }

    /// What has risen above `allowed`.
    pub(super) fn complaints(self, allowed: HabitCounts) -> Complaints {
        let mut complaints = Vec::new();
        for habit in CountedHabit::ALL {
            let ((name, count), (_, allowed)) = (self.of(habit), allowed.of(habit));
            if count > allowed {
                let advice = habit.advice();
                complaints.push(format!(
                    "{name}: {count}, over {allowed}: {advice} (`cargo xtask habits` lists them)"
                ));
            } else if count < allowed {
                eprintln!("xtask: {name}: {count}, under {allowed}: lower it in xtask/tidy.toml");
            }
        }
        complaints
    }
}

/// Where the habits stand in a file, by the numbers of lines.
pub(super) fn found(text: &str) -> Vec<(CountedHabit, usize)> {
    let mut found = short_docs(text);
    for (number, code) in code_only(text).lines().enumerate() {
        let arms = std::iter::repeat_n((CountedHabit::BoolArm, number + 1), bool_arms(code));
        found.extend(arms);
        if names_one_word_type(code) {
            found.push((CountedHabit::OneWordType, number + 1));
        }
    }
    found
}

/// Arms that begin in a line of code.
fn bool_arms(code: &str) -> usize {
    let is_arm = |before: &str| before.trim_end().is_empty() || before.trim_end().ends_with(['{', ',']);
    ["true =>", "false =>"]
        .into_iter()
        .flat_map(|arm| code.match_indices(arm))
        .filter(|(at, _)| is_arm(&code[..*at]))
        .count()
}

fn short_docs(text: &str) -> Vec<(CountedHabit, usize)> {
    let mut short = Vec::new();
    let mut words = None;
    for (number, line) in text.lines().chain([""]).enumerate() {
        let doc = line.trim_start().strip_prefix("///");
        if let Some(doc) = doc.filter(|doc| !doc.starts_with('/')) {
            *words.get_or_insert(0) += doc.split_whitespace().count();
        } else if words.take().is_some_and(|words| words <= DOC_WORDS_MAX) {
            // Its last line, which is the one before.
            short.push((CountedHabit::ShortDoc, number));
        }
    }
    short
}

fn names_one_word_type(code: &str) -> bool {
    // Associated types are indented and bear the names that their traits give them.
    let is_associated = code.starts_with(' ') && code.trim_start().starts_with("type ");
    let named = declared(code).filter(|(sort, _)| *sort == NameSort::Type && !is_associated);
    named.is_some_and(|(_, name)| segments(name).len() == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_habit_is_found_where_it_stands() {
        let text = "/// Whose.\nstruct Place;\n\n/// The place that a step waits at.\n/// And more.\nenum WaitPlace {}\n\
            match on { true => 1, false => 2 };\nmatch on {\n    true => 1,\n    Some(true) => 2,\n}\n\
            impl Iterator for X {\n    type Item = u8;\n}\n// true =>\n";
        let found = found(text);
        let expected = [
            (CountedHabit::ShortDoc, 1),
            (CountedHabit::OneWordType, 2),
            (CountedHabit::BoolArm, 7),
            (CountedHabit::BoolArm, 7),
            (CountedHabit::BoolArm, 9),
        ];
        assert_eq!(found, expected);
        let mut counts = HabitCounts::default();
        counts.add(&found);
        assert_eq!(counts.complaints(counts), Complaints::new());
        assert_eq!(counts.complaints(HabitCounts::default()).len(), 3);
    }
}
