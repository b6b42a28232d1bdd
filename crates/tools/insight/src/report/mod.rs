//! A prediction as one HTML file: charts in inline SVG, each with its figures as a table beside it for those who do not see
//! it, no script, and nothing from elsewhere.

mod charts;
mod svg;

use std::fmt::Write;

use crate::acg::CallGraph;
use crate::change::Comparison;
use crate::predict::{Interval, NamedInterval, Prediction};
use crate::validation::ValidationResult;

use charts::{ROWS_MAX, StackedRow, call_tree, scatter, stacked, tornado, waterfall};
use svg::escaped;

/// Types of requests that have charts of their own.
const REQUESTS_MAX: usize = 20;

/// What a report shows.
#[derive(Clone, Copy, Debug)]
pub struct ReportContents<'a> {
    pub title: &'a str,
    pub graph: &'a CallGraph,
    /// What the mesh costs it.
    pub prediction: &'a Prediction,
    pub setups: Option<&'a Comparison>,
    /// What changes would save.
    pub changes: Option<&'a Comparison>,
    /// What was measured, beside what was predicted.
    pub validation: Option<&'a ValidationResult>,
}

/// Why there is no report.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReportError {
    /// A validation without figures.
    #[error("the validation has no figure above 0 to show")]
    NothingMeasured,
}

/// Writes a report.
///
/// # Errors
/// If a part of it has nothing to show.
pub fn render(contents: &ReportContents) -> Result<String, ReportError> {
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{0}</title>\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\
         <style>{STYLE}</style></head><body><a class=\"skip\" href=\"#main\">Skip to the figures</a>\
         <header><h1>{0}</h1></header><main id=\"main\" tabindex=\"-1\">",
        escaped(contents.title)
    );
    remarks(&mut page, contents);
    summary(&mut page, contents.prediction);
    requests(&mut page, contents);
    processors(&mut page, contents);
    if let Some(setups) = contents.setups {
        section(&mut page, "setups", "Setups compared", &comparison_table(setups));
    }
    if let Some(changes) = contents.changes {
        let body = figure(&tornado("tornado", changes), &comparison_table(changes));
        section(&mut page, "changes", "What changes would save", &body);
    }
    if let Some(validation) = contents.validation {
        let body = figure(&scatter("scatter", validation)?, &validation_table(validation));
        section(&mut page, "validation", "Measured and predicted", &body);
    }
    page.push_str("</main></body></html>\n");
    Ok(page)
}

fn section(page: &mut String, id: &str, title: &str, body: &str) {
    let _ = write!(
        page,
        "<section aria-labelledby=\"{id}-h\"><h2 id=\"{id}-h\">{}</h2>{body}</section>",
        escaped(title)
    );
}

/// A chart, and its figures as a table that opens with a key.
fn figure(chart: &str, table: &str) -> String {
    format!(
        "<figure><div class=\"scroll\" tabindex=\"0\" role=\"group\" aria-label=\"Chart\">{chart}</div>\
         <details><summary>The figures as a table</summary>{table}</details></figure>"
    )
}

fn table(caption: &str, headings: &[&str], rows: &[Vec<String>]) -> String {
    let mut out = format!(
        "<div class=\"scroll\" tabindex=\"0\" role=\"group\" aria-label=\"{0}\"><table><caption>{0}</caption><thead><tr>",
        escaped(caption)
    );
    for heading in headings {
        let _ = write!(out, "<th scope=\"col\">{}</th>", escaped(heading));
    }
    out.push_str("</tr></thead><tbody>");
    for row in rows {
        out.push_str("<tr>");
        for (at, cell) in row.iter().enumerate() {
            let _ = match at {
                0 => write!(out, "<th scope=\"row\">{}</th>", escaped(cell)),
                _ => write!(out, "<td>{}</td>", escaped(cell)),
            };
        }
        out.push_str("</tr>");
    }
    out.push_str("</tbody></table></div>");
    out
}

/// A time in the unit that suits it.
fn time_text(us: f64) -> String {
    match us.abs() {
        size if size < 0.05 => "0".to_owned(),
        size if size < 10.0 => format!("{us:.1} µs"),
        size if size < 1e3 => format!("{us:.0} µs"),
        size if size < 1e6 => format!("{:.2} ms", us / 1e3),
        _ => format!("{:.2} s", us / 1e6),
    }
}

fn cores_text(cores: f64) -> String {
    // A sum of nothing is -0.
    format!("{:.3} cores", cores + 0.0)
}

fn with_interval(figure: &Interval, text: fn(f64) -> String) -> String {
    format!(
        "{} ({} to {})",
        text(figure.value),
        text(figure.low),
        text(figure.high)
    )
}

