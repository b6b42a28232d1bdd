//! What this machine is, and what the kernel says of processes.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use provost_insight::profile::{CoreRegime, MachineIdentity};
use sha2::{Digest, Sha256};

use crate::failure::{Doing, ProbeFailure};

/// Bytes of a file below `/proc` or `/sys` that are read.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Reads a small file of the kernel's.
pub(crate) fn read(path: impl AsRef<Path>) -> Result<String, ProbeFailure> {
    use std::io::Read;
    let path = path.as_ref();
    let file = fs::File::open(path).doing(|| format!("read {}", path.display()))?;
    let mut text = String::new();
    file.take(FILE_BYTES_MAX)
        .read_to_string(&mut text)
        .doing(|| format!("read {}", path.display()))?;
    Ok(text)
}

/// Numbers of the cores that are online.
pub(crate) fn online_cores() -> Result<Vec<u32>, ProbeFailure> {
    let text = read("/sys/devices/system/cpu/online")?;
    parse_cores(text.trim()).ok_or_else(|| {
        ProbeFailure::Invalid(format!("/sys/devices/system/cpu/online says '{}'", text.trim()))
    })
}

/// A machine has at most so many cores.
const CORES_MAX: u32 = 1 << 14;

/// A list such as `0-3,8`.
fn parse_cores(text: &str) -> Option<Vec<u32>> {
    let mut cores = Vec::new();
    for part in text.split(',') {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        let (from, to): (u32, u32) = (from.parse().ok()?, to.parse().ok()?);
        if to >= CORES_MAX {
            return None;
        }
        cores.extend(from..=to);
    }
    Some(cores)
}

/// How cores of this machine wait that have nothing to do, which the kernel was told when it started.
pub(crate) fn core_regime() -> CoreRegime {
    regime_of(&read("/proc/cmdline").unwrap_or_default())
}

fn regime_of(kernel_command_line: &str) -> CoreRegime {
    let mut options = kernel_command_line.split_whitespace();
    if options.any(|option| option == "idle=poll") {
        CoreRegime::NoHalt
    } else {
        CoreRegime::Idle
    }
}

/// What makes this machine the same as that of a profile.
#[must_use]
pub fn identity() -> MachineIdentity {
    let line = |path: &str, key: &str| {
        let text = read(path).ok()?;
        let value = text.lines().find_map(|line| line.strip_prefix(key))?;
        Some(
            value
                .trim_start_matches([' ', '\t', ':', '='])
                .trim_matches('"')
                .to_string(),
        )
    };
    let seed = read("/etc/machine-id").or_else(|_| read("/proc/sys/kernel/random/boot_id"));
    let memory = line("/proc/meminfo", "MemTotal").unwrap_or_default();
    let memory_kib: u64 = memory
        .split_whitespace()
        .next()
        .and_then(|number| number.parse().ok())
        .unwrap_or_default();
    let flags = line("/proc/cpuinfo", "flags").unwrap_or_default();
    MachineIdentity {
        id: short_hash(seed.unwrap_or_default().trim().as_bytes()),
        processor: line("/proc/cpuinfo", "model name").unwrap_or_default(),
        processors: online_cores().map_or(0, |cores| cores.len() as u32),
        architecture: std::env::consts::ARCH.into(),
        kernel: read("/proc/sys/kernel/osrelease")
            .unwrap_or_default()
            .trim()
            .into(),
        system: line("/etc/os-release", "PRETTY_NAME").unwrap_or_default(),
        memory_bytes: memory_kib << 10,
        hypervisor: if flags.split(' ').any(|flag| flag == "hypervisor") {
            read("/sys/class/dmi/id/sys_vendor").map_or("unknown".into(), |vendor| vendor.trim().into())
        } else {
            String::new()
        },
    }
}

