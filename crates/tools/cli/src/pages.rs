//! `provost completions` and `provost man`: made from the command line's own definition.

use std::path::{Path, PathBuf};

use clap::Command;
use clap_complete::Shell;

use crate::failure::Failure;
use crate::watch::print;

/// Prints a shell's completions.
pub(crate) fn completions(shell: Shell, mut command: Command) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, "provost", &mut script);
    print(&String::from_utf8_lossy(&script))
}

/// Writes a page for each command into a directory, or prints the first.
pub(crate) fn man(directory: Option<&Path>, command: Command) -> Result<(), Failure> {
    let Some(directory) = directory else {
        return print(&String::from_utf8_lossy(&page(&command)?));
    };
    let wrong = |path: &Path, error: std::io::Error| Failure::failed(format!("{}: {error}", path.display()));
    std::fs::create_dir_all(directory).map_err(|error| wrong(directory, error))?;
    let mut written = Vec::new();
    for (name, page) in pages(command)? {
        let path: PathBuf = directory.join(format!("{name}.1"));
        std::fs::write(&path, page).map_err(|error| wrong(&path, error))?;
        written.push(name);
    }
    print(&format!(
        "wrote {} pages to {}\n",
        written.len(),
        directory.display()
    ))
}

/// Every command that is not hidden, by the name of its page.
fn pages(mut command: Command) -> Result<Vec<(String, Vec<u8>)>, Failure> {
    // Commands without a full name of their own get one from this.
    command.build();
    let mut pages = Vec::new();
    let mut left = vec![("provost".to_owned(), command)];
    while let Some((name, command)) = left.pop() {
        let shown = command
            .get_subcommands()
            .filter(|inner| !inner.is_hide_set() && inner.get_name() != "help");
        for inner in shown {
            left.push((format!("{name}-{}", inner.get_name()), inner.clone()));
        }
        let titled = command.name(leak(&name));
        pages.push((name, page(&titled)?));
    }
    pages.sort();
    Ok(pages)
}

/// A command's name must live as long as the program; there are a few dozen.
fn leak(name: &str) -> &'static str {
    name.to_owned().leak()
}

fn page(command: &Command) -> Result<Vec<u8>, Failure> {
    let mut page = Vec::new();
    clap_mangen::Man::new(command.clone())
        .manual("Provost")
        .render(&mut page)
        .map_err(|error| {
            Failure::failed(format!(
                "cannot write the page of {}: {error}",
                command.get_name()
            ))
        })?;
    Ok(page)
}
