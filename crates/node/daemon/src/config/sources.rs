//! Where a configuration comes from: a file, a directory of files, and what the command line says instead.
//!
//! Files are merged in the order of their names, the single file first: tables merge, lists append, and a key that two
//! files set is an error that names both.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{Config, ConfigError, Problem};

/// Files of a directory that are read, at most.
const FILES_MAX: usize = 1024;
/// Largest file, in bytes.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// Where a configuration comes from, to be read again.
#[derive(Clone)]
pub struct Sources {
    /// A file.
    pub file: Option<PathBuf>,
    /// A directory whose `.toml` files are read in the order of their names, after the file.
    pub directory: Option<PathBuf>,
    /// What the command line says instead.
    pub adjust: Adjust,
}

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
    /// Reads, merges and checks everything.
    pub fn read(&self) -> Result<Config, ConfigError> {
        self.read_these(&self.texts()?)
    }

    /// Checks these files as if they stood in the directory; nothing is read.
    pub fn read_files(&self, files: &BTreeMap<String, String>) -> Result<Config, ConfigError> {
        let texts = files.iter().map(|(name, text)| (name.clone(), text.clone()));
        self.read_these(&texts.collect::<Vec<_>>())
    }

    /// The files' paths with what is in them, in order.
    pub(crate) fn texts(&self) -> Result<Vec<(String, String)>, ConfigError> {
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
        match paths.is_empty() {
            true => "no file: all defaults".to_owned(),
            false => paths.join(", "),
        }
    }

    fn read_these(&self, texts: &[(String, String)]) -> Result<Config, ConfigError> {
        let origin = match texts {
            [(only, _)] => only.clone(),
            _ => self.describe(),
        };
        let merged = merge(texts)?;
        let mut config = Config::deserialize_from(toml::Value::Table(merged.table.clone()), &origin)?;
        (self.adjust)(&mut config);
        match config.check(&origin) {
            Err(ConfigError::Invalid { origin, problems }) if texts.len() > 1 => {
                let problems = problems
                    .into_iter()
                    .map(|problem| merged.placed(problem))
                    .collect();
                Err(ConfigError::Invalid { origin, problems })
            }
            outcome => outcome.map(|()| config),
        }
    }
}

impl Config {
    /// Reads and checks a file, or the `.toml` files of a directory.
    pub fn load(path: &Path) -> Result<Config, ConfigError> {
        let sources = match path.is_dir() {
            true => Sources {
                directory: Some(path.to_path_buf()),
                ..Sources::default()
            },
            false => Sources {
                file: Some(path.to_path_buf()),
                ..Sources::default()
            },
        };
        sources.read()
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
    match text.len() as u64 > FILE_BYTES_MAX {
        true => Err(failed(std::io::Error::other(format!(
            "is larger than {FILE_BYTES_MAX} bytes"
        )))),
        false => Ok(text),
    }
}

/// Files made one, and which of them each key comes from.
#[derive(Default)]
struct Merged {
    table: toml::Table,
    /// By key with dots; entries of lists as `policy[0]`.
    origins: HashMap<String, String>,
}

fn merge(texts: &[(String, String)]) -> Result<Merged, ConfigError> {
    let mut merged = Merged::default();
    for (name, text) in texts {
        // As a configuration of its own first: its errors have lines.
        let _: Config = toml::from_str(text).map_err(|source| syntax(name, source))?;
        let table: toml::Table = toml::from_str(text).map_err(|source| syntax(name, source))?;
        let Merged { table: into, origins } = &mut merged;
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
    origins: &mut HashMap<String, String>,
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
                for value in from {
                    origins.insert(format!("{path}[{}]", into.len()), name.to_owned());
                    into.push(value);
                }
            }
            (Some(_), _) => {
                return Err(ConfigError::Twice {
                    first: origins.get(&path).cloned().unwrap_or_default(),
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
                    origins.insert(format!("{path}[{at}]"), name.to_owned());
                }
                origins.insert(path, name.to_owned());
                into.insert(key, value);
            }
        }
    }
    Ok(())
}

impl Merged {
    /// A problem with the file that its key comes from.
    fn placed(&self, problem: Problem) -> Problem {
        let mut key = problem.key.as_str();
        loop {
            if let Some(origin) = self.origins.get(key) {
                let message = format!("{} (in {origin})", problem.message);
                return Problem { message, ..problem };
            }
            match key.rsplit_once('.') {
                Some((outer, _)) => key = outer,
                None => return problem,
            }
        }
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
            text.contains("limits.message_bytes: 7 is out of range: 1024 to 67108864 (in b.toml)"),
            "{text}"
        );
        assert!(
            text.contains("policy[1].name") && text.matches("(in b.toml)").count() == 2,
            "{text}"
        );
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
