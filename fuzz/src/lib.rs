//! Fuzz targets for everything that reads what somebody else wrote, as plain functions.
//!
//! A target takes any bytes and must not panic, hang, or break what it asserts. [`TARGETS`] lists them with seeds of
//! well-formed input; [`drive`](driver::drive) mutates those, and `provost-libfuzzer` hands the same functions to libFuzzer.
#![forbid(unsafe_code)]

mod codec;
mod configuration;
mod datagram;
pub mod driver;
mod expression;
mod frames;
mod insight;
mod message;
mod requests;
mod restore;
mod saved;
mod session;
mod store;
mod subject;
mod submission;
mod wire;

/// A parser under test.
pub struct Target {
    /// What the command line calls it.
    pub name: &'static str,
    /// Reads any bytes.
    pub run: fn(&[u8]),
    /// Well-formed inputs to start from.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

pub const TARGETS: &[Target] = &[
    Target {
        name: "metadata",
        run: wire::metadata,
        seeds: wire::metadata_seeds,
    },
    Target {
        name: "control",
        run: wire::control,
        seeds: wire::control_seeds,
    },
    Target {
        name: "frame_header",
        run: wire::frame_header,
        seeds: wire::frame_header_seeds,
    },
    Target {
        name: "schema",
        run: message::schema,
        seeds: message::schema_seeds,
    },
    Target {
        name: "schema_store",
        run: store::schema_store,
        seeds: message::schema_seeds,
    },
    Target {
        name: "native",
        run: message::native,
        seeds: message::native_seeds,
    },
    Target {
        name: "protobuf",
        run: message::protobuf,
        seeds: message::protobuf_seeds,
    },
    Target {
        name: "codec_bytes",
        run: codec::bytes,
        seeds: codec::bytes_seeds,
    },
    Target {
        name: "codec_json",
        run: codec::json,
        seeds: codec::json_seeds,
    },
    Target {
        name: "gather",
        run: message::gather,
        seeds: message::gather_seeds,
    },
    Target {
        name: "handshake",
        run: session::handshake,
        seeds: session::handshake_seeds,
    },
    Target {
        name: "connection",
        run: session::connection,
        seeds: session::connection_seeds,
    },
    Target {
        name: "frames",
        run: frames::frames,
        seeds: frames::frames_seeds,
    },
    Target {
        name: "datagram",
        run: datagram::packets,
        seeds: datagram::packets_seeds,
    },
    Target {
        name: "datagram_calls",
        run: provost_datagram_rpc::fuzzing::calls,
        seeds: provost_datagram_rpc::fuzzing::seeds,
    },
    Target {
        name: "saved_steps",
        run: saved::steps,
        seeds: saved::steps_seeds,
    },
    Target {
        name: "saved_connection",
        run: saved::connection,
        seeds: saved::connection_seeds,
    },
    Target {
        name: "saved_tls_session",
        run: provost_tls::fuzzing::saved,
        seeds: || vec![provost_tls::fuzzing::saved_seed()],
    },
    Target {
        name: "tls_records",
        run: saved::tls_records,
        seeds: saved::tls_records_seeds,
    },
    Target {
        name: "svid",
        run: provost_tls::fuzzing::svid,
        seeds: || vec![provost_tls::fuzzing::svid_seed()],
    },
    Target {
        name: "tls_stream",
        run: provost_tls::fuzzing::stream,
        seeds: || vec![provost_tls::fuzzing::stream_seed()],
    },
    Target {
        name: "http2_server",
        run: provost_http2::fuzzing::server,
        seeds: provost_http2::fuzzing::server_seeds,
    },
    Target {
        name: "http2_client",
        run: provost_http2::fuzzing::client,
        seeds: provost_http2::fuzzing::client_seeds,
    },
    Target {
        name: "hpack",
        run: provost_http2::fuzzing::hpack,
        seeds: provost_http2::fuzzing::hpack_seeds,
    },
    Target {
        name: "saved_http2",
        run: provost_http2::fuzzing::saved,
        seeds: provost_http2::fuzzing::saved_seeds,
    },
    Target {
        name: "grpc_server",
        run: provost_grpc::fuzzing::server,
        seeds: provost_grpc::fuzzing::server_seeds,
    },
    Target {
        name: "grpc_heads",
        run: provost_grpc::fuzzing::heads,
        seeds: provost_grpc::fuzzing::heads_seeds,
    },
    Target {
        name: "grpc_messages",
        run: provost_grpc::fuzzing::messages,
        seeds: provost_grpc::fuzzing::messages_seeds,
    },
    Target {
        name: "saved_grpc_client",
        run: provost_frontend_grpc::fuzzing::saved,
        seeds: provost_frontend_grpc::fuzzing::saved_seeds,
    },
    Target {
        name: "saved_grpc",
        run: provost_grpc::fuzzing::saved,
        seeds: provost_grpc::fuzzing::saved_seeds,
    },
    Target {
        name: "saved_grpc_links",
        run: provost_transport_grpc::fuzzing::saved,
        seeds: provost_transport_grpc::fuzzing::saved_seeds,
    },
    Target {
        name: "told_schema",
        run: provostd::fuzzing::told_schema,
        seeds: provostd::fuzzing::told_schema_seeds,
    },
    Target {
        name: "submissions",
        run: submission::submissions,
        seeds: submission::submissions_seeds,
    },
    Target {
        name: "saved_frontend",
        run: restore::frontend,
        seeds: restore::frontend_seeds,
    },
    Target {
        name: "saved_local_pair",
        run: restore::local_pair,
        seeds: restore::local_pair_seeds,
    },
    Target {
        name: "saved_port",
        run: restore::port,
        seeds: restore::port_seeds,
    },
    Target {
        name: "saved_filter",
        run: restore::filter,
        seeds: restore::filter_seeds,
    },
    Target {
        name: "saved_node",
        run: provostd::hot_restart::fuzzing::saved_node,
        seeds: provostd::hot_restart::fuzzing::saved_node_seeds,
    },
    Target {
        name: "control_requests",
        run: requests::requests,
        seeds: requests::requests_seeds,
    },
    Target {
        name: "configuration",
        run: configuration::configuration,
        seeds: configuration::configuration_seeds,
    },
    Target {
        name: "expression",
        run: expression::expression,
        seeds: expression::expression_seeds,
    },
    Target {
        name: "value_list",
        run: expression::value_list,
        seeds: expression::value_list_seeds,
    },
    Target {
        name: "insight_profile",
        run: insight::profile,
        seeds: insight::profile_seeds,
    },
    Target {
        name: "insight_call_graph",
        run: insight::call_graph,
        seeds: insight::call_graph_seeds,
    },
    Target {
        name: "insight_jaeger",
        run: insight::jaeger_traces,
        seeds: insight::jaeger_seeds,
    },
    Target {
        name: "insight_otlp",
        run: insight::otlp_traces,
        seeds: insight::otlp_seeds,
    },
    Target {
        name: "insight_alibaba",
        run: insight::alibaba_traces,
        seeds: insight::alibaba_seeds,
    },
    Target {
        name: "insight_nezha",
        run: insight::nezha_traces,
        seeds: insight::nezha_seeds,
    },
    Target {
        name: "insight_program",
        run: insight::program,
        seeds: insight::program_seeds,
    },
    Target {
        name: "insight_access_log",
        run: insight::access_log,
        seeds: insight::access_log_seeds,
    },
    Target {
        name: "insight_workload",
        run: insight::workload,
        seeds: insight::workload_seeds,
    },
    Target {
        name: "insight_metrics",
        run: insight::node_metrics,
        seeds: insight::node_metrics_seeds,
    },
];

/// The target of this name.
#[must_use]
pub fn target(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}

#[cfg(test)]
mod tests {
    use provost_random::SeededRandom;

