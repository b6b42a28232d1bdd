use super::*;
use crate::acg::AnnotatedGraph;
use crate::acg::tests::{SMALL, small};
use crate::change::{RankingFigure, usual_changes, what_if};
use crate::model::{MachineMatch, ProfileModel};
use crate::predict::{MeshSetup, PredictOptions, ProxyPlacement};
use crate::synthetic::{SyntheticProxy, synthetic_profile};

/// As `validate` prints it, shortened.
const VALIDATION: &str = r#"{"latency_covered_share": 1.0, "applications": [{"name": "chain, http1", "proxies": 5, "base_us": 300.0,
"measured_added_us": 104.0, "predicted_added_us": {"value": 100.0, "low": 90.0, "high": 110.0},
"measured_cpu_us": 200.0, "predicted_cpu_us": {"value": 220.0, "low": 210.0, "high": 230.0}, "cpu_error": 0.1}]}"#;

fn report(graph: &CallGraph) -> String {
    let profile = synthetic_profile(&SyntheticProxy::example(), 5, 1);
    let model = ProfileModel::new(&profile, MachineMatch::Same, 20, 1).unwrap();
    let setup = MeshSetup::new("as it is", ProxyPlacement::Sidecars);
    let changes = usual_changes(graph, &model, &setup);
    let options = PredictOptions {
        samples: 100,
        ..PredictOptions::default()
    };
    let changes = what_if(graph, &model, &setup, &changes, RankingFigure::P99, &options).unwrap();
    let validation = ValidationResult::parse(VALIDATION).unwrap();
    let contents = ReportContents {
        title: "A <title>",
        graph,
        prediction: &changes.reference,
        setups: None,
        changes: Some(&changes),
        validation: Some(&validation),
    };
    render(&contents).unwrap()
}

#[test]
fn every_chart_has_a_name_a_description_and_a_table() {
    let page = report(&small());
    assert_eq!(
        page.matches("<svg role=\"img\"").count(),
        page.matches("<desc id=").count()
    );
    assert_eq!(
        page.matches("<figure>").count(),
        page.matches("<details><summary>").count()
    );
    for part in [
        "filter:lua",
        "mode=tcp",
        "parse/2",
        "Critical path of page",
        "synthetic",
        "predicted 100.0, measured 104.0",
    ] {
        assert!(page.contains(part), "{part} is missing");
    }
}

#[test]
fn nothing_comes_from_elsewhere_and_names_cannot_become_markup() {
    let text = SMALL.replace("name: page", "name: \"<script>alert(1)</script>\"");
    let page = report(&CallGraph::new(AnnotatedGraph::parse(&text).unwrap()).unwrap());
    assert!(!page.contains("<script") && page.contains("&lt;script&gt;"));
    for outside in ["http://", "https://", "url(", "@import", "src="] {
        assert!(!page.contains(outside), "{outside}");
    }
}

#[test]
fn a_validation_says_how_good_it_is() {
    let validation = ValidationResult::parse(VALIDATION).unwrap();
    assert_eq!((validation.points.len(), validation.coverage()), (2, 0.5));
    assert!((validation.median_error_share() - (0.0385 + 0.1) / 2.0).abs() < 0.001);
    assert!(
        ValidationResult::parse("{}")
            .unwrap_err()
            .contains("applications")
    );
    assert!(ValidationResult::parse(&VALIDATION.replace("104.0", "1e300")).is_err());
}