fn short_hash(bytes: &[u8]) -> String {
    let hash = Sha256::digest(bytes);
    hash.iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

/// A hash of a file, with the name of the algorithm before it.
pub(crate) fn file_hash(path: &Path) -> Result<String, ProbeFailure> {
    let mut file = fs::File::open(path).doing(|| format!("read {}", path.display()))?;
    let mut hash = Sha256::new();
    let mut part = vec![0; 1 << 20];
    loop {
        let length =
            std::io::Read::read(&mut file, &mut part).doing(|| format!("read {}", path.display()))?;
        if length == 0 {
            break;
        }
        hash.update(&part[..length]);
    }
    let hex: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(format!("sha256:{hex}"))
}

/// What the kernel writes behind the path of a file that is not there any more.
pub(crate) const DELETED: &str = " (deleted)";

/// The first PID namespace, which has all processes (`PROC_PID_INIT_INO` of the kernel).
const FIRST_PID_NAMESPACE: &str = "pid:[4026531836]";

/// Whether this tool numbers processes as the kernel's tracepoints do.
///
/// # Errors
/// If it runs in a PID namespace of its own, as in a container.
pub(crate) fn process_numbers() -> Result<String, ProbeFailure> {
    let own = fs::read_link("/proc/self/ns/pid").doing(|| "read /proc/self/ns/pid".into())?;
    if own == Path::new(FIRST_PID_NAMESPACE) {
        return Ok("those of the host".into());
    }
    Err(ProbeFailure::Refused {
        what: "process numbers".into(),
        why: format!(
            "this tool runs in a PID namespace of its own ({}), and the kernel's tracepoints have the host's numbers",
            own.display()
        ),
        remedy: NUMBERS_REMEDY.into(),
    })
}

pub(crate) const NUMBERS_REMEDY: &str =
    "run it among the host's processes (docker run --pid=host, hostPID: true in Kubernetes)";

/// A process and all that it started, which a proxy with a master and workers needs.
#[must_use]
pub fn family(process: u32) -> Vec<u32> {
    let mut family = vec![process];
    let parents: Vec<(u32, u32)> = processes();
    let mut at = 0;
    while let Some(&parent) = family.get(at) {
        for (child, of) in &parents {
            if *of == parent && !family.contains(child) {
                family.push(*child);
            }
        }
        at += 1;
    }
    family
}

/// All processes, each with its parent.
fn processes() -> Vec<(u32, u32)> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    let ids = entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    ids.filter_map(|id| {
        let text = read(format!("/proc/{id}/stat")).ok()?;
        Some((id, parent_in_stat(&text)?))
    })
    .collect()
}

/// The parent in `/proc/PID/stat`: the second field after the name, which is in parentheses and may hold anything.
fn parent_in_stat(text: &str) -> Option<u32> {
    let after_name = text.rsplit_once(')')?.1;
    after_name.split_whitespace().nth(1)?.parse().ok()
}

/// The threads that these processes have now.
pub(crate) fn threads(processes: &[u32]) -> Vec<u32> {
    let folders = processes
        .iter()
        .filter_map(|process| fs::read_dir(format!("/proc/{process}/task")).ok());
    folders
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect()
}

/// Nanoseconds that all threads of these processes have run.
pub(crate) fn run_time_ns(processes: &[u32]) -> Result<u64, ProbeFailure> {
    Ok(thread_run_times_ns(processes)?.into_values().sum())
}

/// Nanoseconds that each thread of these processes has run.
pub(crate) fn thread_run_times_ns(processes: &[u32]) -> Result<BTreeMap<u32, u64>, ProbeFailure> {
    let mut times = BTreeMap::new();
    for process in processes {
        let folder = format!("/proc/{process}/task");
        let tasks =
            fs::read_dir(&folder).map_err(|_| ProbeFailure::Proxy(format!("process {process} has ended")))?;
        for task in tasks.flatten() {
            // A thread may end between the two looks.
            let text = read(task.path().join("schedstat")).unwrap_or_default();
            let thread: Option<u32> = task.file_name().to_str().and_then(|name| name.parse().ok());
            let ran = text
                .split_whitespace()
                .next()
                .and_then(|number| number.parse().ok());
            times.extend(thread.zip(ran));
        }
    }
    Ok(times)
}

/// How busy the cores have been since they were started.
pub(crate) struct BusyTime {
    all_ticks: u64,
    began: std::time::Instant,
    own_ns: BTreeMap<u32, u64>,
}

impl BusyTime {
    pub(crate) fn now() -> Result<BusyTime, ProbeFailure> {
        let all_ticks = busy_ticks(&read("/proc/stat")?)
            .ok_or_else(|| ProbeFailure::Invalid("/proc/stat has no line of all cores".into()))?;
        let ids = processes().into_iter().map(|(id, _)| id);
        Ok(BusyTime {
            all_ticks,
            began: std::time::Instant::now(),
            own_ns: ids
                .filter_map(|id| Some((id, run_time_ns(&[id]).ok()?)))
                .collect(),
        })
    }

