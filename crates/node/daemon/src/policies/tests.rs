//! Tests of the table alone: what changes make of it, without datapaths.

use std::path::Path;
use std::sync::Arc;

use provost_engine::NoEvents;

use super::keeping::{PoliciesNotKept, PolicyFile};
use super::kept::KeptPolicies;
use super::testing::Probe;
use super::{
    Attachment, Change, ChangeError, Maker, Origin, Policies, Position, Reach, Registry, Table, Upgrade,
};
use crate::transport::TransportKind;

fn registry() -> Arc<Registry> {
    let registry = Registry::with_built_ins();
    for version in 1..=3 {
        registry
            .add(Arc::new(Probe::of_version(version)), Origin::BuiltIn)
            .unwrap();
    }
    Arc::new(registry)
}

fn maker() -> Maker {
    Maker::new(registry(), "node".into(), Arc::new(NoEvents))
}

fn probe(name: &str, version: Option<u32>) -> Attachment {
    Attachment {
        name: name.to_owned(),
        version,
        ..Attachment::of_kind("probe")
    }
}

fn changed(maker: &Maker, table: &Table, change: Change) -> Table {
    maker.changed(table, &change).unwrap()
}

fn table_of(maker: &Maker, names: &[&str]) -> Table {
    let attachments = names.iter().map(|name| probe(name, Some(1))).collect();
    changed(maker, &Table::default(), Change::Apply { attachments })
}

fn names(table: &Table) -> Vec<&str> {
    table.entries.iter().map(|entry| &*entry.live.name).collect()
}

fn versions(table: &Table) -> Vec<u32> {
    table
        .entries
        .iter()
        .map(|entry| entry.live.kind.version())
        .collect()
}

fn upgrade(version: Option<u32>, reach: Reach) -> Change {
    Change::Upgrade(Upgrade {
        kind: "probe".into(),
        version,
        policy: None,
        reach,
    })
}

#[test]
fn an_attachment_comes_where_it_is_told_to_and_no_name_is_there_twice() {
    let maker = maker();
    let table = table_of(&maker, &["a", "c"]);
    let attach = |name: &str, at| Change::Attach {
        attachment: probe(name, None),
        at,
    };
    let table = changed(&maker, &table, attach("b", Position::At(1)));
    let table = changed(&maker, &table, attach("d", Position::Last));
    assert_eq!(names(&table), ["a", "b", "c", "d"]);
    assert_eq!(versions(&table), [1, 3, 1, 3], "the newest is the default");
    let twice = maker.changed(&table, &attach("a", Position::Last));
    assert!(matches!(twice, Err(ChangeError::NameTaken { .. })));
}

#[test]
fn an_order_names_each_policy_once() {
    let maker = maker();
    let table = table_of(&maker, &["a", "b", "c"]);
    let order = |names: &[&str]| Change::Order {
        names: names.iter().map(|name| (*name).to_owned()).collect(),
    };
    let tags = |table: &Table| -> Vec<_> { table.instances().map(|instance| instance.tag).collect() };
    let turned = changed(&maker, &table, order(&["c", "a", "b"]));
    assert_eq!(names(&turned), ["c", "a", "b"]);
    let (mut before, mut after) = (tags(&table), tags(&turned));
    before.sort();
    after.sort();
    assert_eq!(before, after, "the instances are the same");
    for bad in [
        order(&["a", "b"]),
        order(&["a", "b", "b"]),
        order(&["a", "b", "x"]),
    ] {
        assert!(matches!(
            maker.changed(&table, &bad),
            Err(ChangeError::Order { .. })
        ));
    }
}

#[test]
fn a_new_table_keeps_what_is_the_same_and_continues_what_is_not() {
    let maker = maker();
    let table = table_of(&maker, &["same", "other", "gone"]);
    let mut other = probe("other", Some(1));
    other.config.insert("x".into(), toml::Value::Integer(1));
    let attachments = vec![other, probe("same", Some(1)), probe("new", None)];
    let next = changed(&maker, &table, Change::Apply { attachments });
    assert_eq!(names(&next), ["other", "same", "new"]);
    let tag = |table: &Table, name: &str| table.find(name).unwrap().live.tag;
    assert_eq!(tag(&table, "same"), tag(&next, "same"));
    assert_ne!(tag(&table, "other"), tag(&next, "other"));
    // A probe counts its predecessors in what it shares.
    let inherited = |name: &str| next.find(name).unwrap().live.policy.save().version;
    assert_eq!((inherited("other"), inherited("new")), (2, 1));
    let bad = vec![probe("fine", None), Attachment::of_kind("none-such")];
    let refused = maker.changed(&table, &Change::Apply { attachments: bad });
    assert!(matches!(refused, Err(ChangeError::Kind { .. })));
}

