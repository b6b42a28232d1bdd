//! Where a configuration comes from: a file, a directory of files, and what the command line says instead.
//!
//! Files are merged in the order of their names, the single file first: tables merge, lists append, and a key that two
//! files set is an error that names both.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::key_places::{KeyPlaces, is_named_in_refusals};
use super::lines::{KeyLines, enclosing};
use super::{Config, ConfigError, Problem};

/// Files of a directory that are read, at most.
const FILES_MAX: usize = 1024;
/// Largest file, in bytes.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// Where a configuration comes from, to be read again.
#[derive(Clone)]
pub struct Sources {
    pub file: Option<PathBuf>,
    /// A directory whose `.toml` files are read in the order of their names, after the file.
    pub directory: Option<PathBuf>,
    /// What the command line says instead.
    pub adjust: Adjust,
}

/// What is wrong with a configuration beyond what [`Config::check`] sees.
pub type FurtherCheck<'a> = &'a dyn Fn(&Config) -> Vec<Problem>;

/// Changes a configuration that was read.
pub type Adjust = Arc<dyn Fn(&mut Config) + Send + Sync>;

impl Default for Sources {
    fn default() -> Sources {
        Sources {
            file: None,
            directory: None,
            adjust: Arc::new(|_| ()),
        }
    }
}

impl Sources {
    /// A file, or the `.toml` files of a directory.
    #[must_use]
    pub fn at(path: &Path) -> Sources {
        let (file, directory) = if path.is_dir() {
            (None, Some(path.to_path_buf()))
        } else {
            (Some(path.to_path_buf()), None)
        };
        Sources {
            file,
            directory,
            ..Sources::default()
        }
    }

    /// Which file or directory an operator has to change, for people.
    #[must_use]
    pub fn place(&self) -> String {
        let paths: Vec<String> = self
            .file
            .iter()
            .chain(&self.directory)
            .map(|path| path.display().to_string())
            .collect();
        if paths.is_empty() {
            return "the node was started without a configuration file".to_owned();
        }
        paths.join(" and ")
    }

    /// Reads, merges and checks everything that can be seen in the files alone.
    pub fn read(&self) -> Result<Config, ConfigError> {
        self.read_checked(&|_| Vec::new())
    }

    /// Reads and merges, and checks this as well. All problems are listed, each with its file and line.
    pub fn read_checked(&self, further: FurtherCheck<'_>) -> Result<Config, ConfigError> {
        self.read_these(&self.texts()?, further)
    }

    /// Checks these files as if they stood in the directory; nothing is read.
    pub fn read_files(&self, files: &BTreeMap<String, String>) -> Result<Config, ConfigError> {
        let texts = files.iter().map(|(name, text)| (name.clone(), text.clone()));
        self.read_these(&texts.collect::<Vec<_>>(), &|_| Vec::new())
    }

    /// The files' paths with what is in them, in order.
    pub fn texts(&self) -> Result<Vec<(String, String)>, ConfigError> {
        let mut paths: Vec<PathBuf> = self.file.iter().cloned().collect();
        if let Some(directory) = &self.directory {
            paths.extend(files_of(directory)?);
        }
        let texts = paths
            .iter()
            .map(|path| Ok((path.display().to_string(), read(path)?)));
        texts.collect()
    }

    /// Where it comes from, for people.
    #[must_use]
    pub fn describe(&self) -> String {
        let paths = [&self.file, &self.directory];
        let paths: Vec<_> = paths
            .into_iter()
            .flatten()
            .map(|path| path.display().to_string())
            .collect();
        if paths.is_empty() {
            "no file: all defaults".to_owned()
        } else {
            paths.join(", ")
        }
    }

    fn read_these(
        &self,
        texts: &[(String, String)],
        further: FurtherCheck<'_>,
    ) -> Result<Config, ConfigError> {
        let origin = match texts {
            [] => "the command line".to_owned(),
            [(only, _)] => only.clone(),
            _ => self.describe(),
        };
        let merged = merge(texts)?;
        let mut config = Config::deserialize_from(toml::Value::Table(merged.table.clone()), &origin)?;
        config.places = Arc::new(KeyPlaces::of(merged.keys_of_refusals()));
        (self.adjust)(&mut config);
        let mut problems = config.problems();
        problems.extend(further(&config));
        if problems.is_empty() {
            return Ok(config);
        }
        let problems = problems.into_iter();
        Err(ConfigError::Invalid {
            origin,
            problems: problems.map(|problem| merged.placed(problem)).collect(),
        })
    }
}

impl Config {
    /// Reads and checks a file, or the `.toml` files of a directory.
    pub fn load(path: &Path) -> Result<Config, ConfigError> {
        Sources::at(path).read()
    }

    fn deserialize_from(value: toml::Value, origin: &str) -> Result<Config, ConfigError> {
        value.try_into().map_err(|source| ConfigError::Syntax {
            origin: origin.to_owned(),
            source: Box::new(source),
        })
    }
}

