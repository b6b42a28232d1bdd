//! Files that the subcommands read and write, each within a bound, and the options that they share.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use clap::builder::RangedU64ValueParser;
use clap::{Args, ValueEnum};
use provost_insight::acg::{ACG_BYTES_MAX, AnnotatedGraph, CallGraph};
use provost_insight::model::{ApplicationMachine, DRAWS_MAX, MachineMatch, ProfileModel, check_machine};
use provost_insight::predict::{MeshSetup, NodeCores, PredictOptions, ProxyPlacement, SAMPLES_MAX};
use provost_insight::profile::{MachineIdentity, PROFILE_BYTES_MAX, PROFILE_FORMAT, Profile, Protocol};
use provost_insight_probes::machine::identity;
use provost_terminal::failure::{Exit, Failure};

/// The text of a file of at most so many bytes; `-` is standard input.
pub(crate) fn read_text(path: &Path, bytes_max: usize) -> Result<String, Failure> {
    let wrong = |error: std::io::Error| Failure::usage(format!("{}: {error}", path.display()));
    let source: Box<dyn Read> = if path.as_os_str() == "-" {
        Box::new(std::io::stdin())
    } else {
        Box::new(File::open(path).map_err(wrong)?)
    };
    let mut text = String::new();
    let taken = source
        .take(bytes_max as u64 + 1)
        .read_to_string(&mut text)
        .map_err(wrong)?;
    if taken > bytes_max {
        Err(refused(
            path,
            format!("longer than {bytes_max} bytes, which is the most that is read: split it"),
        ))
    } else {
        Ok(text)
    }
}

/// A file that is not what it should be.
pub(crate) fn refused(path: &Path, problem: impl std::fmt::Display) -> Failure {
    Failure::new(Exit::Refused, format!("{}: {problem}", path.display()))
}

/// Reads a profile.
pub(crate) fn read_profile(path: &Path) -> Result<Profile, Failure> {
    let text = read_text(path, PROFILE_BYTES_MAX)?;
    if !is_json(&text) {
        let problem = "no profile: one is JSON, and `provost insight profile` writes it";
        return Err(refused(path, problem));
    }
    Profile::parse(&text).map_err(|error| refused(path, error))
}

/// Reads a call graph.
pub(crate) fn read_graph(path: &Path) -> Result<CallGraph, Failure> {
    let text = read_text(path, ACG_BYTES_MAX)?;
    if is_json(&text) && text.contains(PROFILE_FORMAT) {
        let problem = "a profile, and no graph: `provost insight acg derive` makes one from traces";
        return Err(refused(path, problem));
    }
    AnnotatedGraph::parse(&text)
        .and_then(CallGraph::new)
        .map_err(|error| refused(path, error))
}

fn is_json(text: &str) -> bool {
    text.trim_start().starts_with('{')
}

/// Makes sure that a file can be written, before something that takes long and would be lost.
pub(crate) fn check_output(path: Option<&Path>) -> Result<(), Failure> {
    let Some(path) = path else {
        return Ok(());
    };
    let was_there = path.exists();
    let opened = File::options().create(true).append(true).open(path);
    opened.map_err(|error| Failure::usage(format!("{}: {error}", path.display())))?;
    if !was_there {
        // Nothing is in it yet.
        let _ = std::fs::remove_file(path);
    }
    Ok(())
}

/// Writes a file, or to standard output where none is named.
pub(crate) fn write_text(path: Option<&Path>, text: &str) -> Result<(), Failure> {
    match path {
        None => provost_terminal::output::print(text),
        Some(path) => {
            write_whole(path, text).map_err(|error| Failure::failed(format!("{}: {error}", path.display())))
        }
    }
}

