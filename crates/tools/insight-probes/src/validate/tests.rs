//! A small application behind a real proxy: what is said of right and of wrong predictions.

use std::time::Duration;

use provost_insight::validation::ValidationResult;

use super::*;
use crate::profile::ProfiledProxy;
use crate::proxies::ProxyKind;
use crate::stop::StopSwitch;

/// So many times too much is predicted of the falsified profile. No noise reaches as far.
const FALSE_BY: f64 = 100.0;

#[test]
fn a_wrong_prediction_is_told_from_what_was_measured() {
    let proxies = [ProxyKind::Nginx, ProxyKind::Haproxy, ProxyKind::Envoy];
    let Some(kind) = proxies.into_iter().find(|kind| kind.program().is_ok()) else {
        return provost_skip::missing("a proxy", ProxyKind::Nginx.remedy());
    };
    let order = ValidationOrder {
        profile: ProfileOrder {
            sizes_bytes: vec![100],
            rates_per_s: vec![],
            in_flight: vec![],
            repetitions: 2,
            slice: Duration::from_millis(30),
            ..ProfileOrder::of(ProfiledProxy::BuiltIn(kind), vec![Protocol::Http1])
        },
        shapes: vec![ApplicationShape::Mixed],
        sizes_bytes: vec![100],
        draws: 10,
    };
    let (pairs, mut profile, partial) = measure(&order, &mut |_| {}).unwrap();
    assert_eq!(partial, None);
    if profile.observations.is_empty() {
        return provost_skip::forbidden("the kernel grants no BPF tracepoints: no prediction is made");
    }
    let report = compare(&pairs, &profile, order.draws).unwrap();
    let names: Vec<&str> = report.applications.iter().map(|one| &*one.name).collect();
    assert_eq!(names, ["mixed http1 100 B"]);
    for one in &report.applications {
        assert_eq!(one.proxies, 5);
        assert!(one.base_us > 0.0 && one.measured_cpu_us > 0.0 && one.predicted_cpu_us.value > 0.0);
        assert!(
            one.components_us
                .iter()
                .any(|(name, us)| name == "read" && *us > 0.0)
        );
        let error = one.predicted_added_us.value / one.measured_added_us - 1.0;
        assert!((one.latency_error - error).abs() < 1e-9, "{one:?}");
        assert_eq!(
            one.is_covered,
            one.predicted_added_us.contains(one.measured_added_us)
        );
    }
    let text = serde_json::to_string(&report).unwrap();
    let read = ValidationResult::parse(&text).unwrap();
    assert_eq!(read.points.len(), 2);
    let measured = report.applications[0].measured_added_us;
    assert!((read.points[0].measured - measured).abs() < 1e-6 * measured.abs());

    falsify(&mut profile);
    let wrong = compare(&pairs, &profile, order.draws).unwrap();
    for (one, before) in wrong.applications.iter().zip(&report.applications) {
        assert_eq!(one.measured_added_us, before.measured_added_us);
        assert!(!one.is_covered, "{} is said to be right", one.name);
        // On a machine that is busy otherwise what is measured may be less than nothing.
        assert!(one.latency_error.abs() > 1.0 && one.cpu_error > 1.0, "{one:?}");
    }
    assert_eq!(wrong.latency_covered_share, 0.0);
    assert!(wrong.latency_error_median.is_some_and(|error| error > 1.0));
    assert!(wrong.cpu_error_median.is_some_and(|error| error > 1.0));
}

/// Rounds that nobody waits for.
const ENDLESS: u32 = 10_000;

#[test]
fn what_is_stopped_after_some_rounds_is_compared_and_said_to_be_partial() {
    if ProxyKind::Haproxy.program().is_err() {
        return provost_skip::missing("haproxy", ProxyKind::Haproxy.remedy());
    }
    let (switch, stop) = StopSwitch::new();
    let order = ValidationOrder {
        profile: ProfileOrder {
            sizes_bytes: vec![100],
            rates_per_s: vec![],
            in_flight: vec![],
            repetitions: ENDLESS,
            slice: Duration::from_millis(30),
            stop,
            ..ProfileOrder::of(ProfiledProxy::BuiltIn(ProxyKind::Haproxy), vec![Protocol::Http1])
        },
        shapes: vec![ApplicationShape::Chain],
        sizes_bytes: vec![100],
        draws: 10,
    };
    let mut rounds = 0;
    let (report, profile) = validate(&order, &mut |_| {
        rounds += 1;
        if rounds == 2 {
            switch.stop("the test");
        }
    })
    .unwrap();
    let expected = "ended after 2 of 10000 measurements: stopped by the test";
    assert_eq!(profile.partial.as_deref(), Some(expected));
    assert_eq!(profile.whole_rounds, Some(2));
    if profile.observations.is_empty() {
        assert_eq!(report.unpredicted.len(), 1);
        return provost_skip::forbidden("the kernel grants no BPF tracepoints: no prediction is made");
    }
    assert_eq!(report.partial.as_deref(), Some(expected));
    let [chain] = &report.applications[..] else {
        panic!("{report:?}")
    };
    assert!(chain.measured_cpu_us > 0.0 && chain.predicted_cpu_us.value > 0.0);
    // The parts of a passage's processor time have the scheduler's sum, where enough was traced.
    let parts: f64 = chain.passage.iter().map(|part| part.measured_cpu_us).sum();
    let whole = chain.measured_cpu_us / chain.proxies as f64;
    assert!(
        chain.passage.is_empty() || (parts / whole - 1.0).abs() < 0.2,
        "{parts} of {whole}"
    );
    // The JSON that reports read has it as well.
    let text = serde_json::to_string(&report).unwrap();
    assert!(text.contains("stopped by the test") && ValidationResult::parse(&text).is_ok());
}

/// Makes all components cost much more than they do, by the same in each repetition, so that the intervals are narrow.
fn falsify(profile: &mut Profile) {
    let usual = profile.observations.clone();
    for seen in &mut profile.observations {
        let same = usual.iter().filter(|other| other.component == seen.component);
        let of = |figure: fn(&provost_insight::profile::Observation) -> f64| {
            median(same.clone().map(figure).collect())
                .unwrap_or_default()
                .abs()
                * FALSE_BY
        };
        seen.latency_us = of(|other| other.latency_us);
        seen.cpu_us = of(|other| other.cpu_us);
        seen.cpu_off_path_us = of(|other| other.cpu_off_path_us);
        seen.latency_inclusive_us = None;
        seen.latency_quantiles_us = None;
    }
}
