//! `provost completions` and `provost man`: made from the command line's own definition.

use std::path::{Path, PathBuf};

use clap::Command;
use clap_complete::Shell;

use crate::failure::Failure;
use crate::output::print;

/// Prints a shell's completions.
pub fn completions(shell: Shell, program: &str, mut command: Command) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, program, &mut script);
    print(&String::from_utf8_lossy(&script))
}

/// Writes a page for each command into a directory, or prints the first.
pub fn man(directory: Option<&Path>, program: &str, command: Command) -> Result<(), Failure> {
    let Some(directory) = directory else {
        return print(&String::from_utf8_lossy(&page(&command, program)?));
    };
    let wrong = |path: &Path, error: std::io::Error| Failure::failed(format!("{}: {error}", path.display()));
    std::fs::create_dir_all(directory).map_err(|error| wrong(directory, error))?;
    let mut written = Vec::new();
    for (name, page) in pages(program, command)? {
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
fn pages(program: &str, mut command: Command) -> Result<Vec<(String, Vec<u8>)>, Failure> {
    // Its page would be there beside `--help` of each command.
    command = command.disable_help_subcommand(true);
    // Commands without a full name of their own get one from this.
    command.build();
    let mut pages = Vec::new();
    let mut left = vec![(program.to_owned(), command)];
    while let Some((name, command)) = left.pop() {
        let shown = command
            .get_subcommands()
            .filter(|inner| !inner.is_hide_set() && inner.get_name() != "help");
        for inner in shown {
            left.push((format!("{name}-{}", inner.get_name()), inner.clone()));
        }
        let titled = command.name(leak(&name));
        let page = page(&titled, &name)?;
        pages.push((name, page));
    }
    pages.sort();
    Ok(pages)
}

/// The commands that have neither commands of their own nor examples in their help. For tests.
pub fn without_examples(command: Command) -> Vec<String> {
    let mut without = Vec::new();
    let mut left = vec![command];
    while let Some(command) = left.pop() {
        let inner = command.get_subcommands().filter(|inner| !inner.is_hide_set());
        let inner: Vec<_> = inner.cloned().collect();
        let help = command.get_after_help().map(ToString::to_string);
        if inner.is_empty() && !help.is_some_and(|help| help.contains("Examples:")) {
            without.push(command.get_name().to_owned());
        }
        left.extend(inner);
    }
    without
}

/// A command's name must live as long as the program; there are a few dozen.
fn leak(name: &str) -> &'static str {
    name.to_owned().leak()
}

fn page(command: &Command, name: &str) -> Result<Vec<u8>, Failure> {
    let said = command
        .get_after_help()
        .map(ToString::to_string)
        .unwrap_or_default();
    // Examples keep their lines, which the renderer would fill.
    let without = command.clone().after_help(None::<&'static str>);
    let mut page = Vec::new();
    clap_mangen::Man::new(without)
        .manual("Provost")
        .render(&mut page)
        .map_err(|error| Failure::failed(format!("cannot write the page of {name}: {error}")))?;
    page.extend(sections(&said).into_bytes());
    page.extend(relations(name).into_bytes());
    Ok(page)
}

/// What stands below the options in a command's help, as sections of a page.
fn sections(said: &str) -> String {
    let mut text = String::new();
    let mut section = "";
    for paragraph in said.trim().split("\n\n") {
        let (heading, body) = match paragraph.split_once(':') {
            Some(("Examples", body)) => ("EXAMPLES", body.trim_matches('\n')),
            Some(("Exit status", body)) => ("EXIT STATUS", body.trim()),
            _ => ("NOTES", paragraph),
        };
        if body.is_empty() {
            continue;
        }
        // Lines that are set in stand as they are; sentences are filled.
        let is_set_in = body.lines().any(|line| line.starts_with(' '));
        let (begin, end) = if is_set_in { (".nf\n", ".fi\n") } else { ("", "") };
        text += &if heading == section {
            ".PP\n".to_owned()
        } else {
            format!(".SH \"{heading}\"\n")
        };
        section = heading;
        text += &format!("{begin}{}\n{end}", roff(body));
    }
    text
}

/// The environment and the files of the whole command; of each page, where to go on.
fn relations(name: &str) -> String {
    let Some((parent, _)) = name.rsplit_once('-') else {
        return WHOLE.to_owned();
    };
    let also = if parent == "provost" {
        String::new()
    } else {
        format!(".BR {} (1),\n", roff(parent))
    };
    format!(".SH \"SEE ALSO\"\n{also}.BR provost (1),\n.BR provostd (8)\n")
}

/// The end of the page of `provost`.
const WHOLE: &str = r#".SH ENVIRONMENT
.TP
.B PROVOST_ADMIN_SOCKET
The node's admin socket, instead of \-\-socket.
.TP
.B PROVOST_SOCKET
The socket at which apps attach; the admin socket is looked for beside it.
.TP
.B PROVOST_GRPC_ADDRESS
Where
.BR provost\-call (1)
and
.BR provost\-load (1)
call, instead of the node's first listener for gRPC.
.TP
.B NO_COLOR
No colours.
.SH FILES
.TP
.I /run/provost/admin.sock
The admin socket of the packaged service.
.TP
.I /etc/provost/provostd.toml
Its configuration;
.BR provost\-init (1)
writes a first one.
.TP
.I /usr/share/provost
Alert rules for Prometheus, a dashboard for Grafana.
.SH "SEE ALSO"
.BR provostd (8),
.BR provost\-init (1),
.BR provost\-status (1),
.BR provost\-doctor (1),
.BR provost\-policy (1)
"#;

/// A text that means to roff nothing but itself.
fn roff(text: &str) -> String {
    let plain = text.replace('\\', "\\(rs").replace('-', "\\-");
    let lines = plain.lines().map(|line| {
        let is_request = line.starts_with(['.', '\'']);
        if is_request {
            format!("\\&{line}")
        } else {
            line.to_owned()
        }
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn examples_keep_their_lines_and_mean_nothing_to_roff() {
        let text = sections("Says more.\n\nExamples:\n  provost a --b\n.dot\n\nExit status: 0 done");
        let expected = ".SH \"NOTES\"\nSays more.\n.SH \"EXAMPLES\"\n.nf\n  provost a \\-\\-b\n\\&.dot\n.fi\n\
                        .SH \"EXIT STATUS\"\n0 done\n";
        assert_eq!(text, expected);
        assert_eq!(sections(""), "");
        let notes = sections("A plan:\n\n  [[step]]\n\nAnd more.");
        let expected = ".SH \"NOTES\"\nA plan:\n.PP\n.nf\n  [[step]]\n.fi\n.PP\nAnd more.\n";
        assert_eq!(notes, expected);
    }

    #[test]
    fn pages_lead_to_the_page_above_and_to_the_daemon_s() {
        let page = relations("provost-policy-attach");
        assert!(
            page.contains(".BR provost\\-policy (1)") && page.contains(".BR provostd (8)"),
            "{page}"
        );
        assert!(relations("provost").contains("PROVOST_ADMIN_SOCKET"));
    }
}
