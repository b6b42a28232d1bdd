//! A node's service, as the tests start it.

use std::path::Path;

/// Runs `provostd`.
pub fn run(config: &Path) -> Result<(), String> {
    todo!()
}
