use super::*;
use crate::synthetic::{SyntheticProxy, synthetic_profile};

fn load() -> PassageLoad {
    PassageLoad {
        protocol: Protocol::Http1,
        filters: Vec::new(),
        request_bytes: Amount::Fixed(100.0),
        response_bytes: Amount::Fixed(4000.0),
        rate_per_s: 1000.0,
    }
}

fn sum(costs: &[(Component, Vec<ComponentCost>)], draw: usize) -> f64 {
    costs.iter().map(|(_, costs)| costs[draw].latency_us).sum()
}

#[test]
fn the_fit_is_near_the_truth_and_draws_scatter_around_it() {
    let proxy = SyntheticProxy::example();
    let profile = synthetic_profile(&proxy, 6, 1);
    let model = ProfileModel::new(&profile, MachineMatch::Same, 200, 1).unwrap();
    let costs = model.passage_costs(&load(), &ProxyChanges::default()).unwrap();
    let truth = proxy.round_trip_us(Protocol::Http1, 100.0, 4000.0, &[]);
    assert!(
        (sum(&costs, 0) / truth - 1.0).abs() < 0.05,
        "{} {truth}",
        sum(&costs, 0)
    );
    let mut draws: Vec<f64> = (1..=200).map(|draw| sum(&costs, draw)).collect();
    draws.sort_by(f64::total_cmp);
    assert!(
        draws[5] < truth && truth < draws[194],
        "{} {truth} {}",
        draws[5],
        draws[194]
    );
}

#[test]
fn a_variant_takes_the_place_of_the_components_that_were_measured_with_it() {
    let mut profile = synthetic_profile(&SyntheticProxy::example(), 4, 1);
    let usual = profile.observations.clone();
    let ipc = usual.into_iter().filter(|one| one.component == Component::Ipc);
    profile.observations.extend(ipc.map(|mut one| {
        one.load.variant = "unix_sockets".into();
        one.latency_us /= 2.0;
        one
    }));
    let model = ProfileModel::new(&profile, MachineMatch::Same, 0, 1).unwrap();
    let of = |variants: &[&str], component: &Component| {
        let changes = ProxyChanges {
            variants: variants.iter().map(ToString::to_string).collect(),
            ..ProxyChanges::default()
        };
        let costs = model.passage_costs(&load(), &changes).unwrap();
        let found = costs.into_iter().find(|(one, _)| one == component);
        found.unwrap().1[0].latency_us
    };
    let (usual, changed) = (of(&[], &Component::Ipc), of(&["unix_sockets"], &Component::Ipc));
    assert!((changed / usual - 0.5).abs() < 0.01, "{changed} of {usual}");
    assert_eq!(of(&["unix_sockets"], &Component::Read), of(&[], &Component::Read));
}

#[test]
fn directions_have_their_own_sizes() {
    let proxy = SyntheticProxy::example();
    let model = ProfileModel::new(&synthetic_profile(&proxy, 4, 1), MachineMatch::Same, 0, 1).unwrap();
    let cost = |request, response| {
        let load = PassageLoad {
            request_bytes: Amount::Fixed(request),
            response_bytes: Amount::Fixed(response),
            ..load()
        };
        sum(&model.passage_costs(&load, &ProxyChanges::default()).unwrap(), 0)
    };
    // Half of each, not the larger one twice.
    let (small, large, mixed) = (cost(64.0, 64.0), cost(16384.0, 16384.0), cost(64.0, 16384.0));
    assert!(
        (mixed - (small + large) / 2.0).abs() < 0.02 * mixed,
        "{small} {mixed} {large}"
    );
}

#[test]
fn filters_and_factors_change_what_they_name() {
    let proxy = SyntheticProxy::example();
    let model = ProfileModel::new(&synthetic_profile(&proxy, 4, 1), MachineMatch::Same, 0, 1).unwrap();
    let plain = sum(
        &model.passage_costs(&load(), &ProxyChanges::default()).unwrap(),
        0,
    );
    let with = PassageLoad {
        filters: vec!["lua".into()],
        ..load()
    };
    let with = sum(&model.passage_costs(&with, &ProxyChanges::default()).unwrap(), 0);
    assert!(
        (with - plain - proxy.filter_us("lua")).abs() < 2.0,
        "{with} {plain}"
    );
    let faster = ProxyChanges {
        variants: Vec::new(),
        factors: vec![ComponentFactor {
            component: Component::Parse,
            factor: 0.5,
        }],
    };
    let costs = model.passage_costs(&load(), &faster).unwrap();
    let before = model.passage_costs(&load(), &ProxyChanges::default()).unwrap();
    for ((component, after), (_, before)) in costs.iter().zip(&before) {
        let factor = if *component == Component::Parse { 0.5 } else { 1.0 };
        assert!((after[0].latency_us - factor * before[0].latency_us).abs() < 1e-9);
    }
}

