//! Where the program `provostd` is.

use std::env;
use std::path::{Path, PathBuf};

const NAME: &str = "provostd";

/// The one that the environment names, one that cargo has built beside this program, or one in `PATH`.
pub(crate) fn find() -> Option<PathBuf> {
    let named = env::var_os("PROVOSTD_BIN").map(PathBuf::from);
    named
        .or_else(|| beside(&env::current_exe().ok()?))
        .or_else(|| in_path(&env::var_os("PATH")?))
}

/// Tests are in `target/<profile>/deps`, other programs a folder above.
fn beside(program: &Path) -> Option<PathBuf> {
    let folders = program.ancestors().skip(1).take(2);
    folders
        .map(|folder| folder.join(NAME))
        .find(|path| path.is_file())
}

fn in_path(path: &std::ffi::OsStr) -> Option<PathBuf> {
    env::split_paths(path)
        .map(|folder| folder.join(NAME))
        .find(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_is_found_beside_a_test_and_in_the_path() {
        let folder = tempfile::tempdir().unwrap();
        let test = folder.path().join("deps/some-test");
        let path = env::join_paths([Path::new("/nowhere"), folder.path()]).unwrap();
        assert_eq!((beside(&test), in_path(&path)), (None, None));
        let program = folder.path().join(NAME);
        std::fs::write(&program, "").unwrap();
        assert_eq!(beside(&test), Some(program.clone()));
        assert_eq!(in_path(&path), Some(program));
    }
}
