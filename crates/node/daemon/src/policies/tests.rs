//! Tests of the table alone: what changes make of it, without datapaths.

use std::sync::Arc;

use provost_engine::NoEvents;

use super::testing::Probe;
use super::{
    Attachment, Change, ChangeError, KeptPolicies, Maker, Origin, Policies, Position, Reach, Registry, Table,
    Upgrade,
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