fn files_of(directory: &Path) -> Result<Vec<PathBuf>, ConfigError> {
    let failed = |source| ConfigError::Read {
        path: directory.to_path_buf(),
        source,
    };
    let entries = std::fs::read_dir(directory).map_err(failed)?;
    let mut files = Vec::new();
    for entry in entries {
        let path = entry.map_err(failed)?.path();
        // Editors and package tools leave hidden files behind.
        let is_hidden = path
            .file_name()
            .is_some_and(|name| name.to_string_lossy().starts_with('.'));
        if !is_hidden && path.extension().is_some_and(|extension| extension == "toml") {
            files.push(path);
        }
    }
    if files.len() > FILES_MAX {
        let source = std::io::Error::other(format!("{} files, at most {FILES_MAX} are read", files.len()));
        return Err(failed(source));
    }
    files.sort();
    Ok(files)
}

fn read(path: &Path) -> Result<String, ConfigError> {
    use std::io::Read;
    let failed = |source| ConfigError::Read {
        path: path.to_path_buf(),
        source,
    };
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(failed)?;
    file.take(FILE_BYTES_MAX + 1)
        .read_to_string(&mut text)
        .map_err(failed)?;
    if text.len() as u64 > FILE_BYTES_MAX {
        Err(failed(std::io::Error::other(format!(
            "is larger than {FILE_BYTES_MAX} bytes"
        ))))
    } else {
        Ok(text)
    }
}

/// Files made one, and where each key comes from.
#[derive(Default)]
struct Merged {
    table: toml::Table,
    /// By key with dots; entries of lists as `policy[0]`.
    origins: HashMap<String, KeyOrigin>,
    /// By the file's name.
    lines: HashMap<String, KeyLines>,
    files: usize,
}

/// Where a key comes from.
#[derive(Clone, Default)]
struct KeyOrigin {
    file: String,
    /// What it is called there: lists of several files are counted through.
    key: String,
}

fn merge(texts: &[(String, String)]) -> Result<Merged, ConfigError> {
    let mut merged = Merged {
        files: texts.len(),
        ..Merged::default()
    };
    for (name, text) in texts {
        // As a configuration of its own first: its errors have lines.
        let _: Config = toml::from_str(text).map_err(|source| syntax(name, source))?;
        let table: toml::Table = toml::from_str(text).map_err(|source| syntax(name, source))?;
        merged.lines.insert(name.clone(), KeyLines::of(text));
        let Merged {
            table: into, origins, ..
        } = &mut merged;
        merge_table(into, table, "", name, origins)?;
    }
    Ok(merged)
}

fn syntax(name: &str, source: toml::de::Error) -> ConfigError {
    ConfigError::Syntax {
        origin: name.to_owned(),
        source: Box::new(source),
    }
}

fn merge_table(
    into: &mut toml::Table,
    from: toml::Table,
    prefix: &str,
    name: &str,
    origins: &mut HashMap<String, KeyOrigin>,
) -> Result<(), ConfigError> {
    for (key, value) in from {
        let path = match prefix {
            "" => key.clone(),
            prefix => format!("{prefix}.{key}"),
        };
        match (into.get_mut(&key), value) {
            (Some(toml::Value::Table(into)), toml::Value::Table(from)) => {
                merge_table(into, from, &path, name, origins)?;
            }
            (Some(toml::Value::Array(into)), toml::Value::Array(from)) => {
                for (at, value) in from.into_iter().enumerate() {
                    let origin = KeyOrigin::new(name, format!("{path}[{at}]"));
                    origins.insert(format!("{path}[{}]", into.len()), origin);
                    into.push(value);
                }
            }
            (Some(_), _) => {
                return Err(ConfigError::Twice {
                    first: origins.get(&path).cloned().unwrap_or_default().file,
                    second: name.to_owned(),
                    key: path,
                });
            }
            (None, toml::Value::Table(from)) => {
                let mut table = toml::Table::new();
                merge_table(&mut table, from, &path, name, origins)?;
                into.insert(key, toml::Value::Table(table));
            }
            (None, value) => {
                let entries = value.as_array().map_or(0, Vec::len);
                for at in 0..entries {
                    let key = format!("{path}[{at}]");
                    origins.insert(key.clone(), KeyOrigin::new(name, key));
                }
                origins.insert(path.clone(), KeyOrigin::new(name, path));
                into.insert(key, value);
            }
        }
    }
    Ok(())
}

impl KeyOrigin {
    fn new(file: &str, key: String) -> KeyOrigin {
        KeyOrigin {
            file: file.to_owned(),
            key,
        }
    }
}

impl Merged {
    /// Keys that refusals name, each with its file and line.
    fn keys_of_refusals(&self) -> impl Iterator<Item = (String, String)> {
        self.origins
            .iter()
            .filter(|(key, _)| is_named_in_refusals(key))
            .flat_map(|(key, origin)| self.places_within(key, origin))
    }