#[test]
fn what_the_profile_does_not_have_is_said_with_what_it_has() {
    let profile = synthetic_profile(&SyntheticProxy::example(), 3, 1);
    let model = ProfileModel::new(&profile, MachineMatch::Same, 0, 1).unwrap();
    let error = |load: PassageLoad, changes: &ProxyChanges| {
        model.passage_costs(&load, changes).unwrap_err().to_string()
    };
    let unknown = PassageLoad {
        filters: vec!["wasm2".into()],
        ..load()
    };
    assert!(error(unknown, &ProxyChanges::default()).contains("(it has local_ratelimit, lua)"));
    let unknown = PassageLoad {
        protocol: Protocol::Provost,
        ..load()
    };
    assert!(error(unknown, &ProxyChanges::default()).contains("nothing for provost"));
    let zero_copy = ProxyChanges {
        variants: vec!["zero_copy".into()],
        factors: Vec::new(),
    };
    assert!(error(load(), &zero_copy).contains("zero_copy"));
}

#[test]
fn a_profile_of_another_machine_is_refused_or_rescaled_with_its_error() {
    let profile = synthetic_profile(&SyntheticProxy::example(), 4, 1);
    let named = |name: &str| check_machine(&profile, &ApplicationMachine::Named(name.into()));
    assert_eq!(named(&profile.machine.id), Ok(MachineMatch::Same));
    assert!(named("other").unwrap_err().to_string().contains("--rescale"));
    let rescaled = MachineMatch::Rescaled {
        factor: 2.0,
        error_share: 0.3,
    };
    let model = ProfileModel::new(&profile, rescaled, 200, 1).unwrap();
    let costs = model.passage_costs(&load(), &ProxyChanges::default()).unwrap();
    let truth = 2.0 * SyntheticProxy::example().round_trip_us(Protocol::Http1, 100.0, 4000.0, &[]);
    assert!((sum(&costs, 0) / truth - 1.0).abs() < 0.05);
    let mut draws: Vec<f64> = (1..=200).map(|draw| sum(&costs, draw) / truth).collect();
    draws.sort_by(f64::total_cmp);
    assert!(
        draws[10] < 0.8 && draws[189] > 1.2,
        "{} {}",
        draws[10],
        draws[189]
    );
    assert!(model.warnings.iter().any(|warning| warning.contains("rescaled")));
}

#[test]
fn functions_without_observations_are_drawn_from_their_covariance() {
    let mut profile = synthetic_profile(&SyntheticProxy::example(), 6, 1);
    profile.fit = Some(fit(&profile).unwrap());
    profile.observations.clear();
    let model = ProfileModel::new(&profile, MachineMatch::Same, 100, 1).unwrap();
    let costs = model.passage_costs(&load(), &ProxyChanges::default()).unwrap();
    let differing = (1..=100)
        .filter(|draw| sum(&costs, *draw) != sum(&costs, 0))
        .count();
    assert_eq!(differing, 100);
}

#[test]
fn a_fit_that_is_kept_beside_observations_is_made_anew() {
    let mut profile = synthetic_profile(&SyntheticProxy::example(), 6, 1);
    let predicted = |profile: &Profile| {
        let model = ProfileModel::new(profile, MachineMatch::Same, 10, 1).unwrap();
        let costs = model.passage_costs(&load(), &ProxyChanges::default()).unwrap();
        (0..=10).map(|draw| sum(&costs, draw)).collect::<Vec<_>>()
    };
    let anew = predicted(&profile);
    let mut kept = fit(&profile).unwrap();
    for function in &mut kept.functions {
        function.latency_us.coefficients[0] += 1000.0;
    }
    profile.fit = Some(kept);
    assert_eq!(predicted(&profile), anew);
}

#[test]
fn residuals_of_fits_that_do_not_say_it_are_the_same_everywhere() {
    let mut profile = synthetic_profile(&SyntheticProxy::example(), 6, 1);
    let mut kept = fit(&profile).unwrap();
    for function in &mut kept.functions {
        let function = &mut function.latency_us;
        function
            .covariance
            .iter_mut()
            .flatten()
            .for_each(|one| *one = 0.0);
        function
            .residual_quantiles
            .iter_mut()
            .for_each(|one| one.us = 1.0);
    }
    profile.observations.clear();
    let misfit = |profile: &Profile, bytes: f64| {
        let load = PassageLoad {
            request_bytes: Amount::Fixed(bytes),
            response_bytes: Amount::Fixed(bytes),
            ..load()
        };
        let model = ProfileModel::new(profile, MachineMatch::Same, 1, 1).unwrap();
        let costs = model.passage_costs(&load, &ProxyChanges::default()).unwrap();
        sum(&costs, 1) - sum(&costs, 0)
    };
    profile.fit = Some(kept);
    assert!(misfit(&profile, 100.0) < 0.9 * misfit(&profile, 60_000.0));
    let mut json: serde_json::Value = serde_json::from_str(&profile.to_json()).unwrap();
    json["fit"].as_object_mut().unwrap().remove("residuals").unwrap();
    let older = Profile::parse(&json.to_string()).unwrap();
    let (small, large) = (misfit(&older, 100.0), misfit(&older, 60_000.0));
    assert!((small - large).abs() < 1e-9, "{small} {large}");
}

