//! The header for C says what the types of this crate say.
#![forbid(unsafe_code)]

use std::fmt::Write as _;
use std::mem::offset_of;
use std::process::Command;

use provost_engine::abi::*;

/// Assertions about one struct: its size, and where its fields are.
macro_rules! layout {
    ($out:ident, $name:literal, $type:ty, $($field:ident),+) => {
        let _ = writeln!($out, "_Static_assert(sizeof({0}) == {1}, \"{0}\");", $name, size_of::<$type>());
        $(let _ = writeln!(
            $out,
            "_Static_assert(offsetof({0}, {1}) == {2}, \"{0}.{1}\");",
            $name, stringify!($field), offset_of!($type, $field)
        );)+
    };
}

macro_rules! constants {
    ($out:ident, $($name:literal = $value:expr),+ $(,)?) => {
        $(let _ = writeln!($out, "_Static_assert({} == {}, \"{0}\");", $name, $value);)+
    };
}

fn assertions() -> String {
    let mut out = String::from("#include <provost_engine.h>\n");
    layout!(out, "provost_bytes", Bytes, at, length);
    layout!(out, "provost_sink", Sink, to, write);
    layout!(out, "provost_state", State, version, reserved, bytes);
    layout!(
        out,
        "provost_audit",
        Audit,
        action,
        app,
        method,
        peer,
        reason,
        call,
        code,
        reserved
    );
    layout!(
        out,
        "provost_contents",
        Contents,
        metadata,
        message,
        window_at,
        has_message,
        reserved
    );
    layout!(
        out,
        "provost_field_value",
        FieldValue,
        kind,
        reserved,
        number,
        real,
        bytes
    );
    layout!(
        out,
        "provost_host",
        Host,
        abi,
        struct_bytes,
        contents,
        make_whole,
        metadata,
        append_metadata,
        overwrite_metadata,
        field,
        field_path,
        audit
    );
    layout!(
        out,
        "provost_setup",
        Setup,
        host,
        environment,
        node,
        policy,
        config,
        shared
    );
    layout!(out, "provost_app", App, name, id, pid, uid, gid, reserved);
    layout!(
        out,
        "provost_method",
        Method,
        name,
        path,
        input,
        output,
        in_scope,
        client_streaming,
        server_streaming,
        reserved
    );
    layout!(
        out,
        "provost_site",
        DatapathContext,
        struct_bytes,
        side,
        reserved,
        connection,
        runtime,
        node,
        service,
        peer_identity,
        peer_address,
        transport,
        descriptor_set,
        app,
        peer_app,
        methods,
        method_count,
        app_identity,
        peer_app_identity
    );
    layout!(
        out,
        "provost_identity",
        IdentityForm,
        node,
        name,
        user,
        workload,
        uid,
        reserved
    );
    layout!(out, "provost_watch", Watch, requests, responses, calls, reserved);
    layout!(
        out,
        "provost_step",
        Step,
        struct_bytes,
        message_bytes,
        call,
        now,
        begun_at,
        held_since,
        deadline,
        method,
        parts,
        direction,
        status,
        is_held,
        is_split,
        reserved
    );
    layout!(
        out,
        "provost_verdict",
        Verdict,
        kind,
        code,
        until,
        retry_pushback_ms,
        has_retry_pushback,
        reserved,
        reason
    );
    layout!(
        out,
        "provost_ended",
        Ended,
        at,
        code,
        cancelled,
        direction,
        reserved
    );
    layout!(out, "provost_metric", Metric, name, help, unit, kind, reserved);
    layout!(out, "provost_label", Label, name, value);
    layout!(out, "provost_bucket", Bucket, bound, count);
    layout!(
        out,
        "provost_measure",
        Measure,
        metric,
        labels,
        label_count,
        buckets,
        bucket_count,
        value,
        count
    );
    layout!(out, "provost_measure_sink", MeasureSink, to, measure);
    layout!(
        out,
        "provost_engine_description",
        EngineDescription,
        abi,
        struct_bytes,
        kind,
        summary,
        example,
        version,
        flags,
        state_oldest,
        state_newest,
        configure,
        policy_save,
        policy_metrics,
        policy_destroy,
        prepare,
        filter_restore,
        judge,
        ended,
        call_save,
        call_load,
        filter_save,
        filter_destroy
    );
    constants!(
        out,
        "PROVOST_ENGINE_ABI" = ENGINE_ABI,
        "PROVOST_OK" = OK,
        "PROVOST_REFUSED" = REFUSED,
        "PROVOST_FAILED" = FAILED,
        "PROVOST_CONTAINS_PANICS" = CONTAINS_PANICS,
        "PROVOST_PASS" = PASS,
        "PROVOST_DENY" = DENY,
        "PROVOST_HOLD" = HOLD,
        "PROVOST_SIDE_CLIENT" = SIDE_CLIENT,
        "PROVOST_SIDE_SERVER" = SIDE_SERVER,
        "PROVOST_REQUEST" = REQUEST,
        "PROVOST_RESPONSE" = RESPONSE,
        "PROVOST_VALUE_ABSENT" = VALUE_ABSENT,
        "PROVOST_VALUE_BOOL" = VALUE_BOOL,
        "PROVOST_VALUE_INT" = VALUE_INT,
        "PROVOST_VALUE_UINT" = VALUE_UINT,
        "PROVOST_VALUE_DOUBLE" = VALUE_DOUBLE,
        "PROVOST_VALUE_STRING" = VALUE_STRING,
        "PROVOST_VALUE_BYTES" = VALUE_BYTES,
        "PROVOST_VALUE_MESSAGE" = VALUE_MESSAGE,
        "PROVOST_VALUE_LIST" = VALUE_LIST,
        "PROVOST_COUNTER" = METRIC_COUNTER,
        "PROVOST_GAUGE" = METRIC_GAUGE,
        "PROVOST_HISTOGRAM" = METRIC_HISTOGRAM,
        "PROVOST_BEGIN" = provost_engine::Parts::BEGIN.0,
        "PROVOST_HEADERS" = provost_engine::Parts::HEADERS.0,
        "PROVOST_MESSAGE" = provost_engine::Parts::MESSAGE.0,
        "PROVOST_END" = provost_engine::Parts::END.0,
        "PROVOST_STATUS" = provost_engine::Parts::STATUS.0,
        "PROVOST_CANCEL" = provost_engine::Parts::CANCEL.0,
        "PROVOST_WINDOW" = provost_engine::Parts::WINDOW.0,
    );
    out
}

#[test]
fn the_header_has_the_layout_of_the_types() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("layout.c");
    std::fs::write(&source, assertions()).unwrap();
    let compiled = Command::new("cc")
        .args([
            "-std=c11",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-fsyntax-only",
            "-I",
            "include",
        ])
        .arg(&source)
        .output()
        .expect("a C compiler, `cc`");
    let complaints = String::from_utf8_lossy(&compiled.stderr);
    assert!(compiled.status.success(), "{complaints}");
}