fn remarks(page: &mut String, contents: &ReportContents) {
    let mut lines: Vec<String> = contents.prediction.warnings.clone();
    lines.extend(
        contents
            .graph
            .source
            .assumptions
            .iter()
            .map(|one| format!("Assumed: {one}")),
    );
    for call in contents.prediction.extrapolated.iter().take(ROWS_MAX) {
        lines.push(format!(
            "Extrapolated: {}, call {} at the proxy of {}: {}",
            call.request,
            call.call,
            call.proxy_of,
            call.beyond.join(", ")
        ));
    }
    if lines.is_empty() {
        return;
    }
    let items: String = lines
        .iter()
        .map(|line| format!("<li>{}</li>", escaped(line)))
        .collect();
    section(
        page,
        "remarks",
        "To be known before reading",
        &format!("<ul class=\"remarks\">{items}</ul>"),
    );
}

fn summary(page: &mut String, prediction: &Prediction) {
    let rows: Vec<Vec<String>> = prediction
        .requests
        .iter()
        .map(|request| {
            let added = &request.added_us;
            let figures =
                [&added.mean, &added.p50, &added.p90, &added.p99].map(|one| with_interval(one, time_text));
            let mut row = vec![
                request.name.clone(),
                format!("{:.1}", request.rate_per_s),
                time_text(request.base_us.p50.value),
            ];
            row.extend(figures);
            row
        })
        .collect();
    let headings = [
        "Request",
        "Per second",
        "Without mesh, p50",
        "Added, mean",
        "p50",
        "p90",
        "p99",
    ];
    let intro = format!(
        "<p>Setup: {} ({}). Added latency is that of a request with the mesh less that of the same request without; in \
         brackets, 90 % intervals. Processor time of all proxies: <strong>{}</strong>.</p>",
        escaped(&prediction.setup),
        escaped(&prediction.proxy),
        escaped(&with_interval(&prediction.cpu.cores, cores_text))
    );
    let body = intro + &table("Added latency by type of request", &headings, &rows);
    section(page, "summary", "What the mesh costs", &body);
}

fn requests(page: &mut String, contents: &ReportContents) {
    let prediction = contents.prediction;
    let rows: Vec<StackedRow> = prediction
        .requests
        .iter()
        .map(|request| StackedRow {
            label: request.name.clone(),
            parts: &request.components_us,
        })
        .collect();
    let chart = stacked(
        "latency",
        "Mean added latency on the critical path by component",
        &rows,
        time_text,
    );
    let body = figure(
        &chart,
        &parts_table("Added latency by component", rows.iter(), time_text),
    );
    section(page, "components", "Added latency by component", &body);
    let mut body = String::new();
    for (at, (graph, request)) in contents
        .graph
        .requests
        .iter()
        .zip(&prediction.requests)
        .take(REQUESTS_MAX)
        .enumerate()
    {
        let _ = write!(body, "<h3>{}</h3>", escaped(&request.name));
        let rows: Vec<Vec<String>> = request
            .path
            .iter()
            .map(|step| {
                vec![
                    step.call.clone(),
                    step.service.clone(),
                    format!("{:.0} %", step.critical_share * 100.0),
                    time_text(step.app_us),
                    time_text(step.network_us),
                    time_text(step.added_us),
                ]
            })
            .collect();
        let headings = [
            "Call",
            "Service",
            "On the critical path",
            "Application",
            "Network",
            "Proxies",
        ];
        let figures = table("Mean times on the critical path, for a request", &headings, &rows);
        body += &figure(&call_tree(&format!("tree{at}"), contents.graph, graph), &figures);
        body += &figure(&waterfall(&format!("path{at}"), graph, request), &figures);
    }
    if prediction.requests.len() > REQUESTS_MAX {
        let _ = write!(
            body,
            "<p>{} more types of requests stand in the tables alone.</p>",
            prediction.requests.len() - REQUESTS_MAX
        );
    }
    section(page, "paths", "Critical paths", &body);
}

fn processors(page: &mut String, contents: &ReportContents) {
    let prediction = contents.prediction;
    let mut rows = vec![StackedRow {
        label: prediction.setup.clone(),
        parts: &prediction.cpu.by_component,
    }];
    for one in contents.setups.iter().flat_map(|setups| &setups.setups) {
        rows.push(StackedRow {
            label: one.prediction.setup.clone(),
            parts: &one.prediction.cpu.by_component,
        });
    }
    let chart = stacked(
        "cpu",
        "Processor time of all proxies by component",
        &rows,
        cores_text,
    );
    let services: Vec<Vec<String>> = prediction
        .cpu
        .by_service
        .iter()
        .map(|one| vec![one.name.clone(), with_interval(&one.figure, cores_text)])
        .collect();
    let body = figure(
        &chart,
        &parts_table("Processor time by component", rows.iter(), cores_text),
    ) + &table(
        "Processor time by the service at whose proxy it is spent",
        &["Service", "Cores"],
        &services,
    );
    section(page, "processors", "Processor time", &body);
}