#[test]
fn a_version_goes_to_all_or_to_some_and_back() {
    let maker = maker();
    let table = table_of(&maker, &["a", "b"]);
    let back = || Change::Rollback {
        engine: "probe".into(),
    };
    assert!(matches!(
        maker.changed(&table, &back()),
        Err(ChangeError::NothingBefore { .. })
    ));
    let some = changed(&maker, &table, upgrade(Some(2), Reach::App("shop".into())));
    assert_eq!((versions(&some), some.instances().count()), (vec![1, 1], 4));
    let none = changed(&maker, &some, back());
    assert_eq!((versions(&none), none.instances().count()), (vec![1, 1], 2));
    let all = changed(&maker, &some, upgrade(None, Reach::All));
    assert_eq!((versions(&all), all.instances().count()), (vec![3, 3], 2));
    let rolled_back = changed(&maker, &all, back());
    assert_eq!(versions(&rolled_back), [1, 1]);
    assert!(matches!(
        maker.changed(&rolled_back, &back()),
        Err(ChangeError::NothingBefore { .. })
    ));
    let unknown = maker.changed(&table, &upgrade(Some(9), Reach::All));
    assert!(matches!(unknown, Err(ChangeError::Kind { .. })));
    let transport = Change::Upgrade(Upgrade {
        kind: "transport-tcp".into(),
        version: None,
        policy: None,
        reach: Reach::All,
    });
    let table = changed(&maker, &table, transport);
    assert_eq!(table.transports.current(TransportKind::Tcp), 2);
}

#[test]
fn exceptions_for_connections_that_have_ended_are_forgotten() {
    let maker = maker();
    let table = table_of(&maker, &["a"]);
    let table = changed(&maker, &table, upgrade(Some(2), Reach::Connection(7)));
    let mut table = changed(&maker, &table, upgrade(Some(2), Reach::App("shop".into())));
    assert_eq!(table.instances().count(), 3);
    table.forget_connections(|number| number != 7);
    assert_eq!(table.instances().count(), 2);
}

#[test]
fn a_configuration_that_is_set_keeps_the_version_that_an_upgrade_brought() {
    let maker = maker();
    let table = table_of(&maker, &["a"]);
    let table = changed(&maker, &table, upgrade(Some(2), Reach::All));
    let set = |config| Change::Set {
        name: "a".into(),
        config,
    };
    let table = changed(&maker, &table, set(toml::Table::new()));
    assert_eq!(versions(&table), [2]);
    let refused = toml::Table::from_iter([("refuse".to_owned(), toml::Value::Boolean(true))]);
    let refused = maker.changed(&table, &set(refused)).err().unwrap().to_string();
    assert_eq!(refused, "policy \"a\": config: refuse: as asked");
}

#[test]
fn a_version_that_is_gone_goes_on_in_the_oldest_that_is_not() {
    let registry = &maker().registry;
    let after = [0, 1, 2, 3].map(|version| registry.version_after("probe", version));
    assert_eq!(after, [1, 1, 2, 3]);
    assert_eq!(
        registry.version_after("rate-limit", 1),
        2,
        "there is no version 1 any more"
    );
    assert_eq!(
        registry.version_after("probe", 4),
        4,
        "no version reads what a later one saves"
    );
    assert_eq!(registry.version_after("nobody", 1), 1);
}

#[test]
fn a_policy_that_is_as_configured_is_told_where_that_stands() {
    let maker = maker();
    maker.set_place("/etc/provost/provostd.toml");
    let configured = probe("a", None);
    maker.set_configured(std::slice::from_ref(&configured));
    assert_eq!(&*maker.place_of(&configured), "/etc/provost/provostd.toml");
    assert_eq!(
        &*maker.place_of(&probe("a", Some(2))),
        "/etc/provost/provostd.toml"
    );
    assert_eq!(&*maker.place_of(&probe("b", None)), "");
    let mut changed = configured;
    changed.config.insert("key".to_owned(), 1.into());
    assert_eq!(&*maker.place_of(&changed), "");
}

#[test]
fn policies_are_written_to_their_file_only_when_they_have_changed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("policies.toml");
    let policies = Policies::new(registry(), "node", Arc::new(NoEvents));
    policies.begin(vec![probe("a", Some(1))]).unwrap();
    policies.keep_in(path.clone());
    let change = |change| policies.commit(changed(&policies.maker, &policies.table(), change));
    let kept = || KeptPolicies::read(&path).unwrap().map(|kept| kept.policy);
    change(upgrade(Some(2), Reach::All));
    assert_eq!(kept(), Some(vec![probe("a", Some(2))]));
    // An engine is started anew and its version is as before: a file that is not there stays away.
    std::fs::remove_file(&path).unwrap();
    change(upgrade(Some(2), Reach::All));
    assert_eq!(kept(), None);
    change(upgrade(Some(3), Reach::All));
    assert_eq!(kept(), Some(vec![probe("a", Some(3))]));
    // What could not be written is tried again, also if nothing differs from what was to be written then.
    std::fs::remove_file(&path).unwrap();
    std::fs::create_dir(&path).unwrap();
    change(upgrade(Some(2), Reach::All));
    assert!(policies.keep_failure().is_some());
    std::fs::remove_dir(&path).unwrap();
    change(upgrade(Some(2), Reach::All));
    assert_eq!(
        (kept(), policies.keep_failure()),
        (Some(vec![probe("a", Some(2))]), None)
    );
}

