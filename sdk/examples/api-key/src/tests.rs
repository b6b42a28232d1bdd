use super::*;
use provost_engine::rig::{Rig, Service, end_of, policy, with_metadata};

const PROTO: &str = "syntax = \"proto3\"; package t; message M {} service S { rpc Get(M) returns (M); }";

#[test]
fn only_calls_with_a_known_key_pass() {
    let service = Service::from_source(PROTO);
    let policy = policy(&*kind_of::<ApiKey>(), "keys = ['secret']", None).unwrap();
    let mut rig = Rig::new(service.datapath_context(Side::Server), &*policy);
    for (call, key) in [(1, "secret"), (2, "wrong")] {
        rig.receive(with_metadata(
            service.request(call, 0, &[]),
            &[("x-api-key", key)],
        ));
    }
    rig.poll();
    assert_eq!(rig.to_app().iter().map(|step| step.call).collect::<Vec<_>>(), [1]);
    assert_eq!(end_of(&rig.to_wire()[0]), Some(Code::Unauthenticated));
}

#[test]
fn a_configuration_without_keys_is_refused() {
    assert!(policy(&*kind_of::<ApiKey>(), "keys = []", None).is_err());
    assert!(policy(&*kind_of::<ApiKey>(), "key = 'misspelt'", None).is_err());
}
