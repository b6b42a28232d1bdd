//! What a function belongs to, by its name: a codec, a filter, or the rest of the proxy.

use provost_insight::profile::Component;

/// Parts of names of C++ classes of Envoy's codecs and of the libraries below them, mangled: each word has its length before
/// it.
const CODEC_CLASSES: [&str; 12] = [
    "5Envoy4Http5Http1",
    "5Envoy4Http5Http2",
    "5Envoy4Http19CodecClient",
    "5Envoy4Grpc6Common",
    "7http210adapter",
    "8http2",
    "5http2",
    "6quiche5Balsa",
    "6quiche11Balsa",
    "6quiche12HttpDecoder",
    "4spdy",
    "5hpack",
];
/// Beginnings of functions of C programs' codecs.
const CODEC_FUNCTIONS: [&str; 15] = [
    "ngx_http_parse_",
    "ngx_http_process_request",
    "ngx_http_v2_",
    "ngx_http_huff_",
    "ngx_http_grpc_",
    "ngx_http_discard_",
    "ngx_http_chunked_",
    "h1_",
    "h2_",
    "hpack_",
    "http_parse_",
    "htx_",
    "nghttp2_",
    "HPACK",
    "hdr_",
];
/// Parts of names of functions of Rust programs' codecs: a node's own, and those of the usual libraries.
const CODEC_CRATES: [&str; 4] = ["provost_http2", "provost_grpc", "_ZN2h2", "5hyper5proto"];
/// Beginnings of functions of Rust programs that work for whoever calls them.
const HELPER_CRATES: [&str; 5] = ["_ZN4core", "_ZN5alloc", "_ZN3std", "_ZN9hashbrown", "_ZN5bytes"];
/// Before the name of a filter's own namespace.
const FILTER_NAMESPACE: &str = "5Envoy10Extensions11HttpFilters";

/// Parts of names of classes that work for whoever calls them: buffers, maps of headers, counters, libraries.
const HELPER_CLASSES: [&str; 10] = [
    "5Envoy6Buffer",
    "5Envoy4Http9HeaderMap",
    "5Envoy4Http12HeaderString",
    "5Envoy4Http13HeaderMap",
    "5Envoy4Http16RequestHeaderMap",
    "5Envoy4Http17ResponseHeaderMap",
    "5Envoy5Stats",
    "4absl",
    "St3__",
    "6google8protobuf",
];
/// Beginnings of functions of C programs that do.
const HELPER_FUNCTIONS: [&str; 14] = [
    "ngx_palloc",
    "ngx_pcalloc",
    "ngx_pnalloc",
    "ngx_alloc",
    "ngx_array_",
    "ngx_hash_",
    "ngx_list_",
    "ngx_str",
    "ngx_cpystrn",
    "ngx_sprintf",
    "ngx_vslprintf",
    "ngx_rbtree_",
    "pool_",
    "chunk_",
];

/// The part of a proxy that a named function belongs to; `None` of one that works for its caller.
pub(crate) fn owner(name: &str) -> Option<Component> {
    if let Some(filter) = filter_name(name) {
        return Some(Component::Filter(filter));
    }
    if name.starts_with("_ZN") {
        return rust_owner(name);
    }
    let is_class = name.starts_with('N') || name.starts_with(|first: char| first.is_ascii_digit());
    let is_helper = if is_class {
        HELPER_CLASSES.iter().any(|part| name.contains(part))
    } else {
        HELPER_FUNCTIONS
            .iter()
            .any(|beginning| name.starts_with(beginning))
    };
    if is_helper {
        return None;
    }
    let is_codec = if is_class {
        CODEC_CLASSES.iter().any(|part| name.contains(part))
    } else {
        CODEC_FUNCTIONS
            .iter()
            .any(|beginning| name.starts_with(beginning))
    };
    Some(if is_codec {
        Component::Parse
    } else {
        Component::OtherUser
    })
}

/// The same of a function of a Rust program.
fn rust_owner(name: &str) -> Option<Component> {
    if CODEC_CRATES.iter().any(|part| name.contains(part)) {
        return Some(Component::Parse);
    }
    let is_helper = HELPER_CRATES.iter().any(|beginning| name.starts_with(beginning));
    (!is_helper).then_some(Component::OtherUser)
}

/// Namespaces of filters that are none's: what all share, and the router, without which there is no proxy.
const NO_FILTERS: [&str; 2] = ["Common", "RouterFilter"];

/// The namespace that follows that of all filters.
fn filter_name(name: &str) -> Option<String> {
    let (_, rest) = name.split_once(FILTER_NAMESPACE)?;
    let digits = rest.len()
        - rest
            .trim_start_matches(|letter: char| letter.is_ascii_digit())
            .len();
    let length: usize = rest[..digits].parse().ok()?;
    let word = rest[digits..].get(..length)?;
    (!NO_FILTERS.contains(&word)).then(|| word.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_codecs_filters_and_the_rest_apart() {
        assert_eq!(
            owner("N5Envoy4Http5Http120ServerConnectionImplE"),
            Some(Component::Parse)
        );
        assert_eq!(owner("ngx_http_parse_request_line"), Some(Component::Parse));
        assert_eq!(owner("h2_io_cb"), Some(Component::Parse));
        assert_eq!(
            owner("N5Envoy4Http21ConnectionManagerImplE"),
            Some(Component::OtherUser)
        );
        assert_eq!(owner("ngx_http_upstream_init"), Some(Component::OtherUser));
        assert_eq!(
            owner("N5Envoy10Extensions11HttpFilters3Lua6FilterE"),
            Some(Component::Filter("Lua".into()))
        );
        assert_eq!(
            owner("N5Envoy10Extensions11HttpFilters6Common9ThingE"),
            Some(Component::OtherUser)
        );
        assert_eq!(
            owner("_ZN13provost_http210connection4read17h1E"),
            Some(Component::Parse)
        );
        assert_eq!(
            owner("_ZN15provost_runtime4poll17h1E"),
            Some(Component::OtherUser)
        );
        assert_eq!(owner("_ZN5alloc3vec4grow17h1E"), None);
        assert_eq!(owner("N5Envoy6Buffer9OwnedImplE"), None);
        assert_eq!(owner("ngx_palloc"), None);
        assert_eq!(
            owner("N5Envoy10Extensions11HttpFilters99Lua"),
            Some(Component::OtherUser)
        );
    }
}
