//! The code of a proxy's processes: which files are mapped where, how to walk up a stack, and what each function belongs to.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use framehop::x86_64::{CacheX86_64, UnwindRegsX86_64, UnwinderX86_64};
use framehop::{Module, Unwinder};
use provost_insight::profile::Component;

use super::owner::owner;
use super::program::{NamedFunctions, ProgramCode};
use super::sample::StackSample;
use crate::machine;

/// Files that one process maps at most, of those that are looked at; and bytes of each.
const FILES_MAX: usize = 64;
const FILE_BYTES_MAX: u64 = 1 << 30;
/// Frames of a stack that are looked at.
pub(super) const FRAMES_MAX: usize = 96;

/// What a sample was spent on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SampleOwner {
    /// The part of the proxy that the innermost function with a name belongs to.
    pub(crate) component: Component,
    /// Whether a codec is anywhere below it.
    pub(crate) is_below_codec: bool,
    /// Whether any function of the stack has an owner.
    pub(crate) is_named: bool,
}

struct CodeFile {
    /// Addresses in the process.
    from: u64,
    to: u64,
    /// What to subtract to get the file's own addresses.
    bias: u64,
    code: ProgramCode,
}

/// Everything that is needed to say what a sample is about.
pub(crate) struct UserCode {
    files: Vec<CodeFile>,
    unwinder: UnwinderX86_64<Vec<u8>>,
    cache: CacheX86_64<framehop::MayAllocateDuringUnwind>,
    /// Why the program itself tells nothing of its code, where it does not.
    pub(crate) unread: Option<String>,
}

impl UserCode {
    /// Reads the files that these processes have mapped. All processes of a proxy run the same program.
    pub(crate) fn of(processes: &[u32]) -> UserCode {
        let mut code = UserCode {
            files: Vec::new(),
            unwinder: UnwinderX86_64::new(),
            cache: CacheX86_64::new(),
            unread: None,
        };
        let Some(process) = processes.last() else {
            return code;
        };
        let program = std::fs::read_link(format!("/proc/{process}/exe")).unwrap_or_default();
        let maps = machine::read(format!("/proc/{process}/maps")).unwrap_or_default();
        for mapping in maps.lines().filter_map(CodeMapping::parse).take(FILES_MAX) {
            let is_program = Path::new(mapping.link) == program;
            match code.add(*process, &mapping, is_program) {
                Err(why) if is_program => code.unread = Some(why),
                // A library that cannot be read has no names; its callers have.
                _ => {}
            }
        }
        code
    }

    fn add(&mut self, process: u32, mapping: &CodeMapping<'_>, is_program: bool) -> Result<(), String> {
        let unread = |why: &dyn fmt::Display| format!("{}: {why}", mapping.link);
        let path = mapping.file_in(process, is_program).map_err(|why| unread(&why))?;
        let length = std::fs::metadata(&path).map_err(|error| unread(&error))?.len();
        if length > FILE_BYTES_MAX {
            return Err(unread(&format_args!("longer than {FILE_BYTES_MAX} bytes")));
        }
        let bytes = std::fs::read(Path::new(&path)).map_err(|error| unread(&error))?;
        let named = if is_program {
            NamedFunctions::All
        } else {
            NamedFunctions::None
        };
        let mut code = ProgramCode::read(&bytes, named).map_err(|error| unread(&error))?;
        let address = code.address_of(mapping.offset);
        let address = address.ok_or_else(|| unread(&"the mapped part is in no segment of the file"))?;
        let bias = mapping.from.wrapping_sub(address);
        self.unwinder.add_module(Module::new(
            mapping.link.to_string(),
            mapping.from..mapping.to,
            bias,
            code.take_frames(),
        ));
        self.files.push(CodeFile {
            from: mapping.from,
            to: mapping.to,
            bias,
            code,
        });
        Ok(())
    }