/// A start of a service that has these policies in its configuration.
fn started(configured: &[Attachment], path: &Path, is_persistent: bool) -> Result<Policies, PoliciesNotKept> {
    let policies = Policies::new(registry(), "node", Arc::new(NoEvents));
    policies.begin(configured.to_vec()).unwrap();
    let file = PolicyFile {
        path,
        control_socket: Path::new("/run/a.sock"),
        is_persistent,
    };
    policies.take_up(&file).map(|()| policies)
}

#[test]
fn a_start_does_not_go_on_without_what_a_damaged_file_may_have_had() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("policies.toml");
    let configured = [probe("a", Some(1))];
    for damaged in ["", "configured = []\npolicy = ["] {
        std::fs::write(&path, damaged).unwrap();
        // Nor does the next attempt.
        for _ in 0..2 {
            let error = started(&configured, &path, true).err().unwrap().to_string();
            for part in ["policies.toml: ", "does not start", "mv ", "policies.toml.bad"] {
                assert!(error.contains(part), "{error}");
            }
            assert_eq!(std::fs::read_to_string(&path).unwrap(), damaged);
        }
        // Where nothing of it is wanted it is said to be lost, and is still there.
        let policies = started(&configured, &path, false).unwrap();
        assert!(policies.lost().unwrap().contains("cannot be read"));
        let aside = match damaged {
            "" => "policies.toml.bad",
            _ => "policies.toml.bad.2",
        };
        let aside = directory.path().join(aside);
        assert!(
            policies
                .lost()
                .unwrap()
                .ends_with(&format!("{}", aside.display()))
        );
        assert_eq!(std::fs::read_to_string(&aside).unwrap(), damaged);
        assert!(!path.exists());
    }
}

#[test]
fn what_is_not_gone_on_with_is_kept_aside_and_the_rest_stays() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("policies.toml");
    let aside = directory.path().join("policies.toml.old");
    let mut refused = probe("b", None);
    refused.config.insert("refuse".into(), true.into());
    let gone = Attachment {
        name: "gone".into(),
        ..Attachment::of_kind("of-a-library")
    };
    let configured = vec![probe("a", Some(1)), probe("b", Some(1))];
    let kept = KeptPolicies {
        configured: configured.clone(),
        policy: vec![probe("first", Some(1)), gone, refused, probe("last", Some(2))],
    };
    kept.write(&path).unwrap();
    let policies = started(&configured, &path, true).unwrap();
    assert_eq!(names(&policies.table()), ["first", "b", "last"]);
    let said = policies.lost().unwrap();
    assert!(
        said.contains("\"gone\" is not attached: ") && said.contains("of-a-library"),
        "{said}"
    );
    assert!(said.contains("\"b\" is as configured: "), "{said}");
    assert!(said.contains(&format!("{} has them", aside.display())), "{said}");
    assert_eq!(KeptPolicies::read(&aside).unwrap().as_ref(), Some(&kept));
    drop(policies);
    // What is left of it is no loss at the next start.
    let policies = started(&configured, &path, true).unwrap();
    assert_eq!(names(&policies.table()), ["first", "b", "last"]);
    assert_eq!(policies.lost(), None);
    drop(policies);

    // Of another configuration: that one counts.
    let other = vec![probe("newer", None)];
    let policies = started(&other, &path, true).unwrap();
    assert_eq!(names(&policies.table()), ["newer"]);
    let said = policies.lost().unwrap();
    assert!(
        said.contains("attached \"first\"") && said.contains("not those of then"),
        "{said}"
    );
    assert!(!said.contains("admin.persist"), "{said}");
    let second = directory.path().join("policies.toml.old.2");
    assert_eq!(
        KeptPolicies::read(&second).unwrap().unwrap().policy[0],
        probe("first", Some(1))
    );
    assert!(!path.exists());
}

#[test]
fn a_policies_file_of_another_service_is_not_taken() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("policies.toml");
    let first = started(&[], &path, true).unwrap();
    let error = started(&[], &path, true).err().unwrap().to_string();
    assert!(
        error.contains("control.socket /run/a.sock") && error.contains("name another file"),
        "{error}"
    );
    // A process that takes over has it, once the one before has let it go.
    first.keep_no_more();
    started(&[], &path, false).unwrap();
}
