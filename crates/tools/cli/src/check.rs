//! `provost check`: would `provost-build` take these files?

use std::path::PathBuf;

use provost_build::Error;

use crate::schema::{include_directories, missing_file};
use provost_terminal::failure::{Exit, Failure};
use provost_terminal::output::print;

/// Compiles the files to nothing, and says which packages they make, or what is wrong and where.
pub(crate) fn run(files: &[PathBuf], includes: &[PathBuf]) -> Result<(), Failure> {
    let packages = packages_of(files, includes)?;
    print(&format!(
        "ok: {} file(s), packages: {}\n",
        files.len(),
        packages.join(", ")
    ))
}

/// The packages that the files make.
fn packages_of(files: &[PathBuf], includes: &[PathBuf]) -> Result<Vec<String>, Failure> {
    let directories = include_directories(files, includes);
    if let Some(failure) = missing_file(files, &directories) {
        return Err(failure);
    }
    let packages = provost_build::configure()
        .generate(files, &directories)
        .map_err(|error| {
            let exit = match error {
                Error::Source(_) => Exit::Refused,
                _ => Exit::Failed,
            };
            Failure::new(exit, error.to_string())
        })?;
    Ok(packages.into_keys().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_there_is_told_from_what_is_wrong() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("t.proto");
        let with = |text: &str| {
            std::fs::write(&path, text).unwrap();
            packages_of(std::slice::from_ref(&path), &[])
        };
        assert_eq!(with("syntax = \"proto3\"; package t;").unwrap(), ["t"]);
        let wrong = with("syntax = \"proto3\"; message A { Strin a = 1; }").unwrap_err();
        assert_eq!(wrong.exit, Exit::Refused);
        assert!(wrong.message.contains("Strin"), "{wrong}");
        let gone = PathBuf::from("/nowhere/a.proto");
        let missing = packages_of(std::slice::from_ref(&gone), &[]).unwrap_err();
        assert_eq!(missing.exit, Exit::Usage);
        assert_eq!(missing.message, "/nowhere/a.proto: there is no such file");
        // Named as its import, a file may be in a directory of --include alone.
        with("syntax = \"proto3\"; package u;").unwrap();
        let named = packages_of(&["t.proto".into()], &[directory.path().to_owned()]);
        assert_eq!(named.unwrap(), ["u"]);
    }
}
