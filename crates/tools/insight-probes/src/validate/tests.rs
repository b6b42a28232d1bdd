//! A small application behind a real proxy: what is said of right and of wrong predictions.

use std::time::Duration;

use provost_insight::validation::ValidationResult;

use super::*;
use crate::profile::ProfiledProxy;
use crate::proxies::ProxyKind;

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
        assert!(one.latency_error > 1.0 && one.cpu_error > 1.0, "{one:?}");
    }
    assert_eq!(wrong.latency_covered_share, 0.0);
    assert!(wrong.latency_error_median.is_some_and(|error| error > 1.0));
    assert!(wrong.cpu_error_median.is_some_and(|error| error > 1.0));
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