    /// The place of a key, and those of the keys right below it.
    fn places_within<'a>(
        &'a self,
        key: &'a str,
        origin: &'a KeyOrigin,
    ) -> impl Iterator<Item = (String, String)> + 'a {
        let lines = self.lines.get(&origin.file).into_iter();
        let found = lines.flat_map(|lines| lines.right_below(&origin.key));
        found.map(move |(below, line)| (format!("{key}{below}"), format!("{}, line {line}", origin.file)))
    }

    /// A problem with the file and the line that its key comes from.
    fn placed(&self, problem: Problem) -> Problem {
        let found = enclosing(&problem.key)
            .find_map(|outer| self.origins.get(outer).map(|origin| (outer.len(), origin)));
        let Some((known, origin)) = found else {
            return problem;
        };
        let key = format!("{}{}", origin.key, &problem.key[known..]);
        let line = self.lines.get(&origin.file).and_then(|lines| lines.find(&key));
        let mut place: Vec<String> = Vec::new();
        // The file is named before the list of problems where there is only one.
        place.extend((self.files > 1).then(|| format!("in {}", origin.file)));
        place.extend(line.map(|line| format!("line {line}")));
        let message = format!("{} ({})", problem.message, place.join(", "));
        Problem { message, ..problem }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(files: &[(&str, &str)]) -> Result<Config, ConfigError> {
        let files = files
            .iter()
            .map(|(name, text)| ((*name).to_owned(), (*text).to_owned()));
        Sources::default().read_files(&files.collect())
    }

    #[test]
    fn tables_merge_and_lists_append_in_the_order_of_names() {
        let config = files(&[
            (
                "10-a.toml",
                "[limits]\napps = 7\n[[policy]]\nname = \"first\"\nkind = \"null\"\n",
            ),
            (
                "20-b.toml",
                "[limits]\nconnections = 9\nconnections_per_app = 9\n[[policy]]\nname = \"second\"\nkind = \"null\"\n",
            ),
        ])
        .unwrap();
        assert_eq!((config.limits.apps, config.limits.connections), (7, 9));
        let names: Vec<_> = config
            .attachments
            .iter()
            .map(|policy| policy.name.as_str())
            .collect();
        assert_eq!(names, ["first", "second"]);
    }

    #[test]
    fn a_key_that_two_files_set_names_both() {
        let twice = files(&[
            ("a.toml", "[limits]\napps = 7\n"),
            ("b.toml", "[limits]\napps = 7\n"),
        ]);
        let text = twice.unwrap_err().to_string();
        for part in ["limits.apps", "a.toml", "b.toml"] {
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn errors_name_their_file_and_line_or_key() {
        let misspelt = files(&[("a.toml", ""), ("b.toml", "[limits]\nmesage_bytes = 7\n")]);
        let text = misspelt.unwrap_err().to_string();
        assert!(text.contains("b.toml") && text.contains("line 2"), "{text}");
        let out_of_range = files(&[
            ("a.toml", "[[policy]]\nname = \"a\"\nkind = \"null\"\n"),
            (
                "b.toml",
                "[limits]\nmessage_bytes = 7\n[[policy]]\nname = \"a\"\nkind = \"null\"\n",
            ),
        ]);
        let text = out_of_range.unwrap_err().to_string();
        assert!(
            text.contains("limits.message_bytes: 7 is out of range: 1024 to 67108864 (in b.toml, line 2)"),
            "{text}"
        );
        assert!(
            text.contains("policy[1].name") && text.contains("(in b.toml, line 4)"),
            "{text}"
        );
    }

    #[test]
    fn reading_takes_time_in_proportion_to_the_length() {
        // Far from what time in proportion to the square would be, and far above what a busy machine makes of the least of three.
        const TIMES_LONGER: u32 = 64;
        const RATIO_MAX: u32 = TIMES_LONGER * 16;
        let fastest = |tables: u32| {
            let table = |number| format!("[[app]]\nname = \"a{number}\"\nusers = [0, 1, 2, 3]\n");
            let text: String = (0..tables).map(table).collect();
            let reads = (0..3).map(|_| {
                let began = std::time::Instant::now();
                files(&[("a.toml", &text)]).unwrap();
                began.elapsed()
            });
            reads.min().unwrap()
        };
        let (short, long) = (fastest(60), fastest(60 * TIMES_LONGER));
        assert!(long < RATIO_MAX * short, "{short:?}, {long:?}");
    }

    #[test]
    fn a_directory_is_read_without_hidden_and_other_files() {
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(directory.path().join(name), text).unwrap();
        write("20.toml", "policies = [\"null\"]\n");
        write("10.toml", "[node]\nname = \"n\"\n");
        write(".30.toml.swp", "nonsense");
        write(".40.toml", "nonsense");
        write("notes.txt", "nonsense");
        let config = Config::load(directory.path()).unwrap();
        assert_eq!((config.node.name.as_str(), config.policies.len()), ("n", 1));
        assert!(matches!(
            Config::load(&directory.path().join("none")),
            Err(ConfigError::Read { .. })
        ));
    }

    #[test]
    fn the_command_line_has_the_last_word() {
        let sources = Sources {
            adjust: Arc::new(|config| config.runtime.threads = 3),
            ..Sources::default()
        };
        assert_eq!(sources.read().unwrap().runtime.threads, 3);
    }
}
