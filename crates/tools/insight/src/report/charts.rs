//! The report's charts.

use super::svg::{Anchor, Axis, Drawing, shortened};
use super::{ReportError, time_text};
use crate::acg::{CallGraph, RequestGraph};
use crate::change::Comparison;
use crate::predict::{NamedInterval, RequestPrediction};
use crate::validation::ValidationResult;

const WIDTH: f64 = 900.0;
const LABEL_WIDTH: f64 = 230.0;
const ROW: f64 = 26.0;
const BAR: f64 = 18.0;
/// Rows of a chart; what is beyond stands in the table alone.
pub(super) const ROWS_MAX: usize = 200;
/// Components have a colour each, filters share the rest.
const COLOURS: [&str; 7] = [
    "ipc",
    "wakeup",
    "readiness",
    "read",
    "parse",
    "other_user",
    "write",
];

/// The class that gives a component its colour.
pub(super) fn component_class(name: &str) -> String {
    match COLOURS.iter().position(|known| *known == name) {
        Some(at) => format!("c{at}"),
        None => {
            let sum: usize = name.bytes().map(usize::from).sum();
            format!("c{}", COLOURS.len() + sum % 3)
        }
    }
}

/// A bar with parts.
pub(super) struct StackedRow<'a> {
    pub(super) label: String,
    pub(super) parts: &'a [NamedInterval],
}

/// Bars by component, with a legend.
pub(super) fn stacked(id: &str, title: &str, rows: &[StackedRow], text: fn(f64) -> String) -> String {
    let whole = |row: &StackedRow| {
        row.parts
            .iter()
            .map(|part| part.figure.value.max(0.0))
            .sum::<f64>()
    };
    let most = rows.iter().map(whole).fold(0.0, f64::max);
    let mut names: Vec<&str> = rows
        .iter()
        .flat_map(|row| row.parts.iter().map(|part| part.name.as_str()))
        .collect();
    names.sort_unstable();
    names.dedup();
    let legend_rows = names.len().div_ceil(5) as f64;
    let height = ROW * (rows.len().min(ROWS_MAX) as f64 + legend_rows + 2.0);
    let mut drawing = Drawing::new(WIDTH, height);
    let axis = Axis::new((0.0, most), (LABEL_WIDTH, WIDTH - 90.0));
    for (at, name) in names.iter().enumerate() {
        let place = (10.0 + (at % 5) as f64 * 175.0, ROW * (at / 5) as f64 + 4.0);
        drawing.bar(place, (14.0, 14.0), &component_class(name), name);
        drawing.text(
            (place.0 + 20.0, place.1 + 12.0),
            Anchor::Start,
            &shortened(name, 20),
        );
    }
    let top = ROW * legend_rows + 10.0;
    for (at, row) in rows.iter().take(ROWS_MAX).enumerate() {
        let y = top + ROW * at as f64;
        drawing.text(
            (LABEL_WIDTH - 8.0, y + 14.0),
            Anchor::End,
            &shortened(&row.label, 32),
        );
        let mut x = LABEL_WIDTH;
        for part in row.parts.iter().filter(|part| part.figure.value > 0.0) {
            let width = axis.length(part.figure.value);
            let tooltip = format!("{}: {}", part.name, text(part.figure.value));
            drawing.bar((x, y), (width, BAR), &component_class(&part.name), &tooltip);
            x += width;
        }
        drawing.text((x + 6.0, y + 14.0), Anchor::Start, &text(whole(row)));
    }
    ticks(&mut drawing, &axis, top, height - ROW, text);
    let most_of = rows.first().and_then(|row| {
        let most = row
            .parts
            .iter()
            .max_by(|left, right| left.figure.value.total_cmp(&right.figure.value))?;
        Some(format!(
            "In {}, {} is the largest part: {}.",
            row.label,
            most.name,
            text(most.figure.value)
        ))
    });
    drawing.image(
        id,
        title,
        &most_of.unwrap_or_else(|| "There is nothing to show.".to_owned()),
    )
}

fn ticks(drawing: &mut Drawing, axis: &Axis, top: f64, bottom: f64, text: fn(f64) -> String) {
    for tick in axis.ticks() {
        let x = axis.place(tick);
        drawing.line((x, top - 4.0), (x, bottom), "grid");
        drawing.text((x, bottom + 16.0), Anchor::Middle, &text(tick));
    }
}

