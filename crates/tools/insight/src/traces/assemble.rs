//! From spans to trees of calls.
//!
//! A caller's span and the callee's span below it are one call; spans within a service are its own time. A callee's span
//! that lies outside its caller's was recorded by a clock that disagrees, and is moved into it with all that is below.

use std::collections::HashMap;

use super::{ImportReport, NameIndex, NameTable, SPAN_US_MAX, SpanKind, SpanSet, TraceSpan};
use crate::acg::DEPTH_MAX;
use crate::profile::Protocol;

/// A call in a trace.
#[derive(Clone, Debug, PartialEq)]
pub struct TreeCall {
    /// The call around it, by its place in [`CallTree::calls`]; `None` for the request itself.
    pub parent: Option<u32>,
    pub depth: u32,
    pub service: NameIndex,
    pub operation: NameIndex,
    /// What it speaks, where known.
    pub protocol: Option<Protocol>,
    /// Whether the caller went on without the answer.
    pub detached: bool,
    /// When the caller began it.
    pub start_us: f64,
    /// Until the caller had the answer.
    pub duration_us: f64,
    /// How long the callee was at it.
    pub served_us: f64,
    /// Size of the request, where known.
    pub request_bytes: Option<f64>,
    /// Size of the response, where known.
    pub response_bytes: Option<f64>,
}

impl TreeCall {
    /// When the caller had the answer.
    #[must_use]
    pub fn end_us(&self) -> f64 {
        self.start_us + self.duration_us
    }
}

/// A request with all its calls, each after the one around it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CallTree {
    pub calls: Vec<TreeCall>,
}

#[derive(Clone, Debug, Default)]
pub struct TraceForest {
    /// A tree for each.
    pub trees: Vec<CallTree>,
    /// Names of services and operations.
    pub names: NameTable,
    /// What was read and what was not used.
    pub report: ImportReport,
}

impl TraceForest {
    /// From the first request's beginning to the last one's.
    #[must_use]
    pub fn window_us(&self) -> f64 {
        let starts = self
            .trees
            .iter()
            .filter_map(|tree| tree.calls.first())
            .map(|call| call.start_us);
        let (first, last) = starts.fold((f64::INFINITY, f64::NEG_INFINITY), |(first, last), start| {
            (first.min(start), last.max(start))
        });
        (last - first).max(0.0)
    }
}

/// Makes trees of spans.
#[must_use]
pub fn assemble(set: SpanSet) -> TraceForest {
    let SpanSet {
        mut spans,
        names,
        report,
        ..
    } = set;
    spans.sort_by_key(|span| span.trace);
    let mut forest = TraceForest {
        trees: Vec::new(),
        names,
        report,
    };
    for trace in spans.chunk_by(|left, right| left.trace == right.trace) {
        assemble_trace(trace, &mut forest);
    }
    forest.report.traces = forest.trees.len() as u64;
    forest.report.calls = forest.trees.iter().map(|tree| tree.calls.len() as u64).sum();
    forest
}

fn assemble_trace(spans: &[TraceSpan], forest: &mut TraceForest) {
    let links = SpanLinks::new(spans, &mut forest.report);
    let mut visited = vec![false; spans.len()];
    for root in &links.roots {
        let tree = Assembly::new(spans, &links, &mut forest.report).tree(*root, &mut visited);
        forest.trees.push(tree);
    }
    match (links.roots.is_empty(), links.rebuilt_root(spans)) {
        (true, Some(root)) => {
            let tree = Assembly::new(spans, &links, &mut forest.report).tree_of_orphans(root, &mut visited);
            forest
                .report
                .adjusted("traces whose first span is missing, put together from the calls that it made");
            forest.trees.push(tree);
        }
        _ => links.count_orphans(&mut visited, &mut forest.report),
    }
    let left = visited
        .iter()
        .zip(&links.is_duplicate)
        .filter(|(visited, duplicate)| !**visited && !**duplicate);
    forest
        .report
        .unused_many("spans whose parents lead back to them", left.count() as u64);
}

/// Who is below whom.
struct SpanLinks {
    roots: Vec<usize>,
    /// Spans whose parent is not in the trace.
    orphans: Vec<usize>,
    children: Vec<Vec<usize>>,
    is_duplicate: Vec<bool>,
}

impl SpanLinks {
    fn new(spans: &[TraceSpan], report: &mut ImportReport) -> SpanLinks {
        let mut by_id: HashMap<u64, usize> = HashMap::with_capacity(spans.len());
        let mut links = SpanLinks {
            roots: Vec::new(),
            orphans: Vec::new(),
            children: vec![Vec::new(); spans.len()],
            is_duplicate: vec![false; spans.len()],
        };
        for (at, span) in spans.iter().enumerate() {
            if *by_id.entry(span.id).or_insert(at) != at {
                links.is_duplicate[at] = true;
                report.unused("spans whose id is there twice");
            }
        }
        for (at, span) in spans
            .iter()
            .enumerate()
            .filter(|(at, _)| !links.is_duplicate[*at])
        {
            match span.parent.map(|parent| by_id.get(&parent)) {
                None => links.roots.push(at),
                Some(Some(parent)) => links.children[*parent].push(at),
                Some(None) => links.orphans.push(at),
            }
        }
        links
    }

