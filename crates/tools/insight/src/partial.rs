//! What of a partial profile counts. It ended in the midst of a round, which has some of the cells and not the others: that
//! round says nothing of what rounds differ by, and a function over sizes must not hang on which of them it still reached.

use std::collections::BTreeMap;

use crate::profile::{Observation, Profile};

/// Of fewer whole rounds a partial profile tells no interval.
pub(crate) const WHOLE_ROUNDS_MIN: u32 = 2;

impl Profile {
    /// How many rounds are whole, if not all are.
    #[must_use]
    pub fn rounds_to_use(&self) -> Option<u32> {
        self.partial.as_ref()?;
        Some(
            self.whole_rounds
                .unwrap_or_else(|| self.rounds_as_full_as_the_first()),
        )
    }

    /// What a reader of figures should know of it.
    pub(crate) fn partial_remark(&self) -> Option<String> {
        let (reason, rounds) = (self.partial.as_ref()?, self.rounds_to_use()?);
        Some(format!(
            "the profile is partial: {reason}; {} count",
            whole_rounds(rounds)
        ))
    }

    /// The observations that count: those of whole rounds.
    pub(crate) fn observations_to_use(&self) -> impl Iterator<Item = &Observation> {
        let rounds = self.rounds_to_use().unwrap_or(u32::MAX);
        self.observations
            .iter()
            .filter(move |one| one.repetition < rounds)
    }

    /// Of a profile that does not say it. The last round is the one in which it ended.
    fn rounds_as_full_as_the_first(&self) -> u32 {
        let mut totals: BTreeMap<u32, usize> = BTreeMap::new();
        for total in &self.totals {
            *totals.entry(total.repetition).or_default() += 1;
        }
        let Some((last, _)) = totals.pop_last() else {
            return 0;
        };
        let first = totals.get(&0).copied();
        let is_full = |round: &u32| totals.get(round).copied() == first;
        (0..last).take_while(is_full).count() as u32
    }
}

pub(crate) fn whole_rounds(rounds: u32) -> String {
    match rounds {
        1 => "1 whole round".to_owned(),
        _ => format!("{rounds} whole rounds"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fit::fit;
    use crate::model::{MachineMatch, ProfileModel};
    use crate::synthetic::{SyntheticProxy, synthetic_profile};

    const ROUNDS: u32 = 5;

    /// One that ended in the midst of this round.
    fn ended_in(round: u32) -> Profile {
        let mut profile = synthetic_profile(&SyntheticProxy::example(), ROUNDS, 1);
        let cells = profile.totals.iter().filter(|total| total.repetition == round);
        let kept = cells.count() / 2;
        let mut seen = 0;
        profile.totals.retain(|total| {
            seen += usize::from(total.repetition == round);
            total.repetition < round || total.repetition == round && seen <= kept
        });
        let mut seen = 0;
        profile.observations.retain(|one| {
            seen += usize::from(one.repetition == round);
            one.repetition < round || one.repetition == round && seen <= kept
        });
        profile.partial = Some("ended early: stopped by SIGINT".into());
        profile.whole_rounds = Some(round);
        profile
    }

    #[test]
    fn what_is_fitted_are_the_whole_rounds() {
        let partial = ended_in(3);
        let mut cut = partial.clone();
        cut.observations.retain(|one| one.repetition < 3);
        cut.partial = None;
        let (fitted, of_whole) = (fit(&partial).unwrap(), fit(&cut).unwrap());
        assert_eq!(fitted.functions, of_whole.functions);
        assert_eq!(fitted.repetitions, 3);
        let says = "the profile is partial: ended early: stopped by SIGINT; 3 whole rounds count";
        assert!(
            fitted.remarks.iter().any(|remark| remark == says),
            "{:?}",
            fitted.remarks
        );
        let model = ProfileModel::new(&partial, MachineMatch::Same, 20, 1).unwrap();
        assert!(
            model.warnings.iter().any(|warning| warning == says),
            "{:?}",
            model.warnings
        );
    }

    #[test]
    fn too_few_whole_rounds_are_refused_with_the_reason() {
        let refused = |profile: &Profile| {
            let model = ProfileModel::new(profile, MachineMatch::Same, 20, 1);
            model.err().map(|error| error.to_string())
        };
        let none = refused(&ended_in(0)).unwrap();
        assert!(
            none.contains("stopped by SIGINT") && none.contains("no round is whole"),
            "{none}"
        );
        let one = refused(&ended_in(1)).unwrap();
        assert!(
            one.contains("stopped by SIGINT") && one.contains("1 whole round") && one.contains("2"),
            "{one}"
        );
        assert_eq!(refused(&ended_in(2)), None);
        // One whole round can be looked at, though not predicted with.
        assert!(fit(&ended_in(1)).is_ok() && fit(&ended_in(0)).is_err());
    }

    #[test]
    fn a_profile_that_does_not_say_how_many_rounds_are_whole_is_counted() {
        let mut partial = ended_in(3);
        partial.whole_rounds = None;
        assert_eq!(partial.rounds_to_use(), Some(3));
        partial.totals.clear();
        assert_eq!(partial.rounds_to_use(), Some(0));
        partial.partial = None;
        assert_eq!(partial.rounds_to_use(), None);
    }
}
