use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, SanType};

use super::*;
use crate::{LoadedTls, Purpose, TlsHandshake, explain};

/// A trust domain's authority.
struct TestDomain {
    name: &'static str,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

/// A member, as its Workload API says it.
struct TestMember {
    id: String,
    chain: Vec<u8>,
    key: Vec<u8>,
}

impl TestDomain {
    fn new(name: &'static str) -> TestDomain {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        TestDomain { name, issuer }
    }

    fn bundle(&self) -> &[u8] {
        self.issuer.der()
    }

    fn member(&self, path: &str) -> TestMember {
        let id = format!("spiffe://{}/{path}", self.name);
        self.certify(&id, &[&id])
    }

    /// A member with a certificate of these names, whatever they are.
    fn certify(&self, id: &str, names: &[&str]) -> TestMember {
        let mut params = CertificateParams::default();
        params.subject_alt_names = names
            .iter()
            .map(|name| {
                if name.contains("://") {
                    SanType::URI((*name).try_into().unwrap())
                } else {
                    SanType::DnsName((*name).try_into().unwrap())
                }
            })
            .collect();
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        TestMember {
            id: id.to_owned(),
            chain: certificate.der().to_vec(),
            key: key.serialize_der(),
        }
    }
}

impl TestMember {
    fn parts<'a>(&'a self, bundle: &'a [u8], federated: &'a [(&'a str, &'a [u8])]) -> WorkloadParts<'a> {
        WorkloadParts {
            id: &self.id,
            chain: &self.chain,
            key: &self.key,
            bundle,
            federated,
            crls: &[],
        }
    }

    fn of(&self, domain: &TestDomain) -> WorkloadIdentity {
        WorkloadIdentity::new(&self.parts(domain.bundle(), &[])).unwrap()
    }

    fn federated(&self, domain: &TestDomain, other: &TestDomain) -> WorkloadIdentity {
        let id = format!("spiffe://{}", other.name);
        WorkloadIdentity::new(&self.parts(domain.bundle(), &[(&id, other.bundle())])).unwrap()
    }
}

/// What each end says of a handshake: the client, and then the server.
fn shaken(
    client: &WorkloadIdentity,
    server: &WorkloadIdentity,
    server_identities: &[&str],
) -> [Result<PeerIdentity, String>; 2] {
    let (client, server) = [client, server]
        .map(|end| LoadedTls::of_workload(end).unwrap())
        .into();
    let identities: Vec<String> = server_identities.iter().map(|id| (*id).to_owned()).collect();
    let client = TlsHandshake::client(&client.client_for(&identities), "server.test:1", Purpose::Records);
    let server = TlsHandshake::server(&server.server, Purpose::Records);
    let (mut client, mut server) = (client.unwrap(), server.unwrap());
    let mut faults = [None, None];
    for _ in 0..4 {
        let sent = client.output().unwrap();
        faults[1] = faults[1].take().or(server.input(&sent).err());
        let sent = server.output().unwrap();
        faults[0] = faults[0].take().or(client.input(&sent).err());
    }
    let said = |end: &TlsHandshake, fault: &Option<Error>| match fault {
        Some(error) => Err(explain(error)),
        None if end.is_done() => Ok(crate::identity(end.connection())),
        None => Err("it is not over".to_owned()),
    };
    [said(&client, &faults[0]), said(&server, &faults[1])]
}

fn spiffe(id: &str) -> Result<PeerIdentity, String> {
    Ok(PeerIdentity::Spiffe(id.to_owned()))
}

#[test]
fn members_of_one_trust_domain_believe_each_other() {
    let domain = TestDomain::new("one.test");
    let (a, b) = (domain.member("a").of(&domain), domain.member("b").of(&domain));
    assert_eq!(
        shaken(&a, &b, &["spiffe://one.test/*"]),
        [spiffe("spiffe://one.test/b"), spiffe("spiffe://one.test/a")]
    );
    let [client, _] = shaken(&a, &b, &["spiffe://one.test/c"]);
    assert!(client.unwrap_err().contains("spiffe://one.test/b"));
    let [client, _] = shaken(&a, &b, &[]);
    assert!(client.unwrap_err().contains("server_identities"));
    assert!(a.validity().is_some());
}

#[test]
fn other_trust_domains_are_believed_where_they_are_federated_and_on_their_own_members_alone() {
    let (one, two) = (TestDomain::new("one.test"), TestDomain::new("two.test"));
    let (a, b) = (one.member("a"), two.member("b"));
    let [client, _] = shaken(&a.of(&one), &b.federated(&two, &one), &["*"]);
    assert!(client.unwrap_err().contains("federate"));
    let [_, server] = shaken(&a.federated(&one, &two), &b.of(&two), &["*"]);
    assert!(server.unwrap_err().contains("spiffe://one.test/a"));
    assert_eq!(
        shaken(&a.federated(&one, &two), &b.federated(&two, &one), &["*"]),
        [spiffe("spiffe://two.test/b"), spiffe("spiffe://one.test/a")]
    );
    // An authority of the one domain vouches for somebody of the other.
    let forged = two.member("b");
    let forged = TestMember {
        id: "spiffe://one.test/b".to_owned(),
        ..two.certify(&forged.id, &["spiffe://one.test/b"])
    };
    let forged = forged.federated(&two, &one);
    let [client, _] = shaken(&a.federated(&one, &two), &forged, &["*"]);
    assert!(client.is_err());
}