    /// The service of a root that is missing, where all that it called says the same.
    fn rebuilt_root(&self, spans: &[TraceSpan]) -> Option<NameIndex> {
        let first = self.orphans.first().and_then(|orphan| spans[*orphan].peer)?;
        let parent = spans[self.orphans[0]].parent;
        let is_same = |orphan: &usize| spans[*orphan].peer == Some(first) && spans[*orphan].parent == parent;
        self.orphans.iter().all(is_same).then_some(first)
    }

    fn count_orphans(&self, visited: &mut [bool], report: &mut ImportReport) {
        let mut left = self.orphans.clone();
        let mut count = 0;
        while let Some(at) = left.pop() {
            if !std::mem::replace(&mut visited[at], true) {
                count += 1;
                left.extend(&self.children[at]);
            }
        }
        report.unused_many("spans whose parent is missing, with those below", count);
    }
}

/// What is still to be looked at: a span, the call that it is within, and what its clock is off by.
#[derive(Clone, Copy)]
struct Pending {
    span: usize,
    within: u32,
    moved_us: f64,
}

struct Assembly<'a> {
    spans: &'a [TraceSpan],
    links: &'a SpanLinks,
    report: &'a mut ImportReport,
    calls: Vec<TreeCall>,
    left: Vec<Pending>,
}