    /// Walks up a sample's stack until it knows what the sample was spent on.
    pub(crate) fn attribute(&mut self, sample: &StackSample) -> SampleOwner {
        let registers = UnwindRegsX86_64::new(sample.instruction, sample.stack, sample.frame);
        let mut read_stack = |address| sample.word(address).ok_or(());
        let mut frames =
            self.unwinder
                .iter_frames(sample.instruction, registers, &mut self.cache, &mut read_stack);
        let mut component = None;
        let mut is_below_codec = false;
        for _ in 0..FRAMES_MAX {
            let Ok(Some(frame)) = frames.next() else {
                break;
            };
            let name = name_at(&self.files, frame.address_for_lookup());
            if let Some(owner) = name.and_then(owner) {
                is_below_codec |= owner == Component::Parse;
                component.get_or_insert(owner);
            }
        }
        SampleOwner {
            is_named: component.is_some(),
            component: component.unwrap_or(Component::OtherUser),
            is_below_codec,
        }
    }
}

fn name_at(files: &[CodeFile], address: u64) -> Option<&str> {
    let file = files
        .iter()
        .find(|file| (file.from..file.to).contains(&address))?;
    file.code.function_at(address.wrapping_sub(file.bias))
}

/// A line of `/proc/PID/maps` with code of a file.
struct CodeMapping<'a> {
    /// As the line has them.
    range: &'a str,
    from: u64,
    to: u64,
    offset: u64,
    /// Where the file was, and whether another one may be there now.
    link: &'a str,
}

impl<'a> CodeMapping<'a> {
    fn parse(line: &'a str) -> Option<CodeMapping<'a>> {
        let mut fields = line.split_ascii_whitespace();
        let range = fields.next()?;
        let (from, to) = range.split_once('-')?;
        let permissions = fields.next()?;
        let offset = fields.next()?;
        let link = line.get(line.find('/')?..)?;
        let number = |text| u64::from_str_radix(text, 16).ok();
        permissions.contains('x').then_some(())?;
        Some(CodeMapping {
            range,
            from: number(from)?,
            to: number(to)?,
            offset: number(offset)?,
            link,
        })
    }

    /// The file that is mapped, though it lives in a container, or another one has its place since.
    fn file_in(&self, process: u32, is_program: bool) -> Result<PathBuf, &'static str> {
        let mapped = if is_program {
            format!("/proc/{process}/exe")
        } else {
            format!("/proc/{process}/map_files/{}", self.range)
        };
        if std::fs::metadata(&mapped).is_ok() {
            return Ok(mapped.into());
        }
        // Not everybody may look at what is mapped.
        if self.link.ends_with(machine::DELETED) {
            return Err("the file was replaced or removed");
        }
        Ok(format!("/proc/{process}/root{}", self.link).into())
    }
}

/// Samples by what they were spent on.
#[derive(Clone, Debug, Default)]
pub(crate) struct UserShares {
    counts: BTreeMap<Component, u64>,
    below_codec: u64,
    unnamed: u64,
}

impl UserShares {
    pub(crate) fn count(&mut self, attribution: SampleOwner) {
        *self.counts.entry(attribution.component).or_default() += 1;
        self.below_codec += u64::from(attribution.is_below_codec);
        self.unnamed += u64::from(!attribution.is_named);
    }

    pub(crate) fn samples(&self) -> u64 {
        self.counts.values().sum()
    }

    /// The share of the samples that a component has to itself.
    pub(crate) fn share(&self, component: &Component) -> f64 {
        let count = self.counts.get(component).copied().unwrap_or_default();
        count as f64 / self.samples().max(1) as f64
    }

    /// The share of the samples that a codec has with all that it calls.
    pub(crate) fn codec_inclusive(&self) -> f64 {
        self.below_codec as f64 / self.samples().max(1) as f64
    }
}