/// A request's time along its critical path: what application, network and proxies take of it, call by call.
pub(super) fn waterfall(id: &str, graph: &RequestGraph, request: &RequestPrediction) -> String {
    let order = depth_first(graph);
    let total: f64 = request
        .path
        .iter()
        .map(|step| step.app_us + step.network_us + step.added_us)
        .sum();
    let rows = order.len().min(ROWS_MAX);
    let height = ROW * (rows as f64 + 3.0);
    let mut drawing = Drawing::new(WIDTH, height);
    let axis = Axis::new((0.0, total), (LABEL_WIDTH + 30.0, WIDTH - 20.0));
    for (at, (name, class)) in [("application", "app"), ("network", "net"), ("proxies", "added")]
        .into_iter()
        .enumerate()
    {
        let x = 10.0 + at as f64 * 175.0;
        drawing.bar((x, 4.0), (14.0, 14.0), class, name);
        drawing.text((x + 20.0, 16.0), Anchor::Start, name);
    }
    let top = ROW + 10.0;
    let mut x = axis.place(0.0);
    for (at, index) in order.iter().take(ROWS_MAX).enumerate() {
        let step = &request.path[*index];
        let y = top + ROW * at as f64;
        let indent = step.depth.min(12) as f64 * 12.0;
        drawing.text(
            (8.0 + indent, y + 14.0),
            Anchor::Start,
            &shortened(&step.call, 30 - step.depth.min(12)),
        );
        for (us, class, name) in [
            (step.app_us, "app", "application"),
            (step.network_us, "net", "network"),
            (step.added_us, "added", "proxies"),
        ] {
            let width = axis.length(us);
            if width > 0.0 {
                drawing.bar(
                    (x, y),
                    (width, BAR),
                    class,
                    &format!("{}, {name}: {}", step.call, time_text(us)),
                );
                x += width;
            }
        }
        if step.critical_share == 0.0 {
            drawing.text((x + 6.0, y + 14.0), Anchor::Start, "not on the critical path");
        }
    }
    ticks(&mut drawing, &axis, top, height - ROW, time_text);
    let added: f64 = request.path.iter().map(|step| step.added_us).sum();
    let description = format!(
        "Of {} on average, proxies take {}.",
        time_text(total),
        time_text(added)
    );
    drawing.image(id, &format!("Critical path of {}", request.name), &description)
}

fn depth_first(graph: &RequestGraph) -> Vec<usize> {
    let mut order = Vec::new();
    let mut left = vec![0];
    while let Some(at) = left.pop() {
        order.push(at);
        left.extend(graph.calls[at].children.iter().rev());
    }
    order
}

/// The calls of a request as a tree, the critical path in bold.
pub(super) fn call_tree(id: &str, graph: &CallGraph, request: &RequestGraph) -> String {
    const COLUMN: f64 = 190.0;
    let order = depth_first(request);
    let critical = request.critical_calls();
    let depth = order.iter().map(|at| request.depth(*at)).max().unwrap_or(0);
    let mut drawing = Drawing::new(
        20.0 + COLUMN * (depth as f64 + 1.0),
        16.0 + 34.0 * order.len().min(ROWS_MAX) as f64,
    );
    let place = |row: usize, at: usize| (10.0 + COLUMN * request.depth(at) as f64, 8.0 + 34.0 * row as f64);
    let mut rows = vec![0; request.calls.len()];
    for (row, at) in order.iter().take(ROWS_MAX).enumerate() {
        rows[*at] = row;
        let call = &request.calls[*at];
        let is_critical = critical.binary_search(at).is_ok();
        let (x, y) = place(row, *at);
        if let Some(parent) = call.parent {
            let (from_x, from_y) = place(rows[parent], parent);
            let class = if is_critical { "edge critical" } else { "edge" };
            drawing.line((from_x + 20.0, from_y + 26.0), (from_x + 20.0, y + 13.0), class);
            drawing.line((from_x + 20.0, y + 13.0), (x, y + 13.0), class);
        }
        let class = if is_critical { "node critical" } else { "node" };
        let service = &graph.services[call.service].name;
        drawing.bar(
            (x, y),
            (COLUMN - 40.0, 26.0),
            class,
            &format!("{service} {}", call.operation),
        );
        drawing.text((x + 8.0, y + 17.0), Anchor::Start, &shortened(service, 20));
    }
    let names: Vec<&str> = critical.iter().map(|at| request.calls[*at].id.as_str()).collect();
    let description = format!(
        "{} calls. On the critical path of mean times: {}.",
        request.calls.len(),
        shortened(&names.join(", "), 300)
    );
    drawing.image(id, &format!("Calls of {}", request.name), &description)
}

