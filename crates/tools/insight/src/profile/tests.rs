use super::*;

fn observation() -> Observation {
    Observation {
        component: Component::Filter("lua".into()),
        passage: Passage::RoundTrip,
        load: LoadCell {
            protocol: Protocol::Http1,
            variant: String::new(),
            size_bytes: 100.0,
            rate_per_s: 1000.0,
            in_flight: 1,
        },
        repetition: 0,
        messages: 5000,
        latency_us: 12.5,
        cpu_us: 14.0,
        cpu_off_path_us: 1.5,
        latency_inclusive_us: None,
        latency_quantiles_us: None,
    }
}

fn profile() -> Profile {
    let mut profile = Profile::new(
        ProfileOrigin::Synthetic,
        MachineIdentity::default(),
        ProxyIdentity::default(),
    );
    profile.observations.push(observation());
    profile
}

#[test]
fn a_profile_reads_back_as_it_was_written() {
    let profile = profile();
    assert_eq!(Profile::parse(&profile.to_json()), Ok(profile));
}

#[test]
fn components_have_names_that_read_back() {
    for component in Component::FIXED
        .into_iter()
        .chain([Component::Filter("a:b".into())])
    {
        assert_eq!(component.to_string().parse(), Ok(component));
    }
    assert!("filter:".parse::<Component>().is_err());
}

#[test]
fn what_is_wrong_is_said_with_its_place() {
    let error = |text: &str| Profile::parse(text).unwrap_err().to_string();
    assert!(error("{}").contains("no profile"));
    assert!(error("{\"format\": \"provost-insight-profile\", \"version\": 0}").contains("version 0"));
    assert!(error("[").starts_with("line 1, column 1"));
    let text = profile().to_json();
    let wrong = text.replace("\"latency_us\": 12.5", "\"latency_us\": 1e300");
    assert!(
        error(&wrong).starts_with("observations[0].latency_us"),
        "{}",
        error(&wrong)
    );
    let wrong = text.replace("filter:lua", "lua");
    assert!(error(&wrong).contains("is no component"), "{}", error(&wrong));
    let wrong = text.replace("\"in_flight\"", "\"inflight\"");
    assert!(
        error(&wrong).contains("unknown field `inflight`"),
        "{}",
        error(&wrong)
    );
}

#[test]
fn residuals_and_ranges_of_functions_ascend() {
    let mut profile = profile();
    let mut larger = observation();
    larger.load.size_bytes = 1000.0;
    profile.observations.push(larger);
    profile.fit = Some(crate::fit::fit(&profile).unwrap());
    assert_eq!(profile.check(), Ok(()));
    let refused = |change: fn(&mut PiecewiseFunction)| {
        let mut changed = profile.clone();
        let fit = changed.fit.as_mut().unwrap();
        change(&mut fit.functions[0].latency_us);
        changed.check().unwrap_err().to_string()
    };
    for (change, place) in [
        (
            (|function| function.residual_quantiles[1].share = 0.9) as fn(&mut PiecewiseFunction),
            "residual_quantiles: shares and residuals do not ascend",
        ),
        (
            |function| function.residual_quantiles[0].us = 1e6,
            "residual_quantiles: shares and residuals do not ascend",
        ),
        (
            |function| function.residual_quantiles[4].share = 1.5,
            "residual_quantiles[4].share: 1.5 is not between 0 and 1",
        ),
        (
            |function| function.observed.size_bytes_min = 2000.0,
            "observed.size_bytes_min: 2000 is not between 0 and 1000",
        ),
        (
            |function| function.observed.rate_per_s_max = 1e308,
            "observed.rate_per_s_max",
        ),
    ] {
        let error = refused(change);
        assert!(error.starts_with("fit.functions[0].latency_us."), "{error}");
        assert!(error.contains(place), "{error}");
    }
}
