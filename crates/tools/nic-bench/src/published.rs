//! What others have published, and what the datagram transport was measured at here, beside the NIC. Machines, networks and loads
//! differ: these stand beside each other to show the order of magnitude, and no target is held against them.

use std::path::Path;

use serde::Deserialize;

use crate::figures::{FigureBasis, NicFigures};

/// What this group is called.
pub(crate) const GROUP: &str = "published";

/// A published figure: system, what, value, unit, source.
type PublishedFigure = (&'static str, &'static str, f64, &'static str, &'static str);

#[rustfmt::skip]
const FIGURES: [PublishedFigure; 14] = [
    ("IX", "rate of a core", 1.5, "M/s", "64-byte requests handled; eRPC (NSDI '19), section 1"),
    ("eRPC, ConnectX-4", "rate of a core", 4.96, "M/s", "32-byte requests made, and as many handled, b=3; eRPC, table 3"),
    ("eRPC, ConnectX-5", "p50", 2.3, "us", "32-byte calls, one switch; eRPC, table 2"),
    ("eRPC, ConnectX-4", "p50", 3.7, "us", "32-byte calls, one switch; eRPC, table 2"),
    ("FaSST", "rate of 8 threads", 68.3, "M/s", "84 M/s is 23 % more; Dagger (ASPLOS '21), section 5"),
    ("Dagger, coherent b4", "rate of a core", 12.4, "M/s", "64-byte RPCs; a point of the calibration"),
    ("Dagger", "rate of 8 threads", 84.0, "M/s", "on 4 cores; Dagger, section 5"),
    ("Dagger", "p50, at least", 1.0, "us", "1 to 2 us; Dagger, section 5"),
    ("Dagger", "p50, at most", 2.0, "us", "1 to 2 us; Dagger, section 5"),
    ("memcached over Dagger", "p50, at least", 3.2, "us", "3.2 to 8 us; Dagger, section 5"),
    ("memcached over Dagger", "p50, at most", 8.0, "us", "3.2 to 8 us; Dagger, section 5"),
    ("memcached over Dagger", "tail, at least", 5.8, "us", "5.8 to 18 us; Dagger, section 5"),
    ("memcached over Dagger", "tail, at most", 18.0, "us", "5.8 to 18 us; Dagger, section 5"),
    ("MICA over DPDK", "latency to memcached over Dagger", 2.3, "times", "2.3 times lower; Dagger, section 5"),
];

/// Adds what is published.
pub(crate) fn add(figures: &mut NicFigures) {
    for (system, what, value, unit, source) in FIGURES {
        figures.add((system, what), value, unit, FigureBasis::Published, source);
    }
}

#[derive(Deserialize)]
struct DatagramFile {
    cells: Vec<DatagramCell>,
}

#[derive(Deserialize)]
struct DatagramCell {
    setup: String,
    what: String,
    median: DatagramMedian,
}

#[derive(Deserialize)]
struct DatagramMedian {
    p50_us: Option<f64>,
    rps: Option<f64>,
}

/// Adds figures of the datagram transport that were measured here, from the file of its bench.
pub(crate) fn add_datagram(figures: &mut NicFigures, path: &Path) -> Result<(), String> {
    let explain = |error: &dyn std::fmt::Display| {
        format!(
            "{}: {error}; it must be what `cargo xtask bench datagram --json FILE` writes",
            path.display()
        )
    };
    let text = std::fs::read_to_string(path).map_err(|error| explain(&error))?;
    add_datagram_cells(figures, &text).map_err(|error| explain(&error))
}

fn add_datagram_cells(figures: &mut NicFigures, text: &str) -> Result<(), serde_json::Error> {
    let file: DatagramFile = serde_json::from_str(text)?;
    for cell in file
        .cells
        .iter()
        .filter(|cell| cell.setup.starts_with("provost "))
    {
        let setup = format!("datagram, {}", cell.setup.trim_start_matches("provost "));
        let note = "32-byte calls between two processes of this machine";
        match (cell.what.as_str(), &cell.median) {
            ("lat", DatagramMedian { p50_us: Some(us), .. }) => {
                figures.add((&setup, "p50"), *us, "us", FigureBasis::Measured, note);
            }
            (what, DatagramMedian { rps: Some(rps), .. }) if what.starts_with("rate b=") => {
                let what = format!("rate of a core, {}", what.trim_start_matches("rate "));
                figures.add((&setup, &what), rps / 1e6, "M/s", FigureBasis::Measured, note);
            }
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_and_rates_of_the_datagram_transport_are_taken_over() {
        let mut figures = NicFigures::default();
        let text = r#"{"cells": [
            {"setup": "provost shm", "what": "lat", "median": {"p50_us": 0.5}},
            {"setup": "provost shm", "what": "rate b=3", "median": {"p50_us": 9.0, "rps": 5e6}},
            {"setup": "bare shm", "what": "lat", "median": {"p50_us": 0.2}}]}"#;
        add_datagram_cells(&mut figures, text).unwrap();
        let of = |what| figures.get("datagram, shm", what).map(|(value, _)| value);
        assert_eq!(of("p50"), Some(0.5));
        assert_eq!(of("rate of a core, b=3"), Some(5.0));
        assert_eq!(figures.cells.len(), 2);
    }

    #[test]
    fn another_file_is_refused_with_its_name_and_what_it_must_be() {
        let path = Path::new("/nonexistent/d.json");
        let error = add_datagram(&mut NicFigures::default(), path).unwrap_err();
        assert!(
            error.contains("/nonexistent/d.json") && error.contains("bench datagram"),
            "{error}"
        );
        assert!(add_datagram_cells(&mut NicFigures::default(), "[]").is_err());
    }
}