/// Writes a file beside its place first: whatever happens, what was there is there until all of the text is. Where that cannot be, as
/// in a folder that takes no further file, at a device, or in a file of another user, the file itself is written.
fn write_whole(path: &Path, text: &str) -> std::io::Result<()> {
    let is_file = path.is_file();
    let is_own = std::fs::symlink_metadata(path).map_or(true, |found| {
        let is_link_to_nothing = found.is_symlink() && !is_file;
        let is_of_us = std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == found.uid());
        is_of_us && !is_link_to_nothing
    });
    // What a link leads to is replaced, not the link.
    let place = if is_file {
        path.canonicalize()?
    } else {
        path.to_owned()
    };
    let beside = place
        .file_name()
        .filter(|_| is_own && (is_file || !path.exists()))
        .map(|name| {
            let mut name = name.to_owned();
            name.push(format!(".{}.part", std::process::id()));
            place.with_file_name(name)
        });
    let made = beside.and_then(|beside| Some((File::create_new(&beside).ok()?, beside)));
    let Some((mut file, beside)) = made else {
        return std::fs::write(path, text);
    };
    let mut write = || {
        if is_file {
            file.set_permissions(std::fs::metadata(&place)?.permissions())?;
        }
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&beside, &place)
    };
    write().inspect_err(|_| drop(std::fs::remove_file(&beside)))
}

/// What proxies understand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ProtocolName {
    Tcp,
    Http1,
    Http2,
    Grpc,
    Provost,
}

impl ProtocolName {
    pub(crate) const fn protocol(self) -> Protocol {
        match self {
            ProtocolName::Tcp => Protocol::Tcp,
            ProtocolName::Http1 => Protocol::Http1,
            ProtocolName::Http2 => Protocol::Http2,
            ProtocolName::Grpc => Protocol::Grpc,
            ProtocolName::Provost => Protocol::Provost,
        }
    }
}

/// Where proxies stand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum PlacementName {
    /// Beside every service
    #[default]
    Sidecars,
    /// One on every node
    PerNode,
    /// One before every service, as a reverse proxy stands
    BeforeServices,
}

/// The mesh, as it is.
#[derive(Args, Clone, Debug)]
pub(crate) struct SetupOptions {
    /// Where proxies stand
    #[arg(long, value_enum, default_value_t)]
    placement: PlacementName,
    /// What all proxies understand of the bytes [default: what each call speaks]
    #[arg(long, value_enum, value_name = "PROTOCOL")]
    mode: Option<ProtocolName>,
    /// A filter that every proxy runs
    #[arg(long = "add-filter", value_name = "NAME")]
    add_filters: Vec<String>,
    /// A filter of the graph that no proxy runs
    #[arg(long = "remove-filter", value_name = "NAME")]
    remove_filters: Vec<String>,
}

impl SetupOptions {
    /// The setup, under a name.
    pub(crate) fn setup(&self, name: &str) -> MeshSetup {
        let placement = match self.placement {
            PlacementName::Sidecars => ProxyPlacement::Sidecars,
            PlacementName::PerNode => ProxyPlacement::PerNode,
            PlacementName::BeforeServices => ProxyPlacement::BeforeServices,
        };
        MeshSetup {
            mode: self.mode.map(ProtocolName::protocol),
            filters_added: self.add_filters.clone(),
            filters_removed: self.remove_filters.clone(),
            ..MeshSetup::new(name, placement)
        }
    }
}

/// How a profile is used, and how much is computed.
#[derive(Args, Clone, Debug)]
pub(crate) struct ModelOptions {
    /// Draws of the bootstrap, from which intervals come
    #[arg(long, default_value_t = 100, value_name = "N", value_parser = count(DRAWS_MAX))]
    draws: usize,
    /// Requests of each type that are played in each draw
    #[arg(long, default_value_t = 2000, value_name = "N", value_parser = count(SAMPLES_MAX))]
    samples: usize,
    /// Where chance begins
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,
    /// Cores of each node, or `plenty` if nobody ever waits for one [default: those of the profile's machine]
    #[arg(long, value_name = "N|plenty", value_parser = cores)]
    cores: Option<NodeCores>,
    /// Use a profile of another machine, its times multiplied by this
    #[arg(long, value_name = "FACTOR", requires = "rescale_error", value_parser = positive)]
    rescale: Option<f64>,
    /// By how much that factor may be off, in per cent
    #[arg(long, value_name = "PERCENT", requires = "rescale", value_parser = positive)]
    rescale_error: Option<f64>,
}