fn parts_table<'a>(
    caption: &str,
    rows: impl Iterator<Item = &'a StackedRow<'a>>,
    text: fn(f64) -> String,
) -> String {
    let cells = |row: &StackedRow, part: &NamedInterval| {
        vec![
            row.label.clone(),
            part.name.clone(),
            with_interval(&part.figure, text),
        ]
    };
    let rows: Vec<Vec<String>> = rows
        .flat_map(|row| row.parts.iter().map(|part| cells(row, part)).collect::<Vec<_>>())
        .collect();
    table(
        caption,
        &["Of", "Component", "Figure, with its 90 % interval"],
        &rows,
    )
}

fn comparison_table(comparison: &Comparison) -> String {
    let row = |prediction: &Prediction, saved: [String; 2]| {
        let [saved_p99, saved_cores] = saved;
        vec![
            prediction.setup.clone(),
            with_interval(&prediction.added_us.p50, time_text),
            with_interval(&prediction.added_us.p99, time_text),
            with_interval(&prediction.cpu.cores, cores_text),
            saved_p99,
            saved_cores,
        ]
    };
    let mut rows = vec![row(&comparison.reference, [String::new(), String::new()])];
    rows.extend(comparison.setups.iter().map(|one| {
        let saved = [
            with_interval(&one.saved_p99_us, time_text),
            with_interval(&one.saved_cores, cores_text),
        ];
        row(&one.prediction, saved)
    }));
    let headings = [
        "Setup",
        "Added p50",
        "Added p99",
        "Processor time",
        "Saves at p99",
        "Saves processor time",
    ];
    table(
        "Average request, weighted by rate, with 90 % intervals",
        &headings,
        &rows,
    )
}

fn validation_table(validation: &ValidationResult) -> String {
    let rows: Vec<Vec<String>> = validation
        .points
        .iter()
        .take(ROWS_MAX * 10)
        .map(|point| {
            vec![
                point.application.clone(),
                point.figure.clone(),
                format!(
                    "{:.1} ({:.1} to {:.1})",
                    point.predicted.value, point.predicted.low, point.predicted.high
                ),
                format!("{:.1}", point.measured),
                format!("{:+.1} %", point.error_share() * 100.0),
            ]
        })
        .collect();
    table(
        "Predicted beside measured",
        &["Application", "Figure", "Predicted", "Measured", "Error"],
        &rows,
    )
}

/// Colours have a contrast of at least 3 to 1 with the page in both schemes; what they say stands in text as well.
const STYLE: &str = "\
:root{color-scheme:light dark;--page:#fff;--ink:#1b1b1f;--faint:#6b6b76;--rule:#d5d5dc;--focus:#0b57d0}\
@media(prefers-color-scheme:dark){:root{--page:#17171b;--ink:#ececf1;--faint:#a5a5b0;--rule:#3a3a44;--focus:#8ab4f8}}\
body{background:var(--page);color:var(--ink);font:16px/1.5 system-ui,sans-serif;max-width:62rem;margin:0 auto;padding:1rem}\
h1{font-size:1.6rem}h2{font-size:1.25rem;border-bottom:1px solid var(--rule);padding-bottom:.2rem;margin-top:2.2rem}\
.skip{position:absolute;left:-99rem}.skip:focus{left:1rem;top:1rem;background:var(--page);padding:.5rem}\
:focus-visible{outline:3px solid var(--focus);outline-offset:2px}figure{margin:1rem 0}.scroll{overflow-x:auto}\
summary{cursor:pointer;color:var(--faint)}svg{max-width:none;height:auto}svg text{font:13px system-ui,sans-serif;fill:var(--ink)}\
table{border-collapse:collapse;font-size:.875rem;margin:.6rem 0}caption{text-align:left;color:var(--faint)}\
th,td{padding:.25rem .7rem;border-bottom:1px solid var(--rule);text-align:right;font-variant-numeric:tabular-nums}\
th[scope=row],thead th:first-child{text-align:left;font-weight:500}.remarks{border-left:4px solid #b06000;padding-left:2rem}\
.c0{fill:#3b6fd4}.c1{fill:#8a5fc7}.c2{fill:#5d8a8a}.c3{fill:#2e8b57}.c4{fill:#c8553d}.c5{fill:#8d7b4a}.c6{fill:#b8860b}\
.c7{fill:#c2589b}.c8{fill:#3f93a8}.c9{fill:#7a8b2a}.app{fill:#7c8794}.net{fill:#3f93a8}.added{fill:#c8553d}\
.saves{fill:#2e8b57}.costs{fill:#c8553d}.node{fill:var(--page);stroke:var(--faint)}.node.critical{stroke:#c8553d;stroke-width:3}\
.edge{stroke:var(--faint)}.edge.critical{stroke:#c8553d;stroke-width:3}.grid{stroke:var(--rule)}.axis{stroke:var(--ink)}\
.whisker{stroke:var(--ink);stroke-width:2}.diagonal{stroke:var(--faint);stroke-dasharray:5 4}.point{fill:#3b6fd4}\
@media print{details{display:none}}";

#[cfg(test)]
mod tests;
