//! The ladder of methods: which of them this machine grants, what each is used for, and why some are used for nothing.

use std::path::Path;

use object::read::elf::ElfFile64;
use object::read::{ReadCache, ReadRef};
use object::{Endianness, Object};
use provost_insight::profile::LadderRung;

use crate::doctor::GrantedMethods;
use crate::failure::{Doing, ProbeFailure};
use crate::trace;

/// Calls of the C library by which a proxy's messages come and go.
const MESSAGE_CALLS: [&str; 11] = [
    "epoll_wait",
    "epoll_pwait",
    "read",
    "readv",
    "recv",
    "recvmsg",
    "send",
    "sendmsg",
    "splice",
    "write",
    "writev",
];
/// Names that a program imports, at most, of those that are looked at.
const IMPORTS_MAX: usize = 100_000;

/// The methods from the best to the last resort.
#[must_use]
pub fn rungs(granted: GrantedMethods) -> Vec<LadderRung> {
    let rung = |method: &str, granted, purpose: &str| LadderRung {
        method: method.to_owned(),
        granted,
        purpose: purpose.to_owned(),
        hit_cost_ns: None,
    };
    let uprobe_ns = trace::uprobe_cost_ns();
    vec![
        rung(
            "tp_btf",
            granted.tracepoints,
            "ipc, wakeup, readiness, read, write, and time in user space",
        ),
        rung(
            "stack_samples",
            granted.tracepoints && granted.stacks,
            "divides time in user space: parse, other_user",
        ),
        LadderRung {
            hit_cost_ns: uprobe_ns.as_ref().ok().copied(),
            ..rung(
                "uprobe",
                uprobe_ns.is_ok(),
                "nothing: a codec's functions are hit for every message, and a hit costs more than what they take",
            )
        },
        rung(
            "preload",
            true,
            "nothing: it sees the calls that a proxy makes into libraries, which tracepoints see as well; codecs and filters are within the proxies' own programs, and the proxy has to be started anew",
        ),
        rung(
            "access_log",
            true,
            "other_user of Envoy over HTTP, where tracepoints are not granted; nginx and HAProxy write whole milliseconds",
        ),
        rung(
            "differential",
            true,
            "filters, variants, and the totals that sums are held against",
        ),
    ]
}

/// What a library that is put before a program's others (`LD_PRELOAD`) would see of its messages.
///
/// # Errors
/// If there is nothing before which to put it.
pub(crate) fn seen_by_preload(program: &Path) -> Result<String, ProbeFailure> {
    let file = std::fs::File::open(program).doing(|| format!("open {}", program.display()))?;
    calls_into_libraries(&ReadCache::new(file))
}

fn calls_into_libraries<'data, R: ReadRef<'data>>(data: R) -> Result<String, ProbeFailure> {
    let unreadable =
        |error: object::Error| ProbeFailure::Unavailable(format!("not a 64-bit ELF file: {error}"));
    let file = ElfFile64::<Endianness, R>::parse(data).map_err(unreadable)?;
    let imports = file.imports().map_err(unreadable)?;
    let called = |name: &&str| {
        imports
            .iter()
            .take(IMPORTS_MAX)
            .any(|import| import.name() == name.as_bytes())
    };
    let seen: Vec<&str> = MESSAGE_CALLS
        .iter()
        .filter(|name| called(name))
        .copied()
        .collect();
    if seen.is_empty() {
        let why = "it calls none of a library's functions that read or write: it is linked statically, or makes system calls itself";
        return Err(ProbeFailure::Unavailable(why.into()));
    }
    Ok(format!(
        "would see {}; not what is within the program",
        seen.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stacks::example::example_program;

    #[test]
    fn rungs_stand_in_the_order_in_which_they_are_taken() {
        let rungs = rungs(GrantedMethods::default());
        let methods: Vec<&str> = rungs.iter().map(|rung| &*rung.method).collect();
        let order = [
            "tp_btf",
            "stack_samples",
            "uprobe",
            "preload",
            "access_log",
            "differential",
        ];
        assert_eq!(methods, order);
        assert!(!rungs[0].granted && !rungs[1].granted && rungs[5].granted);
        assert!(rungs.iter().all(|rung| !rung.purpose.is_empty()));
        // What is granted was measured.
        let uprobe = &rungs[2];
        assert_eq!(uprobe.granted, uprobe.hit_cost_ns.is_some());
        match uprobe.hit_cost_ns {
            Some(cost_ns) => {
                eprintln!("a hit of a uprobe costs {cost_ns:.0} ns");
                assert!((10.0..1e6).contains(&cost_ns), "{cost_ns}");
            }
            None => provost_skip::forbidden("the kernel grants no uprobes: nobody measured what a hit costs"),
        }
    }

    #[test]
    fn a_program_that_calls_no_library_shows_nothing_to_one_before_it() {
        let own = seen_by_preload(&std::env::current_exe().unwrap()).unwrap();
        assert!(own.contains("read") && own.contains("write"), "{own}");
        let refused = calls_into_libraries(&example_program()[..])
            .unwrap_err()
            .to_string();
        assert!(refused.contains("linked statically"), "{refused}");
        let refused = calls_into_libraries(&b"text"[..]).unwrap_err().to_string();
        assert!(refused.contains("not a 64-bit ELF file"), "{refused}");
    }
}