impl<'a> Assembly<'a> {
    fn new(spans: &'a [TraceSpan], links: &'a SpanLinks, report: &'a mut ImportReport) -> Assembly<'a> {
        Assembly {
            spans,
            links,
            report,
            calls: Vec::new(),
            left: Vec::new(),
        }
    }

    fn tree(mut self, root: usize, visited: &mut [bool]) -> CallTree {
        let span = &self.spans[root];
        self.calls.push(call_of(span, None, 0));
        // A root that is a caller's span is the request, and the call that it makes.
        match span.kind {
            SpanKind::Client => self.left.push(Pending {
                span: root,
                within: 0,
                moved_us: 0.0,
            }),
            _ => self.push_children(root, 0, 0.0),
        }
        visited[root] = true;
        self.finish(visited)
    }

    fn tree_of_orphans(mut self, service: NameIndex, visited: &mut [bool]) -> CallTree {
        let orphans = &self.links.orphans;
        let start_us = orphans
            .iter()
            .map(|at| self.spans[*at].start_us)
            .fold(f64::INFINITY, f64::min);
        let ends = orphans
            .iter()
            .map(|at| self.spans[*at].start_us + self.spans[*at].duration_us);
        let duration_us = (ends.fold(start_us, f64::max) - start_us).min(SPAN_US_MAX);
        self.calls.push(TreeCall {
            parent: None,
            depth: 0,
            service,
            operation: self.spans[orphans[0]].operation,
            protocol: None,
            detached: false,
            start_us,
            duration_us,
            served_us: duration_us,
            request_bytes: None,
            response_bytes: None,
        });
        self.left = orphans
            .iter()
            .map(|span| Pending {
                span: *span,
                within: 0,
                moved_us: 0.0,
            })
            .collect();
        self.finish(visited)
    }

    fn finish(mut self, visited: &mut [bool]) -> CallTree {
        while let Some(pending) = self.left.pop() {
            visited[pending.span] = true;
            self.look_at(pending, visited);
        }
        CallTree { calls: self.calls }
    }

    fn push_children(&mut self, span: usize, within: u32, moved_us: f64) {
        let children = self.links.children[span].iter().map(|child| Pending {
            span: *child,
            within,
            moved_us,
        });
        self.left.extend(children);
    }

    fn look_at(&mut self, pending: Pending, visited: &mut [bool]) {
        let span = &self.spans[pending.span];
        let enclosing = self.calls[pending.within as usize].service;
        match span.kind {
            SpanKind::Client => self.caller(pending, visited),
            SpanKind::Server => self.callee(pending),
            _ if span.service != enclosing => self.callee(pending),
            _ => self.within_service(pending, visited),
        }
    }

    /// A caller's span: with the callee's below it, or alone.
    fn caller(&mut self, pending: Pending, visited: &mut [bool]) {
        let span = &self.spans[pending.span];
        let is_callee = |child: &&usize| {
            let child = &self.spans[**child];
            child.kind == SpanKind::Server || child.service != span.service
        };
        let callees: Vec<usize> = self.links.children[pending.span]
            .iter()
            .filter(is_callee)
            .copied()
            .collect();
        match (callees.as_slice(), span.peer) {
            ([callee], _) => self.joined(pending, *callee, visited),
            ([], Some(peer)) => {
                let mut call = call_of(span, Some(pending.within), self.depth_within(pending.within));
                call.service = peer;
                call.start_us += pending.moved_us;
                let within = self.push_call(call).unwrap_or(pending.within);
                self.push_children(pending.span, within, pending.moved_us);
            }
            ([], None) => {
                self.report
                    .unused("callers' spans that name no callee: taken for application time");
                self.push_children(pending.span, pending.within, pending.moved_us);
            }
            // Tried again, or sent to several: each callee's span is a call.
            _ => self.push_children(pending.span, pending.within, pending.moved_us),
        }
    }

    /// A caller's span and the callee's: one call, as long as the caller's.
    fn joined(&mut self, pending: Pending, callee: usize, visited: &mut [bool]) {
        let (outer, inner) = (&self.spans[pending.span], &self.spans[callee]);
        visited[callee] = true;
        let mut call = call_of(inner, Some(pending.within), self.depth_within(pending.within));
        call.start_us = outer.start_us + pending.moved_us;
        call.duration_us = outer.duration_us;
        call.served_us = inner.duration_us.min(outer.duration_us);
        call.request_bytes = inner.request_bytes.or(outer.request_bytes);
        call.response_bytes = inner.response_bytes.or(outer.response_bytes);
        call.protocol = inner.protocol.or(outer.protocol);
        call.detached = inner.kind == SpanKind::Message;
        // The callee's clock is right if its span lies within the caller's; else it is put in the middle.
        let moved_us = self.moved(inner, (call.start_us, call.end_us()), pending.moved_us);
        let within = self.push_call(call);
        self.push_children(callee, within.unwrap_or(pending.within), moved_us);
        let others = self.links.children[pending.span]
            .iter()
            .filter(|child| **child != callee);
        let others: Vec<Pending> = others
            .map(|child| Pending {
                span: *child,
                ..pending
            })
            .collect();
        self.left.extend(others);
    }

    /// A callee's span without a caller's.
    fn callee(&mut self, pending: Pending) {
        let span = &self.spans[pending.span];
        let around = &self.calls[pending.within as usize];
        let (begin, end) = (around.start_us, around.end_us());
        let mut call = call_of(span, Some(pending.within), self.depth_within(pending.within));
        call.detached = span.kind == SpanKind::Message;
        let mut moved_us = pending.moved_us;
        if !call.detached {
            let is_too_long = span.duration_us > end - begin;
            call.detached = is_too_long;
            if is_too_long {
                self.report
                    .adjusted("calls that outlive their caller: taken as not waited for");
            } else {
                moved_us = self.moved(span, (begin, end), pending.moved_us);
            }
        }
        call.start_us += moved_us;
        let within = self.push_call(call).unwrap_or(pending.within);
        self.push_children(pending.span, within, moved_us);
    }

    /// A span within a service. One whose only child is another service's is that call as the caller saw it.
    fn within_service(&mut self, pending: Pending, visited: &mut [bool]) {
        let span = &self.spans[pending.span];
        if let [only] = self.links.children[pending.span].as_slice() {
            let child = &self.spans[*only];
            let is_call = child.service != span.service && child.kind != SpanKind::Client;
            if is_call && child.duration_us <= span.duration_us && span.kind != SpanKind::Message {
                return self.joined(pending, *only, visited);
            }
        }
        self.push_children(pending.span, pending.within, pending.moved_us);
    }

    /// By how much a span's clock is to be moved so that the span lies within these times.
    fn moved(&mut self, span: &TraceSpan, (begin, end): (f64, f64), moved_us: f64) -> f64 {
        // Times are often rounded to a millisecond, which is no disagreement of clocks.
        const ROUNDING_US: f64 = 1000.0;
        let start = span.start_us + moved_us;
        let off = (begin - start).max(start + span.duration_us - end);
        if off <= 0.0 {
            return moved_us;
        }
        let middle = begin + ((end - begin - span.duration_us) / 2.0).max(0.0);
        if off > ROUNDING_US {
            self.report
                .adjusted("spans moved into their caller's, as clocks disagree");
            self.report.clock_skew_us_max = self.report.clock_skew_us_max.max((middle - start).abs());
        }
        moved_us + middle - start
    }

    fn depth_within(&self, within: u32) -> u32 {
        self.calls[within as usize].depth + 1
    }

    /// The place of a call; none if it is nested too deep, when what it calls counts for the call around it.
    fn push_call(&mut self, call: TreeCall) -> Option<u32> {
        if call.depth as usize >= DEPTH_MAX {
            self.report
                .unused("calls nested too deep: counted for the calls around them");
            return None;
        }
        let place = u32::try_from(self.calls.len()).ok()?;
        self.calls.push(call);
        Some(place)
    }
}

fn call_of(span: &TraceSpan, parent: Option<u32>, depth: u32) -> TreeCall {
    TreeCall {
        parent,
        depth,
        service: span.service,
        operation: span.operation,
        protocol: span.protocol,
        detached: false,
        start_us: span.start_us,
        duration_us: span.duration_us,
        served_us: span.duration_us,
        request_bytes: span.request_bytes,
        response_bytes: span.response_bytes,
    }
}
