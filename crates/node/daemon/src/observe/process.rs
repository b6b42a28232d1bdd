//! The process as the system sees it, under the names that Prometheus's own libraries give.

use std::time::{SystemTime, UNIX_EPOCH};

/// Clock ticks of a second in `/proc`: what Linux has told user space since 2.6 on all architectures.
const TICKS_PER_SECOND: f64 = 100.0;
/// Fields of `/proc/self/stat` behind the process's name, counted from 0.
const USER_TICKS: usize = 11;
const SYSTEM_TICKS: usize = 12;
const THREADS: usize = 17;
const START_TICKS: usize = 19;

/// Numbers of the process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProcessNumbers {
    pub(crate) cpu_seconds: f64,
    pub(crate) resident_bytes: f64,
    pub(crate) threads: f64,
    pub(crate) open_descriptors: f64,
    /// Since 1970.
    pub(crate) start_seconds: f64,
}

/// Reads them. `None` where there is no `/proc`.
pub(crate) fn read() -> Option<ProcessNumbers> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The name is in parentheses and may have any characters.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_ascii_whitespace().collect();
    let field = |at: usize| fields.get(at)?.parse::<f64>().ok();
    let uptime = std::fs::read_to_string("/proc/uptime").ok()?;
    let uptime: f64 = uptime.split_ascii_whitespace().next()?.parse().ok()?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?.as_secs_f64();
    Some(ProcessNumbers {
        cpu_seconds: (field(USER_TICKS)? + field(SYSTEM_TICKS)?) / TICKS_PER_SECOND,
        resident_bytes: resident_bytes()?,
        threads: field(THREADS)?,
        open_descriptors: std::fs::read_dir("/proc/self/fd").ok()?.count() as f64,
        start_seconds: now - uptime + field(START_TICKS)? / TICKS_PER_SECOND,
    })
}

fn resident_bytes() -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: f64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024.0)
}

#[cfg(test)]
mod tests {
    #[test]
    fn this_process_has_plausible_numbers() {
        let numbers = super::read().unwrap();
        assert!(numbers.threads >= 1.0 && numbers.open_descriptors >= 3.0);
        assert!(numbers.resident_bytes > 100_000.0 && numbers.cpu_seconds >= 0.0);
        let since = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap();
        let age = since.as_secs_f64() - numbers.start_seconds;
        assert!((-2.0..86_400.0).contains(&age), "{age}");
    }
}