/// What changes save, as a tornado.
pub(super) fn tornado(id: &str, comparison: &Comparison) -> String {
    let setups: Vec<_> = comparison.setups.iter().take(ROWS_MAX).collect();
    let bound = |pick: fn(f64, f64) -> f64| {
        setups
            .iter()
            .flat_map(|one| [one.saved_p99_us.low, one.saved_p99_us.high, 0.0])
            .fold(0.0, pick)
    };
    let height = ROW * (setups.len() as f64 + 2.0);
    let mut drawing = Drawing::new(WIDTH, height);
    let axis = Axis::new((bound(f64::min), bound(f64::max)), (LABEL_WIDTH, WIDTH - 60.0));
    let zero = axis.place(0.0);
    ticks(&mut drawing, &axis, 10.0, height - ROW, time_text);
    for (at, one) in setups.iter().enumerate() {
        let y = 10.0 + ROW * at as f64;
        let saved = one.saved_p99_us;
        drawing.text(
            (LABEL_WIDTH - 8.0, y + 14.0),
            Anchor::End,
            &shortened(&one.prediction.setup, 32),
        );
        let class = if saved.value >= 0.0 { "saves" } else { "costs" };
        let tooltip = format!(
            "{}: {} (90 %: {} to {})",
            one.prediction.setup,
            time_text(saved.value),
            time_text(saved.low),
            time_text(saved.high)
        );
        drawing.bar((zero, y), (axis.length(saved.value), BAR), class, &tooltip);
        drawing.line(
            (axis.place(saved.low), y + BAR / 2.0),
            (axis.place(saved.high), y + BAR / 2.0),
            "whisker",
        );
    }
    drawing.line((zero, 6.0), (zero, height - ROW), "axis");
    let best = comparison
        .setups
        .iter()
        .max_by(|left, right| left.saved_p99_us.value.total_cmp(&right.saved_p99_us.value));
    let description = best.map_or_else(
        || "There is nothing to compare.".to_owned(),
        |best| {
            format!(
                "{} saves most: {} at p99.",
                best.prediction.setup,
                time_text(best.saved_p99_us.value)
            )
        },
    );
    drawing.image(
        id,
        "What changes save of the 99th percentile of added latency",
        &description,
    )
}

/// Predictions over measurements, on the diagonal where they agree.
pub(super) fn scatter(id: &str, validation: &ValidationResult) -> Result<String, ReportError> {
    const SIDE: f64 = 460.0;
    let points: Vec<_> = validation
        .points
        .iter()
        .filter(|point| point.measured > 0.0 && point.predicted.value > 0.0)
        .take(10_000)
        .collect();
    if points.is_empty() {
        return Err(ReportError::NothingMeasured);
    }
    let most = points
        .iter()
        .map(|point| point.measured.max(point.predicted.high))
        .fold(0.0, f64::max);
    let mut drawing = Drawing::new(SIDE + 160.0, SIDE + 40.0);
    let across = Axis::new((0.0, most * 1.05), (80.0, SIDE + 60.0));
    let up = Axis::new((0.0, most * 1.05), (SIDE, 10.0));
    for tick in across.ticks() {
        drawing.line((across.place(tick), 10.0), (across.place(tick), SIDE), "grid");
        drawing.line((80.0, up.place(tick)), (SIDE + 60.0, up.place(tick)), "grid");
        drawing.text(
            (across.place(tick), SIDE + 16.0),
            Anchor::Middle,
            &format!("{tick}"),
        );
        drawing.text((74.0, up.place(tick) + 4.0), Anchor::End, &format!("{tick}"));
    }
    drawing.text((SIDE / 2.0 + 70.0, SIDE + 34.0), Anchor::Middle, "measured");
    drawing.text((84.0, 22.0), Anchor::Start, "predicted, with 90 % interval");
    drawing.line(
        (across.place(0.0), up.place(0.0)),
        (across.place(most), up.place(most)),
        "diagonal",
    );
    for point in &points {
        let x = across.place(point.measured);
        drawing.line(
            (x, up.place(point.predicted.low)),
            (x, up.place(point.predicted.high)),
            "whisker",
        );
        let tooltip = format!(
            "{}, {}: predicted {:.1}, measured {:.1}",
            point.application, point.figure, point.predicted.value, point.measured
        );
        drawing.dot((x, up.place(point.predicted.value)), "point", &tooltip);
    }
    let description = format!(
        "{} figures; the median error is {:.1} %, {:.0} % of the measured values are within the predicted intervals.",
        validation.points.len(),
        validation.median_error_share() * 100.0,
        validation.coverage() * 100.0
    );
    Ok(drawing.image(id, "Measured and predicted", &description))
}
