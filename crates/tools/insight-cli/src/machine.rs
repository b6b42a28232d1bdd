//! What this machine is, as far as a profile depends on it.

use provost_insight::profile::MachineIdentity;

use crate::input::read_text;

/// Files of the kernel's are shorter.
const KERNEL_FILE_BYTES_MAX: usize = 4 << 20;

/// This machine. What cannot be read is empty, and then differs from every profile.
pub(crate) fn this_machine() -> MachineIdentity {
    let read = |path: &str| read_text(path.as_ref(), KERNEL_FILE_BYTES_MAX).unwrap_or_default();
    let cpuinfo = read("/proc/cpuinfo");
    let is_virtual = field(&cpuinfo, "flags")
        .split(' ')
        .any(|flag| flag == "hypervisor");
    MachineIdentity {
        id: "this machine".to_owned(),
        processor: field(&cpuinfo, "model name"),
        processors: online(read("/sys/devices/system/cpu/online").trim()),
        architecture: std::env::consts::ARCH.to_owned(),
        kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
        hypervisor: match (is_virtual, read("/sys/class/dmi/id/sys_vendor").trim()) {
            (false, _) => String::new(),
            (true, "") => "unknown".to_owned(),
            (true, vendor) => vendor.to_owned(),
        },
        ..MachineIdentity::default()
    }
}

/// The first line of this name in `/proc/cpuinfo`.
fn field(text: &str, name: &str) -> String {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(name)?.trim_start().strip_prefix(':'));
    line.unwrap_or_default().trim().to_owned()
}

/// How many numbers a list such as `0-3,8` has.
fn online(list: &str) -> u32 {
    list.split(',')
        .filter_map(|part| {
            let (from, to) = part.split_once('-').unwrap_or((part, part));
            let (from, to): (u32, u32) = (from.parse().ok()?, to.parse().ok()?);
            Some(to.checked_sub(from)?.saturating_add(1))
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_texts_are_read() {
        assert_eq!((online("0-3,8"), online("0"), online("")), (5, 1, 0));
        assert_eq!(field("processor\t: 0\nmodel name\t: A b\n", "model name"), "A b");
        assert_eq!(this_machine().architecture, std::env::consts::ARCH);
    }
}