#[test]
fn only_the_own_trust_domain_says_what_hosts_are_called() {
    let (one, two) = (TestDomain::new("one.test"), TestDomain::new("two.test"));
    let a = one.member("a");
    let host = |domain: &TestDomain| {
        let id = format!("spiffe://{}/b", domain.name);
        domain.certify(&id, &[&id, "server.test"])
    };
    let [client, _] = shaken(&a.of(&one), &host(&one).of(&one), &[]);
    assert_eq!(client, spiffe("spiffe://one.test/b"));
    let foreign = host(&two).federated(&two, &one);
    let [client, _] = shaken(&a.federated(&one, &two), &foreign, &[]);
    assert!(client.unwrap_err().contains("not of the host"));
    // Nor does a name of a host count as an identity.
    let [client, _] = shaken(&a.federated(&one, &two), &foreign, &["server.test"]);
    assert!(client.unwrap_err().contains("none of server_identities"));
}

#[test]
fn a_workload_without_an_answer_is_nobody_and_believes_nobody() {
    let domain = TestDomain::new("one.test");
    let a = domain.member("a").of(&domain);
    let nobody = WorkloadIdentity::default();
    assert!(nobody.is_nobody() && !a.is_nobody());
    assert!(shaken(&a, &nobody, &["*"]).iter().all(Result::is_err));
    let [client, _] = shaken(&nobody, &a, &["*"]);
    assert!(client.unwrap_err().contains("has not answered"));
    assert_eq!(
        LoadedTls::of_workload(&nobody).unwrap().identity,
        PeerIdentity::Anonymous
    );
}

#[test]
fn a_certificate_with_several_uri_names_is_no_svid() {
    let domain = TestDomain::new("one.test");
    let ids = ["spiffe://one.test/a", "spiffe://one.test/b"];
    let member = domain.certify(ids[0], &ids);
    let refused = WorkloadIdentity::new(&member.parts(domain.bundle(), &[])).unwrap_err();
    assert!(refused.to_string().contains("that alone"), "{refused}");
}

#[test]
fn answers_that_do_not_fit_are_refused_with_what_is_wrong() {
    let (one, two) = (TestDomain::new("one.test"), TestDomain::new("two.test"));
    let (a, b) = (one.member("a"), one.member("b"));
    let good = a.parts(one.bundle(), &[]);
    let bad_federated: [(&str, &[u8]); 1] = [("spiffe://two.test", b"no certificate")];
    let many = vec![("spiffe://two.test", two.bundle()); TRUST_DOMAINS_MAX + 1];
    let long = a.chain.repeat(CHAIN_CERTIFICATES_MAX + 1);
    for (parts, said) in [
        (WorkloadParts { id: "a", ..good }, "is no SPIFFE id"),
        (WorkloadParts { id: &b.id, ..good }, "it names"),
        (WorkloadParts { key: &b.key, ..good }, "the key of"),
        (WorkloadParts { key: &[], ..good }, "the key of"),
        (WorkloadParts { chain: &[], ..good }, "there is none"),
        (
            WorkloadParts {
                chain: &a.chain[1..],
                ..good
            },
            "the certificate of",
        ),
        (WorkloadParts { chain: &long, ..good }, "16 are taken"),
        (WorkloadParts { bundle: &[], ..good }, "the bundle of one.test"),
        (
            WorkloadParts {
                bundle: &[0x30, 0],
                ..good
            },
            "the bundle of one.test",
        ),
        (
            WorkloadParts {
                federated: &bad_federated,
                ..good
            },
            "the bundle of two.test",
        ),
        (
            WorkloadParts {
                federated: &many,
                ..good
            },
            "256 are taken",
        ),
        (
            WorkloadParts {
                crls: &[b"no list"],
                ..good
            },
            "the bundle of one.test",
        ),
    ] {
        let refused = WorkloadIdentity::new(&parts).unwrap_err().to_string();
        assert!(refused.contains(said), "{refused}: {said}");
    }
}

#[test]
fn whatever_is_cut_or_changed_in_an_answer_is_refused_or_taken_without_harm() {
    let domain = TestDomain::new("one.test");
    let member = domain.member("a");
    let bundle = domain.bundle();
    for at in 0..member.chain.len() {
        let cut = WorkloadParts {
            chain: &member.chain[..at],
            ..member.parts(bundle, &[])
        };
        assert!(WorkloadIdentity::new(&cut).is_err());
    }
    for at in 0..bundle.len() {
        let mut changed = bundle.to_vec();
        changed[at] ^= 0xff;
        let _ = WorkloadIdentity::new(&member.parts(&changed, &[]));
        assert!(WorkloadIdentity::new(&member.parts(&bundle[..at], &[])).is_err());
    }
}

#[test]
fn trust_domains_are_those_of_the_specification() {
    for id in ["spiffe://a.b-c_1", "spiffe://a/b", "spiffe://1/b/c"] {
        assert!(trust_domain(id).is_ok(), "{id}");
    }
    let long = format!("spiffe://{}", "a".repeat(256));
    for id in [
        "",
        "a",
        "https://a",
        "spiffe://",
        "spiffe:///a",
        "spiffe://A",
        "spiffe://a:1",
        &long,
    ] {
        assert!(trust_domain(id).is_err(), "{id}");
    }
}

#[test]
fn what_fuzzing_starts_from_is_a_good_answer() {
    let bundle = include_bytes!("fixtures/svid-bundle.der");
    let parts = WorkloadParts {
        id: "spiffe://fuzz.test/node",
        chain: include_bytes!("fixtures/svid.der"),
        key: include_bytes!("fixtures/svid-key.der"),
        bundle,
        federated: &[("spiffe://other.test", bundle)],
        crls: &[],
    };
    assert_eq!(WorkloadIdentity::new(&parts).unwrap().trust_domains().count(), 2);
    crate::fuzzing::svid(&crate::fuzzing::svid_seed());
}