#[test]
fn loads_beyond_the_profile_are_named() {
    let profile = synthetic_profile(&SyntheticProxy::example(), 3, 1);
    let model = ProfileModel::new(&profile, MachineMatch::Same, 0, 1).unwrap();
    assert_eq!(
        model.beyond_observed(&load(), &ProxyChanges::default()),
        Vec::<String>::new()
    );
    let large = PassageLoad {
        response_bytes: Amount::Fixed(1e6),
        rate_per_s: 1e6,
        ..load()
    };
    assert_eq!(model.beyond_observed(&large, &ProxyChanges::default()).len(), 2);
}

#[test]
fn a_profile_of_filters_alone_predicts_nothing() {
    let mut profile = synthetic_profile(&SyntheticProxy::example(), 3, 1);
    profile
        .observations
        .retain(|one| matches!(one.component, Component::Filter(_)));
    let model = ProfileModel::new(&profile, MachineMatch::Same, 0, 1).unwrap();
    for filters in [vec![], vec!["lua".to_owned()]] {
        let load = PassageLoad { filters, ..load() };
        let refused = model.passage_costs(&load, &ProxyChanges::default()).unwrap_err();
        assert!(matches!(refused, ModelError::FiltersAlone { .. }), "{refused}");
        assert!(refused.to_string().contains("doctor"), "{refused}");
    }
}

#[test]
fn sizes_are_extrapolated_where_their_largest_are_though_their_mean_is_not() {
    let model = ProfileModel::new(
        &synthetic_profile(&SyntheticProxy::example(), 3, 1),
        MachineMatch::Same,
        0,
        1,
    )
    .unwrap();
    let beyond = |p99| {
        let request_bytes = Amount::Spread(crate::acg::SpreadQuantiles {
            p10: 100.0,
            p50: 100.0,
            p90: 1000.0,
            p99,
        });
        assert!(request_bytes.mean() < 20_000.0);
        let load = PassageLoad {
            request_bytes,
            ..load()
        };
        model.beyond_observed(&load, &ProxyChanges::default())
    };
    assert_eq!(beyond(60_000.0), [""; 0]);
    assert_eq!(beyond(300_000.0), ["125583 B, profiled to 65536 B"]);
}

/// How far two series go together, from -1 to 1.
fn correlation(left: &[f64], right: &[f64]) -> f64 {
    let centred = |values: &[f64]| -> Vec<f64> {
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        values.iter().map(|value| value - mean).collect()
    };
    let (left, right) = (centred(left), centred(right));
    dot(&left, &right) / (dot(&left, &left) * dot(&right, &right)).sqrt()
}

#[test]
fn profiles_that_were_taken_apart_have_draws_of_their_own() {
    let functions_alone = |seed| {
        let mut profile = synthetic_profile(&SyntheticProxy::example(), 6, seed);
        profile.fit = Some(fit(&profile).unwrap());
        profile.observations.clear();
        profile
    };
    let draws = |profile: &Profile, machine| {
        let model = ProfileModel::new(profile, machine, 400, 1).unwrap();
        let costs = model.passage_costs(&load(), &ProxyChanges::default()).unwrap();
        (1..=400).map(|draw| sum(&costs, draw)).collect::<Vec<f64>>()
    };
    let (one, other) = (functions_alone(1), functions_alone(2));
    let same = MachineMatch::Same;
    let apart = correlation(&draws(&one, same), &draws(&other, same));
    assert!(apart.abs() < 0.2, "{apart}");
    assert_eq!(draws(&one, same), draws(&one, same));
    // A profile with observations is the same one whether it keeps its fit or not.
    let whole = synthetic_profile(&SyntheticProxy::example(), 6, 1);
    let mut fitted = whole.clone();
    fitted.fit = Some(fit(&whole).unwrap());
    assert_eq!(draws(&whole, same), draws(&fitted, same));
    // How another machine compares is one figure for both.
    let rescaled = MachineMatch::Rescaled {
        factor: 2.0,
        error_share: 0.5,
    };
    let together = correlation(&draws(&one, rescaled), &draws(&other, rescaled));
    assert!(together > 0.8, "{together}");
}
