//! A call graph as text.

use std::fmt::Write;

use super::{CallGraph, CallNode, RepeatMode, RequestGraph};

/// A graph in numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GraphSummary {
    pub services: usize,
    pub requests: usize,
    /// Calls of all types.
    pub calls: usize,
    /// The deepest nesting; the call from outside has 1.
    pub depth: usize,
}

impl CallGraph {
    /// The graph in numbers.
    #[must_use]
    pub fn summary(&self) -> GraphSummary {
        GraphSummary {
            services: self.services.len(),
            requests: self.requests.len(),
            calls: self.requests.iter().map(|request| request.calls.len()).sum(),
            depth: self
                .requests
                .iter()
                .flat_map(|request| (0..request.calls.len()).map(|at| request.depth(at) + 1))
                .max()
                .unwrap_or(0),
        }
    }
}

impl RequestGraph {
    /// Calls around a call.
    #[must_use]
    pub fn depth(&self, at: usize) -> usize {
        std::iter::successors(self.calls[at].parent, |parent| self.calls[*parent].parent).count()
    }

    /// Mean time of each call without a mesh, from its beginning to its end: calls within it count once, as if they were
    /// certain to be made.
    #[must_use]
    pub fn mean_durations_us(&self) -> Vec<f64> {
        let mut durations = vec![0.0; self.calls.len()];
        let mut ends = vec![0.0_f64; self.calls.len()];
        for at in (0..self.calls.len()).rev() {
            let call = &self.calls[at];
            let mut end = 0.0_f64;
            for child in &call.children {
                ends[*child] = self.end_of(*child, &durations, &ends);
                end = end.max(ends[*child]);
            }
            durations[at] = call.app_us.mean() + call.network_us.mean() + end;
        }
        durations
    }

    /// When a call has ended for the one around it, once those that it waits for have.
    fn end_of(&self, at: usize, durations: &[f64], ends: &[f64]) -> f64 {
        let call = &self.calls[at];
        let begin = call
            .after
            .iter()
            .map(|sibling| ends[*sibling])
            .fold(0.0, f64::max);
        match (call.detached, call.repeat_mode) {
            (true, _) => begin,
            (false, RepeatMode::Sequential) => begin + durations[at] * call.repeats,
            (false, RepeatMode::Concurrent) => begin + durations[at],
        }
    }

    /// The calls on the critical path of mean times, in the order of their indices.
    #[must_use]
    pub fn critical_calls(&self) -> Vec<usize> {
        let durations = self.mean_durations_us();
        let mut critical = vec![0];
        let mut left = vec![0];
        while let Some(at) = left.pop() {
            let mut ends = vec![0.0_f64; self.calls.len()];
            for child in &self.calls[at].children {
                ends[*child] = self.end_of(*child, &durations, &ends);
            }
            let waited: Vec<usize> = self.calls[at]
                .children
                .iter()
                .copied()
                .filter(|child| !self.calls[*child].detached)
                .collect();
            let mut last = waited
                .iter()
                .copied()
                .max_by(|a, b| ends[*a].total_cmp(&ends[*b]));
            while let Some(child) = last {
                critical.push(child);
                left.push(child);
                last = self.calls[child]
                    .after
                    .iter()
                    .copied()
                    .max_by(|a, b| ends[*a].total_cmp(&ends[*b]));
            }
        }
        critical.sort_unstable();
        critical.dedup();
        critical
    }
}

