//! What this machine allows: each method of the ladder is tried, not guessed from versions.

use aya::Ebpf;
use aya::programs::{FEntry, KProbe};
use provost_insight::profile::{Component, LadderRung, MachineIdentity};
use serde::Serialize;

use crate::failure::ProbeFailure;
use crate::ladder;
use crate::machine;
use crate::proxies::ProxyKind;
use crate::trace;

/// Everything that was found out.
#[derive(Clone, Debug, Serialize)]
pub struct DoctorReport {
    pub machine: MachineIdentity,
    pub checks: Vec<DoctorCheck>,
    /// The methods from the best to the last resort, each with what it is used for.
    pub ladder: Vec<LadderRung>,
    /// How each component will be measured here.
    pub methods: Vec<ChosenMethod>,
}

/// One thing that was tried.
#[derive(Clone, Debug, Serialize)]
pub struct DoctorCheck {
    pub name: String,
    /// Whether it works here.
    pub granted: bool,
    /// What was seen, or why it does not work.
    pub detail: String,
    /// What it is for.
    pub purpose: &'static str,
    /// What an operator can do about it, where it does not work.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

/// The method that a component is measured by.
#[derive(Clone, Debug, Serialize)]
pub struct ChosenMethod {
    pub component: String,
    /// The best method that works here, as profiles name it; `None` if none does.
    pub method: Option<&'static str>,
    /// What that means for the figures.
    pub note: &'static str,
}

/// The methods that decide what a profile has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GrantedMethods {
    /// BPF programs at BTF tracepoints.
    pub tracepoints: bool,
    /// Stacks, sampled by the software clock.
    pub stacks: bool,
}

/// Bits of a set of capabilities (`linux/capability.h`).
const CAPABILITIES: [(&str, u32); 5] = [
    ("CAP_SYS_PTRACE", 19),
    ("CAP_SYS_ADMIN", 21),
    ("CAP_SYS_RESOURCE", 24),
    ("CAP_PERFMON", 38),
    ("CAP_BPF", 39),
];

/// Tries everything. It takes well below a second and leaves nothing behind.
#[must_use]
pub fn examine() -> DoctorReport {
    let mut checks = vec![capabilities(), type_information(), process_numbers()];
    checks.extend(trace::try_tracepoints().into_iter().map(tracepoint_check));
    let stacks = trace::try_sampling();
    checks.push(check(
        STACKS,
        stacks,
        "time of the codec and of each filter in user space",
        BPF_REMEDY,
    ));
    checks.extend(other_programs());
    checks.push(hardware_counters());
    checks.push(tracefs());
    checks.push(cores());
    checks.extend(ProxyKind::BUILT_IN.map(proxy));
    checks.extend(ProxyKind::BUILT_IN.into_iter().filter_map(preload));
    let is_granted = |name: &str| checks.iter().any(|check| check.name == name && check.granted);
    let granted = GrantedMethods {
        tracepoints: is_granted(NUMBERS)
            && checks
                .iter()
                .filter(|check| check.name.starts_with("tp_btf/"))
                .all(|check| check.granted),
        stacks: is_granted(NUMBERS) && is_granted(STACKS),
    };
    DoctorReport {
        machine: machine::identity(),
        checks,
        ladder: ladder::rungs(granted),
        methods: methods(granted),
    }
}

/// The methods that work here.
#[must_use]
pub fn granted() -> GrantedMethods {
    if machine::process_numbers().is_err() {
        return GrantedMethods::default();
    }
    GrantedMethods {
        tracepoints: trace::try_tracepoints()
            .iter()
            .all(|(_, outcome)| outcome.is_ok()),
        stacks: trace::try_sampling().is_ok(),
    }
}

/// Names of checks that decide what is granted.
const NUMBERS: &str = "process numbers";
const STACKS: &str = "stack samples";

const BPF_REMEDY: &str = "run as root, or grant CAP_BPF and CAP_PERFMON (in a container: --cap-add, and a seccomp profile that permits bpf and perf_event_open)";

fn check(
    name: impl Into<String>,
    outcome: Result<String, ProbeFailure>,
    purpose: &'static str,
    remedy: &str,
) -> DoctorCheck {
    let granted = outcome.is_ok();
    DoctorCheck {
        name: name.into(),
        granted,
        detail: outcome.unwrap_or_else(|failure| match failure {
            ProbeFailure::Refused { what, why, .. } => format!("{what}: {why}"),
            other => other.to_string(),
        }),
        purpose,
        remedy: (!granted).then(|| remedy.to_string()),
    }
}

