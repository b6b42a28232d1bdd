//! `provost check`: would `provost-build` take these files?

use std::path::{Path, PathBuf};

use provost_build::Error;

/// Compiles the files to nothing, and says which packages they make, or what is wrong and where.
pub(crate) fn run(files: &[PathBuf], includes: &[PathBuf]) -> Result<(), Error> {
    let own_directories: Vec<PathBuf>;
    let includes = if includes.is_empty() {
        own_directories = files.iter().map(|file| directory_of(file)).collect();
        &own_directories
    } else {
        includes
    };
    let packages = provost_build::configure().generate(files, includes)?;
    let names: Vec<&str> = packages.keys().map(String::as_str).collect();
    println!("ok: {} file(s), packages: {}", files.len(), names.join(", "));
    Ok(())
}

fn directory_of(file: &Path) -> PathBuf {
    match file.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}