/// The graph as a tree, its critical path marked with `*`.
#[must_use]
pub fn draw_text(graph: &CallGraph) -> String {
    let mut out = String::new();
    for request in &graph.requests {
        let traces = match request.traces {
            0 => String::new(),
            traces => format!(", from {traces} traces"),
        };
        let _ = writeln!(
            out,
            "{} ({} per second{traces})",
            printable(&request.name),
            request.rate_per_s
        );
        let critical = request.critical_calls();
        let durations = request.mean_durations_us();
        let mut lines: Vec<(String, String)> = Vec::new();
        draw_call(graph, request, 0, "", Branch::Root, &mut |at, tree| {
            let mark = if critical.contains(&at) { '*' } else { ' ' };
            lines.push((
                format!("{mark} {tree}"),
                details(request, &request.calls[at], durations[at]),
            ));
        });
        let width = lines
            .iter()
            .map(|(tree, _)| tree.chars().count())
            .max()
            .unwrap_or(0);
        for (tree, details) in lines {
            let padding = " ".repeat(width - tree.chars().count());
            let _ = writeln!(out, "{tree}{padding}  {details}");
        }
        out.push('\n');
    }
    out += "* on the critical path of mean times without a mesh\n";
    out
}

#[derive(Clone, Copy, PartialEq)]
enum Branch {
    Root,
    Middle,
    Last,
}

fn draw_call(
    graph: &CallGraph,
    request: &RequestGraph,
    at: usize,
    indent: &str,
    branch: Branch,
    line: &mut dyn FnMut(usize, String),
) {
    let call = &request.calls[at];
    let (joint, deeper) = match branch {
        Branch::Root => ("", ""),
        Branch::Middle => ("├─ ", "│  "),
        Branch::Last => ("└─ ", "   "),
    };
    let operation = match call.operation.as_str() {
        "" => String::new(),
        operation => format!(" {}", printable(operation)),
    };
    let name = printable(&graph.services[call.service].name);
    line(at, format!("{indent}{joint}{name}{operation}"));
    let indent = format!("{indent}{deeper}");
    for (place, child) in call.children.iter().enumerate() {
        let branch = if place + 1 == call.children.len() {
            Branch::Last
        } else {
            Branch::Middle
        };
        draw_call(graph, request, *child, &indent, branch, line);
    }
}

fn details(request: &RequestGraph, call: &CallNode, duration_us: f64) -> String {
    let mut parts = vec![
        format!("{:.0} µs", duration_us),
        format!(
            "{:.0} B → {:.0} B",
            call.request_bytes.mean(),
            call.response_bytes.mean()
        ),
        call.protocol.to_string(),
    ];
    if call.probability < 1.0 {
        parts.push(format!("{:.0} % of the time", call.probability * 100.0));
    }
    if call.repeats > 1.0 {
        let mode = match call.repeat_mode {
            RepeatMode::Sequential => "one after the other",
            RepeatMode::Concurrent => "at once",
        };
        parts.push(format!("{:.1} times {mode}", call.repeats));
    }
    if call.detached {
        parts.push("not waited for".to_owned());
    }
    if !call.after.is_empty() {
        let names: Vec<String> = call
            .after
            .iter()
            .map(|sibling| printable(&request.calls[*sibling].id))
            .collect();
        parts.push(format!("after {}", names.join(", ")));
    }
    if !call.filters.is_empty() {
        parts.push(format!("filters {}", printable(&call.filters.join(", "))));
    }
    parts.join(", ")
}

/// Names come from files: they shall not write to a terminal.
fn printable(name: &str) -> String {
    name.chars()
        .map(|c| if c.is_control() { '?' } else { c })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::tests::small;
    use super::*;

    #[test]
    fn the_tree_marks_its_critical_path() {
        let drawn = draw_text(&small());
        let expected = "\
page (100 per second)
* front        800 µs, 200 B → 4000 B, http1
* ├─ left      500 µs, 100 B → 1000 B, http1
  └─ right     300 µs, 100 B → 1000 B, http1
     └─ store  100 µs, 50 B → 500 B, http1, 50 % of the time, 2.0 times one after the other
";
        let drawn: String = drawn
            .lines()
            .map(|line| line.trim_end().to_owned() + "\n")
            .collect();
        assert!(drawn.starts_with(expected), "{drawn}");
    }

    #[test]
    fn a_graph_is_counted() {
        let summary = small().summary();
        assert_eq!((summary.services, summary.calls, summary.depth), (4, 4, 3));
    }
}