    /// Cores' worth of work since then that was not these processes'.
    pub(crate) fn foreign_cores(&self, own: &[u32]) -> Result<f64, ProbeFailure> {
        let now = busy_ticks(&read("/proc/stat")?).unwrap_or(self.all_ticks);
        let seconds = self.began.elapsed().as_secs_f64();
        let all = (now - self.all_ticks.min(now)) as f64 / TICKS_PER_SECOND / seconds;
        let own_ns: u64 = own
            .iter()
            .filter_map(|id| {
                let before = self.own_ns.get(id).copied().unwrap_or_default();
                Some(run_time_ns(&[*id]).ok()?.saturating_sub(before))
            })
            .sum();
        Ok((all - own_ns as f64 / 1e9 / seconds).max(0.0))
    }
}

/// Nanoseconds of all cores since the start that the scheduler counts to no thread: of interrupts, and of the hypervisor.
pub(crate) fn unscheduled_ns() -> Result<u64, ProbeFailure> {
    let ticks = unscheduled_ticks(&read("/proc/stat")?).unwrap_or_default();
    Ok((ticks as f64 / TICKS_PER_SECOND * 1e9) as u64)
}

/// The first line's `irq`, `softirq` and `steal` (proc_stat(5)).
fn unscheduled_ticks(text: &str) -> Option<u64> {
    let fields = text.lines().next()?.strip_prefix("cpu ")?.split_whitespace();
    fields
        .skip(5)
        .take(3)
        .map(|field| field.parse::<u64>().ok())
        .sum()
}

/// `USER_HZ`, which is the same on every machine that Linux still runs on but Alpha.
const TICKS_PER_SECOND: f64 = 100.0;

/// Time of all cores that was not idle: the first line's fields but the fourth and fifth (proc_stat(5)); guests' time is in
/// the first two already.
fn busy_ticks(text: &str) -> Option<u64> {
    let fields = text.lines().next()?.strip_prefix("cpu ")?.split_whitespace();
    let busy = fields
        .take(8)
        .enumerate()
        .filter(|(at, _)| ![3, 4, 7].contains(at));
    busy.map(|(_, field)| field.parse::<u64>().ok()).sum()
}

/// Whether a process exists and has not ended.
#[must_use]
pub fn is_alive(process: u32) -> bool {
    let state = read(format!("/proc/{process}/stat"))
        .ok()
        .and_then(|text| text.rsplit_once(')')?.1.trim_start().chars().next());
    state.is_some_and(|state| state != 'Z' && state != 'X')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_are_read_as_ranges() {
        assert_eq!(parse_cores("0-2,7"), Some(vec![0, 1, 2, 7]));
        assert_eq!(parse_cores("0-4000000000"), None);
        assert_eq!(parse_cores(""), None);
    }

    #[test]
    fn cores_do_not_halt_where_the_kernel_was_told_to_poll() {
        let command_line = "BOOT_IMAGE=/vmlinuz root=/dev/sda1 idle=poll quiet\n";
        assert_eq!(regime_of(command_line), CoreRegime::NoHalt);
        assert_eq!(regime_of(&command_line.replace("poll", "halt")), CoreRegime::Idle);
        assert_eq!(regime_of(""), CoreRegime::Idle);
    }

    #[test]
    fn a_name_with_parentheses_does_not_hide_the_parent() {
        assert_eq!(parent_in_stat("12 (a) b) c) S 7 12 12 0"), Some(7));
        assert_eq!(parent_in_stat("12 (a"), None);
    }

    #[test]
    fn idle_and_stolen_time_is_not_busy() {
        assert_eq!(busy_ticks("cpu  1 2 4 800 1600 8 16 3200 6400 0\n"), Some(31));
        assert_eq!(
            unscheduled_ticks("cpu  1 2 4 800 1600 8 16 3200 6400 0\n"),
            Some(3224)
        );
        assert_eq!(busy_ticks("cpu0 1 2"), None);
        assert_eq!(busy_ticks("cpu  x"), None);
    }

    #[test]
    fn this_process_runs_and_has_a_family() {
        let me = std::process::id();
        assert!(is_alive(me) && family(me).contains(&me));
        assert!(run_time_ns(&[me]).unwrap() > 0);
        assert!(run_time_ns(&[u32::MAX >> 1]).is_err());
    }
}