impl fmt::Display for UserShares {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} samples", self.samples())?;
        for component in self.counts.keys() {
            write!(f, ", {component} {:.1} %", self.share(component) * 100.0)?;
        }
        let unnamed = self.unnamed as f64 / self.samples().max(1) as f64;
        write!(
            f,
            "; codec with what it calls {:.1} %, no function with a name {:.1} %",
            self.codec_inclusive() * 100.0,
            unnamed * 100.0
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::waiting::WaitingProgram;

    #[test]
    fn only_mapped_code_of_files_counts() {
        let line = "55d0c0400000-55d0c0800000 r-xp 00001000 fe:00 42   /usr/bin/a b (deleted)";
        let mapping = CodeMapping::parse(line).unwrap();
        assert_eq!(mapping.link, "/usr/bin/a b (deleted)");
        let replaced = mapping.file_in(u32::MAX >> 1, false).unwrap_err();
        assert!(replaced.contains("replaced"), "{replaced}");
        assert_eq!((mapping.from, mapping.offset), (0x55d0_c040_0000, 0x1000));
        for other in [
            "55d0c0400000-55d0c0800000 r--p 0 fe:00 42 /usr/bin/a",
            "7ffd-7fff r-xp 0 00:00 0 [vdso]",
            "x",
            "",
        ] {
            assert!(CodeMapping::parse(other).is_none(), "{other}");
        }
    }

    #[test]
    fn own_code_is_found_with_its_functions() {
        let code = UserCode::of(&[std::process::id()]);
        assert!(!code.files.is_empty());
        let named = |name: &str| name.contains("own_code_is_found_with_its_functions");
        let own = code
            .files
            .iter()
            .find(|file| file.code.names().values().any(|name| named(name)));
        let own = own.expect("this program is mapped, and not stripped");
        let (start, name) = own.code.names().iter().find(|(_, name)| named(name)).unwrap();
        assert_eq!(name_at(&code.files, start + own.bias + 1), Some(&**name));
        // The C library's functions have no names here.
        let named_files = code.files.iter().filter(|file| file.code.named_functions() > 0);
        assert_eq!(named_files.count(), 1);
    }

    #[test]
    fn what_runs_is_read_though_another_file_has_its_place() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("program");
        let waiting = WaitingProgram::at(&program);
        let process = waiting.id();
        let places = || {
            let code = UserCode::of(&[process]);
            assert_eq!(code.unread, None);
            code.files
                .iter()
                .map(|file| (file.from, file.bias))
                .collect::<Vec<_>>()
        };
        let link = || std::fs::read_link(format!("/proc/{process}/exe")).unwrap();
        // Itself, what loads libraries, and the C library.
        let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while places().len() < 3 {
            assert!(std::time::Instant::now() < until, "{:?}", places());
            std::thread::yield_now();
        }
        let before = places();
        let newer = folder.path().join("newer");
        std::fs::write(&newer, "no program at all").unwrap();
        std::fs::rename(&newer, &program).unwrap();
        assert!(link().to_string_lossy().ends_with(machine::DELETED));
        assert_eq!(places(), before);
    }

    proptest::proptest! {
        #[test]
        fn no_line_of_a_map_panics(line in "[0-9a-f]{0,20}-[0-9a-f]{0,20} .{0,60}") {
            if let Some(mapping) = CodeMapping::parse(&line) {
                proptest::prop_assert!(mapping.link.starts_with('/'));
            }
        }
    }

    #[test]
    fn shares_add_up() {
        let mut shares = UserShares::default();
        for (component, is_below_codec) in [
            (Component::Parse, true),
            (Component::OtherUser, true),
            (Component::OtherUser, false),
            (Component::OtherUser, false),
        ] {
            shares.count(SampleOwner {
                component,
                is_below_codec,
                is_named: true,
            });
        }
        assert_eq!(
            (shares.share(&Component::Parse), shares.codec_inclusive()),
            (0.25, 0.5)
        );
        assert_eq!(shares.share(&Component::Read), 0.0);
    }
}