impl ModelOptions {
    pub(crate) fn predict_options(&self) -> PredictOptions {
        PredictOptions {
            samples: self.samples,
            seed: self.seed,
            cores: self.cores.unwrap_or_default(),
        }
    }

    /// A model of a profile, for the machine that a graph names, or this one.
    pub(crate) fn model(&self, path: &Path, machine: &str) -> Result<(Profile, ProfileModel), Failure> {
        let profile = read_profile(path)?;
        let machine = match (self.rescale, self.rescale_error) {
            (Some(factor), Some(percent)) => MachineMatch::Rescaled {
                factor,
                error_share: percent / 100.0,
            },
            _ => {
                let application = match machine {
                    "" => ApplicationMachine::Known(MachineIdentity {
                        id: "this machine".to_owned(),
                        ..identity()
                    }),
                    named => ApplicationMachine::Named(named.to_owned()),
                };
                check_machine(&profile, &application).map_err(|error| refused(path, error))?
            }
        };
        let model = ProfileModel::new(&profile, machine, self.draws, self.seed)
            .map_err(|error| refused(path, error))?;
        Ok((profile, model))
    }
}

/// A graph, a profile and a mesh.
#[derive(Args, Clone, Debug)]
pub(crate) struct Prediction {
    /// The call graph (`acg.yaml`); - is standard input
    pub(crate) acg: PathBuf,
    /// The proxy's profile
    #[arg(long, short = 'p', value_name = "FILE")]
    pub(crate) profile: PathBuf,
    #[command(flatten)]
    pub(crate) setup: SetupOptions,
    #[command(flatten)]
    pub(crate) model: ModelOptions,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// No figure of a load or a machine is larger.
const FIGURE_MAX: f64 = 1e12;

/// A number above 0.
pub(crate) fn positive(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if number > 0.0 && number <= FIGURE_MAX => Ok(number),
        _ => Err(format!("a number above 0 is needed, of {FIGURE_MAX:e} at most")),
    }
}

/// A part of a whole, such as 0.01.
pub(crate) fn share(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if number > 0.0 && number <= 1.0 => Ok(number),
        _ => Err("a share above 0 is needed, of 1 at most: 0.01 is one in a hundred".to_owned()),
    }
}

/// A number above 0, of which there are at least one and at most so many.
pub(crate) fn count(max: usize) -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::<usize>::new().range(1..=max as u64)
}

fn cores(text: &str) -> Result<NodeCores, String> {
    match (text, text.parse::<u32>()) {
        ("plenty", _) => Ok(NodeCores::Plenty),
        (_, Ok(number)) if number > 0 => Ok(NodeCores::Each(number)),
        _ => Err("a number of cores above 0 is needed, or `plenty`".to_owned()),
    }
}

/// A time such as `3ms`, in microseconds.
pub(crate) fn time_us(text: &str) -> Result<f64, String> {
    let units = [("us", 1.0), ("µs", 1.0), ("ms", 1e3), ("s", 1e6)];
    let found = units
        .into_iter()
        .find_map(|(unit, factor)| Some((text.strip_suffix(unit)?.trim(), factor)));
    let time = found.and_then(|(number, factor)| Some(number.parse::<f64>().ok()? * factor));
    time.filter(|time| time.is_finite() && *time >= 0.0)
        .ok_or_else(|| "a time with its unit is needed, such as 500us, 3ms or 1s".to_owned())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn a_file_is_replaced_as_it_is_and_where_a_link_leads() {
        let folder = tempfile::tempdir().unwrap();
        let [file, link] = ["file", "link"].map(|name| folder.path().join(name));
        write_text(Some(&file), "one").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
        symlink(&file, &link).unwrap();
        write_text(Some(&link), "two").unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "two");
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o640);
        assert!(link.is_symlink());
        write_text(Some(Path::new("/dev/null")), "nothing").unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    }

    #[test]
    fn times_have_units() {
        assert_eq!(time_us("3ms"), Ok(3000.0));
        assert_eq!((time_us("500us"), time_us("0.5s")), (Ok(500.0), Ok(500_000.0)));
        for wrong in ["3", "ms", "-1ms", "nanms", "infs"] {
            assert!(time_us(wrong).is_err(), "{wrong}");
        }
    }
}
