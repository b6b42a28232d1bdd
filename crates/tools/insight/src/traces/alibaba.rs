//! `MSCallGraph` of Alibaba's cluster traces: a row for each call, `um` calls `dm`, nested by `rpcid` (`0.1.3` is within
//! `0.1`), with milliseconds.
//!
//! One call may be in the file twice, as the caller and as the callee saw it; the callee's response time is negative. The
//! longer of the two is the caller's, and is kept. Times have a resolution of a millisecond.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use super::{
    Columns, SPAN_US_MAX, SpanKind, SpanSet, TraceError, TraceSpan, csv_error, csv_reader, identity,
    is_sane_us,
};
use crate::profile::Protocol;

const US_PER_MS: f64 = 1000.0;

pub(super) fn read(text: &str, spans: &mut SpanSet) -> Result<(), TraceError> {
    let mut reader = csv_reader(text);
    let columns = Columns::read(&mut reader)?;
    let trace = columns.find("traceid")?;
    let timestamp = columns.find("timestamp")?;
    let rpc = columns.find("rpcid")?;
    let kind = columns.find("rpctype")?;
    let (caller, callee) = (columns.find("um")?, columns.find("dm")?);
    let interface = columns.find("interface")?;
    let response_time = columns.find("rt")?;
    let mut seen: HashMap<(u32, u64), usize> = HashMap::new();
    let mut row = csv::StringRecord::new();
    while reader.read_record(&mut row).map_err(csv_error)? {
        let cell = |at: usize| row.get(at).unwrap_or_default().trim();
        if cell(trace).is_empty() || cell(rpc).is_empty() || is_unknown(cell(callee)) {
            spans.report.unused("rows without an id or a called service");
            continue;
        }
        let times: Option<(f64, f64)> = cell(timestamp).parse().ok().zip(cell(response_time).parse().ok());
        let Some((start_ms, took_ms)) = times
            .filter(|(start, took)| is_sane_us(start * US_PER_MS) && took.abs() * US_PER_MS <= SPAN_US_MAX)
        else {
            spans.report.unused("rows without times");
            continue;
        };
        let trace = spans.trace(cell(trace));
        let id = identity(cell(rpc));
        let call = TraceSpan {
            trace,
            id,
            parent: cell(rpc).rsplit_once('.').map(|(parent, _)| identity(parent)),
            service: spans.name(cell(callee))?,
            operation: spans.name(cell(interface))?,
            kind: match cell(kind) {
                "mq" => SpanKind::Message,
                _ => SpanKind::Server,
            },
            start_us: start_ms * US_PER_MS,
            duration_us: took_ms.abs() * US_PER_MS,
            request_bytes: None,
            response_bytes: None,
            protocol: protocol(cell(kind)),
            peer: (!is_unknown(cell(caller)))
                .then(|| spans.name(cell(caller)))
                .transpose()?,
        };
        match seen.entry((trace, id)) {
            Entry::Occupied(before) => {
                let before = &mut spans.spans[*before.get()];
                if before.duration_us < call.duration_us {
                    *before = call;
                }
                spans
                    .report
                    .adjusted("rows that a call has twice, once from each end");
            }
            Entry::Vacant(free) => {
                free.insert(spans.spans.len());
                spans.push(call)?;
            }
        }
    }
    Ok(())
}

fn is_unknown(service: &str) -> bool {
    matches!(service, "" | "(?)" | "NAN" | "nan" | "UNKNOWN" | "UNAVAILABLE")
}

fn protocol(kind: &str) -> Option<Protocol> {
    match kind {
        "http" => Some(Protocol::Http1),
        "rpc" => Some(Protocol::Grpc),
        "mc" | "db" | "mq" => Some(Protocol::Tcp),
        _ => None,
    }
}
