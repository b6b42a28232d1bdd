//! A description for a version of the ABI that no service has.

use provost_engine::abi::{EngineDescription, description};

use crate::Numbered;

/// What a service looks for.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, unsafe_code)]
pub(crate) static provost_engine: EngineDescription = EngineDescription {
    abi: 99,
    ..description::<Numbered>()
};
