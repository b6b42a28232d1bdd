//! What a profile says of the highest rates: whether they are the proxy's saturation, or something else's.

use std::collections::BTreeMap;

use provost_insight::profile::{Protocol, RateBound, TotalObservation};

/// A proxy's usual way of passing on messages of one size.
type LoadKind = (Protocol, u64);

/// For each protocol and size at which several calls were in flight, what the highest rate is; and what others' work has cost.
pub(super) fn notes(totals: &[TotalObservation]) -> Vec<String> {
    let usual = || {
        totals
            .iter()
            .filter(|total| total.filters.is_empty() && total.load.variant.is_empty())
    };
    let kind = |total: &TotalObservation| -> LoadKind { (total.load.protocol, total.load.size_bytes as u64) };
    let mut highest: BTreeMap<LoadKind, &TotalObservation> = BTreeMap::new();
    for total in usual().filter(|total| total.load.in_flight > 1) {
        let most = highest.entry(kind(total)).or_insert(total);
        // A rate at which the proxy was busy all the time says more than a higher one at which it was not.
        if rank(total) > rank(most) {
            *most = total;
        }
    }
    let mut notes: Vec<String> = highest.values().filter_map(|total| highest_rate(total)).collect();
    let with_pace =
        || usual().filter(|total| total.pacing.is_some_and(|pacing| pacing.asked_per_s.is_some()));
    let held = with_pace()
        .filter(|total| total.bound() == Some(RateBound::OthersWork))
        .count();
    if held > 0 {
        notes.push(format!(
            "{held} of {} measurements at a pace did not keep it, because others' work held the cores: their latencies have waits for cores in them",
            with_pace().count()
        ));
    }
    notes
}

fn rank(total: &TotalObservation) -> (bool, f64) {
    (total.bound() == Some(RateBound::Proxy), total.load.rate_per_s)
}

fn highest_rate(total: &TotalObservation) -> Option<String> {
    let (pacing, bound) = (total.pacing?, total.bound()?);
    let load = &total.load;
    let verdict = if bound == RateBound::Proxy {
        "the proxy's saturation".to_string()
    } else {
        format!("not the proxy's saturation: it was bounded by {bound}")
    };
    Some(format!(
        "{}, {} B: the highest rate, {:.0} calls/s with {} in flight, is {verdict} (the proxy's busiest thread ran {:.0} % of the time; others used {:.2} of {} cores)",
        load.protocol,
        load.size_bytes,
        load.rate_per_s,
        load.in_flight,
        pacing.proxy_busy_share * 100.0,
        pacing.other_cores,
        pacing.cores
    ))
}

#[cfg(test)]
mod tests {
    use provost_insight::profile::{LoadCell, LoadPacing};

    use super::*;

    fn total(in_flight: u32, rate_per_s: f64, pacing: LoadPacing) -> TotalObservation {
        TotalObservation {
            filters: vec![],
            load: LoadCell {
                protocol: Protocol::Http1,
                variant: String::new(),
                size_bytes: 100.0,
                rate_per_s,
                in_flight,
            },
            repetition: 0,
            messages: 100,
            added_latency_us: 50.0,
            added_cpu_us: 50.0,
            added_quantiles_us: None,
            pacing: Some(pacing),
        }
    }

    #[test]
    fn a_rate_that_others_held_down_is_not_called_the_proxys() {
        let cores = LoadPacing {
            cores: 2,
            ..LoadPacing::default()
        };
        let held = LoadPacing {
            core_wait_share: 0.8,
            other_cores: 1.1,
            ..cores
        };
        let busy = LoadPacing {
            proxy_busy_share: 0.96,
            ..cores
        };
        let late = LoadPacing {
            asked_per_s: Some(500.0),
            late_share: 0.4,
            ..held
        };
        let notes = notes(&[
            total(1, 300.0, late),
            total(4, 9000.0, held),
            total(16, 8000.0, held),
        ]);
        assert_eq!(notes.len(), 2, "{notes:?}");
        assert!(
            notes[0].contains("9000 calls/s with 4 in flight, is not the proxy's saturation"),
            "{notes:?}"
        );
        assert!(
            notes[0].contains("others' work, which held the cores"),
            "{notes:?}"
        );
        assert!(
            notes[1].starts_with("1 of 1 measurements at a pace did not keep it"),
            "{notes:?}"
        );
        // One at which the proxy was busy all the time is its saturation, whatever came besides.
        let notes = super::notes(&[total(4, 9000.0, held), total(16, 8500.0, busy)]);
        assert!(
            notes[0].contains("8500 calls/s with 16 in flight, is the proxy's saturation"),
            "{notes:?}"
        );
        assert_eq!(super::notes(&[total(1, 8500.0, busy)]), [""; 0]);
    }
}
