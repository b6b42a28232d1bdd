//! What a profile lacks because the kernel had no room to write it down.

use serde::{Deserialize, Serialize};

use crate::profile::{Profile, ProfileError, within};

/// A profile of which a larger share is lost says so wherever it is used.
pub const LOST_SHARE_MAX: f64 = 0.05;

/// What found no room, as shares of all that there was, from 0 to 1: of the slice that lost most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LostShares {
    pub events: f64,
    pub stack_samples: f64,
}

impl LostShares {
    pub(crate) fn check(&self, place: &str) -> Result<(), ProfileError> {
        within(place, "events", self.events, 0.0, 1.0)?;
        within(place, "stack_samples", self.stack_samples, 0.0, 1.0)
    }
}

impl Profile {
    /// What a reader of figures should know, if more is lost than they bear.
    #[must_use]
    pub fn lost_remark(&self) -> Option<String> {
        let LostShares {
            events,
            stack_samples,
        } = self.lost?;
        (events.max(stack_samples) > LOST_SHARE_MAX).then(|| {
            format!(
                "up to {:.0} % of the events of a slice, and {:.0} % of its stack samples, found no room: components are those of what came before; take \
                 the profile anew with shorter slices (--slice)",
                events * 100.0,
                stack_samples * 100.0
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fit::fit;
    use crate::model::{MachineMatch, ProfileModel};
    use crate::synthetic::{SyntheticProxy, synthetic_profile};

    #[test]
    fn a_profile_that_lost_much_says_so_wherever_it_is_used() {
        let mut profile = synthetic_profile(&SyntheticProxy::example(), 3, 1);
        let mut told = |lost| {
            profile.lost = lost;
            let model = ProfileModel::new(&profile, MachineMatch::Same, 2, 1).unwrap();
            let remarks = fit(&profile).unwrap().remarks;
            let is_lost = |text: &&String| text.contains("found no room");
            let told = [&model.warnings, &remarks].map(|texts| texts.iter().find(is_lost).cloned());
            assert_eq!(Profile::parse(&profile.to_json()).as_ref(), Ok(&profile));
            assert_eq!(told, [profile.lost_remark(), profile.lost_remark()]);
            profile.lost_remark()
        };
        let lost = |events, stack_samples| LostShares {
            events,
            stack_samples,
        };
        assert_eq!(told(None), None);
        assert_eq!(told(Some(lost(0.01, 0.02))), None);
        let much = told(Some(lost(0.0, 0.31))).unwrap();
        assert!(
            much.contains("31 % of its stack samples") && much.contains("--slice"),
            "{much}"
        );
        assert!(told(Some(lost(0.2, 0.0))).is_some());
        profile.lost = Some(lost(0.0, 1.5));
        let error = profile.check().unwrap_err().to_string();
        assert!(error.starts_with("lost.stack_samples: 1.5"), "{error}");
    }
}