    use super::*;

    #[test]
    fn every_target_takes_its_seeds_and_their_prefixes() {
        for target in TARGETS {
            let seeds = (target.seeds)();
            assert!(!seeds.is_empty(), "{} has no seed", target.name);
            for seed in seeds {
                (target.run)(&seed);
                let cuts = (0..seed.len()).step_by(seed.len() / 64 + 1);
                cuts.for_each(|cut| (target.run)(&seed[..cut]));
            }
        }
    }

    #[test]
    fn every_target_takes_its_kept_corpus() {
        let corpora = concat!(env!("CARGO_MANIFEST_DIR"), "/corpora");
        let mut inputs = 0;
        for folder in std::fs::read_dir(corpora).unwrap() {
            let folder = folder.unwrap();
            let name = folder.file_name().into_string().unwrap();
            let target = target(&name).expect("a folder for a target");
            for file in std::fs::read_dir(folder.path()).unwrap() {
                (target.run)(&std::fs::read(file.unwrap().path()).unwrap());
                inputs += 1;
            }
        }
        assert!(inputs > 0, "{corpora} is empty");
    }

    /// Inputs of a test that starts a node for each.
    const NODES: u64 = 24;

    #[test]
    fn control_requests_in_any_order_are_answered_and_the_node_goes_on() {
        let target = target("control_requests").unwrap();
        for seed in 0..NODES {
            let mut random = SeededRandom::new(seed);
            println!("seed {seed}");
            (target.run)(&random.bytes(64));
        }
    }

    #[test]
    fn a_state_of_a_node_that_is_changed_anywhere_is_restored_or_refused() {
        let target = target("saved_node").unwrap();
        for seed in 0..NODES {
            let mut random = SeededRandom::new(seed);
            println!("seed {seed}");
            let mut input = random.pick(&(target.seeds)()).clone();
            for _ in 0..4 {
                let at = random.index(input.len());
                input[at] = random.number() as u8;
            }
            (target.run)(&input);
        }
    }

    #[test]
    fn names_are_unique() {
        for target in TARGETS {
            let others = TARGETS.iter().filter(|other| other.name == target.name);
            assert_eq!(others.count(), 1, "{}", target.name);
        }
    }
}