fn tracepoint_check((name, outcome): (&'static str, Result<(), ProbeFailure>)) -> DoctorCheck {
    let purpose = match name {
        "sys_enter" | "sys_exit" => "system calls: read, write, readiness",
        "sched_switch" | "sched_waking" => "waking up and scheduling",
        "sk_data_ready" => "where the critical path enters and leaves the proxy",
        _ => "the way through the loopback device",
    };
    let remedy = match &outcome {
        Err(ProbeFailure::Refused { remedy, .. }) if remedy == trace::OLDER_KERNEL => trace::OLDER_KERNEL,
        _ => BPF_REMEDY,
    };
    check(
        format!("tp_btf/{name}"),
        outcome.map(|()| "loaded and attached".into()),
        purpose,
        remedy,
    )
}

fn process_numbers() -> DoctorCheck {
    check(
        NUMBERS,
        machine::process_numbers(),
        "telling the proxy's events from those of others",
        machine::NUMBERS_REMEDY,
    )
}

fn capabilities() -> DoctorCheck {
    let held = machine::read("/proc/self/status").and_then(|status| {
        held_capabilities(&status)
            .ok_or_else(|| ProbeFailure::Invalid("/proc/self/status has no CapEff".into()))
    });
    let outcome = held.and_then(|held| {
        let names = |is_held: bool| {
            let chosen = CAPABILITIES
                .iter()
                .filter(|(_, bit)| (held >> bit & 1 == 1) == is_held);
            chosen.map(|(name, _)| *name).collect::<Vec<_>>().join(" ")
        };
        let missing = names(false);
        if missing.is_empty() {
            Ok(names(true))
        } else {
            Err(ProbeFailure::Unavailable(format!("missing: {missing}")))
        }
    });
    check(
        "capabilities",
        outcome,
        "BPF, perf events, other users' processes",
        BPF_REMEDY,
    )
}

/// The set of effective capabilities in `/proc/PID/status`.
fn held_capabilities(status: &str) -> Option<u64> {
    let hex = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(hex.trim(), 16).ok()
}

fn type_information() -> DoctorCheck {
    let outcome = trace::kernel_types().map(|_| "/sys/kernel/btf/vmlinux".to_string());
    check(
        "kernel type information",
        outcome,
        "finding the kernel's fields at run time",
        "boot a kernel that was built with CONFIG_DEBUG_INFO_BTF",
    )
}

/// Kinds of programs that are not needed where tracepoints work, for the operator's information.
fn other_programs() -> Vec<DoctorCheck> {
    const PURPOSE: &str = "not needed; where a hit is rare, an alternative";
    const REMEDY: &str = "nothing needs to be done: tracepoints are used";
    let uprobe = trace::uprobe_cost_ns()
        .map(|cost_ns| format!("attached to getpid in libc; a hit costs {cost_ns:.0} ns"));
    let kprobe = trace::load_object().and_then(|mut programs| try_kprobe(&mut programs));
    let fentry = trace::load_object().and_then(|mut programs| try_fentry(&mut programs));
    vec![
        check("uprobes", uprobe, PURPOSE, REMEDY),
        check("kprobes", kprobe, PURPOSE, REMEDY),
        check("fentry", fentry, PURPOSE, REMEDY),
    ]
}

fn try_kprobe(programs: &mut Ebpf) -> Result<String, ProbeFailure> {
    let program: &mut KProbe = trace::program(programs, "nothing_in_the_kernel")?;
    program.load().map_err(|error| trace::unavailable(&error))?;
    program
        .attach("tcp_sendmsg", 0)
        .map_err(|error| trace::unavailable(&error))?;
    Ok("attached to tcp_sendmsg".into())
}

fn try_fentry(programs: &mut Ebpf) -> Result<String, ProbeFailure> {
    let program: &mut FEntry = trace::program(programs, "nothing_at_an_entry")?;
    program
        .load("tcp_sendmsg", trace::kernel_types()?)
        .map_err(|error| trace::unavailable(&error))?;
    program.attach().map_err(|error| trace::unavailable(&error))?;
    Ok("attached to tcp_sendmsg".into())
}

fn hardware_counters() -> DoctorCheck {
    let outcome = trace::load_object()
        .and_then(|mut programs| trace::attach_sampler(&mut programs, trace::SampleTimer::hardware()))
        .map(|_| "the processor's cycles can be counted".into());
    check(
        "hardware counters",
        outcome,
        "not needed; the software clock samples as well",
        "on a virtual machine the host must pass them on",
    )
}

fn tracefs() -> DoctorCheck {
    let places = ["/sys/kernel/tracing/events", "/sys/kernel/debug/tracing/events"];
    let found = places
        .into_iter()
        .find(|place| std::path::Path::new(place).is_dir());
    check(
        "tracefs",
        found
            .map(str::to_string)
            .ok_or_else(|| ProbeFailure::Unavailable("not mounted".into())),
        "not needed; lists tracepoints",
        "mount -t tracefs tracefs /sys/kernel/tracing",
    )
}

fn cores() -> DoctorCheck {
    let outcome = machine::online_cores().and_then(|cores| match cores.len() {
        0 | 1 => Err(ProbeFailure::Unavailable(
            "one core: client, proxy and server take turns on it".into(),
        )),
        count => Ok(format!("{count} cores")),
    });
    check(
        "cores",
        outcome,
        "client, proxy and server run at the same time",
        "profile on a machine with at least 2",
    )
}

fn proxy(kind: ProxyKind) -> DoctorCheck {
    check(
        format!("proxy {}", kind.name()),
        kind.program().map(|path| path.display().to_string()),
        "profile --proxy NAME",
        kind.remedy(),
    )
}

/// What `LD_PRELOAD` would show of a proxy that is installed.
fn preload(kind: ProxyKind) -> Option<DoctorCheck> {
    let program = kind.program().ok()?;
    Some(check(
        format!("LD_PRELOAD {}", kind.name()),
        ladder::seen_by_preload(&program),
        "not needed; tracepoints see the same",
        "nothing needs to be done: tracepoints are used",
    ))
}

fn methods(granted: GrantedMethods) -> Vec<ChosenMethod> {
    let traced = granted.tracepoints.then_some("tp_btf");
    let sampled = (granted.tracepoints && granted.stacks).then_some("tp_btf+stack_samples");
    let logged = (!granted.tracepoints).then_some("access_log");
    let kernel = if granted.tracepoints {
        "each message's way, on and off the critical path, event by event"
    } else {
        "only the sum of all components, from runs with and without the proxy"
    };
    let fixed = Component::FIXED.map(|component| match component {
        Component::Parse | Component::OtherUser => ChosenMethod {
            component: component.to_string(),
            method: sampled
                .or(traced)
                .or(logged.filter(|_| component == Component::OtherUser)),
            note: if sampled.is_some() {
                "time in user space from tracepoints, divided as sampled stacks say"
            } else if !granted.tracepoints && component == Component::OtherUser {
                "of Envoy over HTTP, with its filters; of others only the sum of all components"
            } else if !granted.tracepoints {
                kernel
            } else {
                "parse is not told apart from other time in user space"
            },
        },
        other => ChosenMethod {
            component: other.to_string(),
            method: traced,
            note: kernel,
        },
    });
    let total = [
        ("filter:NAME", "runs with and without the filter, in turn"),
        ("total latency", "runs with and without the proxy, in turn"),
        ("total processor time", "/proc/PID/task/*/schedstat"),
    ];
    let total = total.map(|(component, note)| ChosenMethod {
        component: component.into(),
        method: Some("differential"),
        note,
    });
    fixed.into_iter().chain(total).collect()
}

#[cfg(test)]
mod tests {
    use aya::BtfError;
    use aya::programs::ProgramError;

    use super::*;

    #[test]
    fn capabilities_are_read_as_hex() {
        assert_eq!(
            held_capabilities("Name:\tx\nCapEff:\t000001ffffffffff\n"),
            Some(0x1ff_ffff_ffff)
        );
        assert_eq!(held_capabilities("CapEff:\tx"), None);
        assert_eq!(held_capabilities(""), None);
    }

    #[test]
    fn whatever_is_refused_has_a_reason_and_a_remedy_and_nothing_else_has() {
        let report = examine();
        for check in &report.checks {
            assert_eq!(check.granted, check.remedy.is_none(), "{check:?}");
            assert!(!check.detail.is_empty(), "{check:?}");
        }
        assert!(report.methods.iter().any(|chosen| chosen.component == "parse"));
    }

    #[test]
    fn a_tracepoint_that_a_kernel_lacks_is_not_for_want_of_privileges() {
        let refused = |error: ProgramError| Err(trace::refused("BPF program", &error));
        let missing = BtfError::UnknownBtfTypeName {
            type_name: "btf_trace_sk_data_ready".into(),
        };
        let check = tracepoint_check(("sk_data_ready", refused(missing.into())));
        assert!(check.detail.contains("btf_trace_sk_data_ready"), "{check:?}");
        assert!(check.remedy.as_ref().unwrap().contains("Linux 6.3"), "{check:?}");
        let check = tracepoint_check(("sk_data_ready", refused(ProgramError::NotLoaded)));
        assert!(check.remedy.as_ref().unwrap().contains("CAP_BPF"), "{check:?}");
    }

    #[test]
    fn without_tracepoints_only_differences_and_envoys_log_are_left() {
        let methods = methods(GrantedMethods::default());
        let known: Vec<_> = methods.iter().filter_map(|chosen| chosen.method).collect();
        assert_eq!(
            known,
            ["access_log", "differential", "differential", "differential"]
        );
        let logged = methods
            .iter()
            .find(|chosen| chosen.method == Some("access_log"))
            .unwrap();
        assert_eq!(logged.component, "other_user");
    }
}
