//! Engines of several datapaths of one runtime: who goes first, how much, and that nobody starves.

use std::sync::Arc;

use proptest::prelude::*;
use prost_reflect::Value;
use provost_engine::rig::churn::{Churn, Make, run};
use provost_engine::rig::{Rig, Service, metric, policy};
use provost_engine::{Code, Nanos, Parts, Policy, SharedState, Side, Step};
use provost_policies::kind;

const MICROSECOND: Nanos = 1000;
const BOOT: Nanos = 1_000_000_000_000;
/// A message of about this length is a large one.
const LARGE: usize = 32 << 10;

fn service() -> Service {
    Service::from_source(
        "syntax = 'proto3'; package test; service S { rpc M(Q) returns (Q); } message Q { string text = 1; }",
    )
}

fn qos(text: &str) -> Arc<dyn Policy> {
    policy(&*kind("qos").unwrap(), text, None).unwrap()
}

/// A datapath of an app.
fn rig(service: &Service, app: &str, policy: &dyn Policy) -> Rig {
    let mut datapath_context = service.datapath_context(Side::Client);
    let mut identity = (*datapath_context.app).clone();
    identity.name = app.into();
    datapath_context.app = Arc::new(identity);
    let mut rig = Rig::new(datapath_context, policy);
    rig.now = BOOT;
    rig
}

fn call(service: &Service, id: u64, bytes: usize) -> Step {
    service.request(id, 0, &[("text", Value::String("x".repeat(bytes)))])
}

fn due(service: &Service, id: u64, deadline: Nanos) -> Step {
    let mut step = call(service, id, LARGE);
    step.deadline = BOOT + deadline;
    step
}

/// What comes out in a round of the runtime.
fn round(rig: &mut Rig, now: Nanos) -> Vec<u64> {
    rig.poll_at(now);
    rig.to_wire().iter().map(|step| step.call).collect()
}

/// Has both go through some rounds, so that each knows of the other.
fn meet(service: &Service, rigs: &mut [&mut Rig], bytes: usize) {
    for id in 0..3 {
        for rig in &mut *rigs {
            rig.send(call(service, 1_000_000 + id, bytes));
            let now = rig.now + 1;
            round(rig, now);
        }
    }
}

#[test]
fn an_app_alone_is_not_held_back() {
    let service = service();
    let qos = qos("");
    let mut bulk = rig(&service, "bulk", &*qos);
    for id in 0..40 {
        bulk.send(call(&service, id, LARGE));
    }
    assert_eq!(round(&mut bulk, BOOT), (0..40).collect::<Vec<_>>());
    assert!(!bulk.flow.is_limited());
}

#[test]
fn beside_small_calls_large_ones_have_a_share_in_each_round() {
    let service = service();
    let qos = qos("bulk_bytes = 65536");
    let mut small = rig(&service, "small", &*qos);
    let mut bulk = rig(&service, "bulk", &*qos);
    small.send(call(&service, 0, 10));
    assert_eq!(round(&mut small, BOOT), [0]);
    for id in 0..16 {
        bulk.send(call(&service, id, LARGE));
    }
    // Two messages and a little are a share; the credit is what is left of it.
    let mut out = Vec::new();
    for at in 1..8 {
        let came = round(&mut bulk, BOOT + at);
        assert!((1..=2).contains(&came.len()), "{came:?}");
        assert_eq!(bulk.flow.turn_bytes, 65_536);
        out.extend(came);
        // Small ones pass at once, also behind large ones of their own app.
        bulk.send(call(&service, 100 + at, 10));
        assert!(round(&mut bulk, BOOT + at).contains(&(100 + at)));
    }
    out.retain(|id| *id < 100);
    assert!(out.len() > 12 && out.is_sorted(), "{out:?}");
    for at in 8..12 {
        round(&mut bulk, BOOT + at);
    }
    assert_eq!(metric(&*qos, "provost_qos_held"), 0.0);
    // The answers of the bulk app are small, but they are not what others wait for.
    let later = BOOT + 60_000 * MICROSECOND;
    bulk.send(call(&service, 200, LARGE));
    assert_eq!(round(&mut bulk, later), [200]);
    bulk.receive(service.response(200, 0, &[]));
    round(&mut bulk, later + 1);
    assert!(!bulk.flow.is_limited());
}

#[test]
fn large_ones_wait_here_while_the_transport_has_enough_and_a_later_deadline_gets_past_them() {
    let service = service();
    let qos = qos("bulk_bytes = 65536\nstarvation_bound_us = 1000000\nlinger_us = 1000000");
    let mut small = rig(&service, "small", &*qos);
    let mut bulk = rig(&service, "bulk", &*qos);
    small.send(call(&service, 0, 10));
    round(&mut small, BOOT);
    for id in 0..6 {
        bulk.send(call(&service, id, LARGE));
    }
    let mut out = round(&mut bulk, BOOT + 1);
    assert!(out.len() <= 2 && !out.is_empty(), "{out:?}");
    bulk.flow.unsent_bytes = 65_536;
    for at in 2..100 {
        assert!(round(&mut bulk, BOOT + at).is_empty());
        // Nothing is to be done before the transport has sent something: the runtime may sleep.
        assert_eq!(bulk.wake_at(), None);
    }
    bulk.send(call(&service, 50, 10));
    assert_eq!(round(&mut bulk, BOOT + 100), [50]);
    bulk.send(due(&service, 60, 1_000_000));
    assert!(round(&mut bulk, BOOT + 101).is_empty());
    bulk.flow.unsent_bytes = 65_535;
    out = round(&mut bulk, BOOT + 102);
    assert_eq!(out[0], 60, "{out:?}");
}

/// How long each small call waits, in microseconds, beside an app whose large messages fill a wire of 250 bytes per
/// microsecond with one queue. Transports hand the wire 1 MiB each, or no more than their turn.
fn waits_us(service: &Service, [mut small, mut bulk]: [Rig; 2]) -> Vec<u64> {
    const WIRE_BYTES_PER_US: u64 = 250;
    const ON_WAY_BYTES_MAX: u64 = 1 << 20;
    let (mut unsent, mut on_way) = (0_u64, std::collections::VecDeque::new());
    let (mut busy_until_us, mut next, mut waits) = (0, 0, Vec::new());
    for now_us in 1..20_000 {
        let now = BOOT + now_us * MICROSECOND;
        if now_us % 250 == 0 {
            next += 1;
            small.send(call(service, next, 10));
        }
        for _ in round(&mut small, now) {
            waits.push(busy_until_us.max(now_us) - now_us);
        }
        while bulk.queues.tx_in.len() < 4 && unsent < ON_WAY_BYTES_MAX {
            next += 1;
            bulk.send(call(service, next, LARGE));
        }
        let turn = u64::from(bulk.flow.turn_bytes);
        unsent += (round(&mut bulk, now).len() * LARGE) as u64;
        while on_way
            .front()
            .is_some_and(|(sent_at_us, _)| *sent_at_us <= now_us)
        {
            on_way.pop_front();
        }
        let in_queue: u64 = on_way.iter().map(|(_, bytes)| bytes).sum();
        let bytes = unsent.min(turn.min(ON_WAY_BYTES_MAX).saturating_sub(in_queue));
        if bytes > 0 {
            unsent -= bytes;
            busy_until_us = busy_until_us.max(now_us) + bytes.div_ceil(WIRE_BYTES_PER_US);
            on_way.push_back((busy_until_us, bytes));
        }
        bulk.flow.unsent_bytes = unsent as u32;
    }
    assert!(busy_until_us >= 20_000, "the wire was idle");
    // When the first ones come, the policy does not know of both yet, and the queue is as deep as without it.
    waits.split_off(40)
}

#[test]
fn a_small_call_overtakes_what_waits_for_a_wire() {
    let service = service();
    let bare = || Rig::empty(service.datapath_context(Side::Client));
    let without = waits_us(&service, [bare(), bare()]);
    let qos = qos("bulk_bytes = 32768");
    let with = waits_us(&service, ["small", "bulk"].map(|app| rig(&service, app, &*qos)));
    let longest = |waits: &[u64]| waits.iter().copied().max().unwrap();
    assert!(longest(&without) > 4000, "{without:?}");
    assert!(longest(&with) <= 32_768 / 250 + 1, "{with:?}");
}

#[test]
fn the_earliest_deadline_goes_first_in_a_datapath_and_among_them() {
    let service = service();
    let qos = qos("bulk_bytes = 16384\nstarvation_bound_us = 1000000\nlinger_us = 1000000");
    let mut small = rig(&service, "small", &*qos);
    let mut first = rig(&service, "first", &*qos);
    let mut second = rig(&service, "second", &*qos);
    small.send(call(&service, 0, 10));
    round(&mut small, BOOT);
    meet(&service, &mut [&mut first, &mut second], LARGE);
    for id in [7, 3, 5] {
        first.send(due(&service, id, id * 1_000_000));
        second.send(due(&service, 10 + id, (10 + id) * 1_000_000));
    }
    first.send(call(&service, 9, LARGE));
    let mut order = Vec::new();
    for at in 10..200 {
        order.extend(round(&mut first, BOOT + at));
        order.extend(round(&mut second, BOOT + at));
    }
    order.retain(|id| *id < 1000);
    // When the round begins, nobody has announced anything: each may send one.
    let (in_first, in_second): (Vec<u64>, Vec<u64>) = order.iter().partition(|id| **id < 10);
    assert_eq!((in_first, in_second), (vec![3, 5, 7, 9], vec![13, 15, 17]));
    assert!(
        order.iter().position(|id| *id == 7) < order.iter().position(|id| *id == 15),
        "{order:?}"
    );
    assert_eq!(order.last(), Some(&9), "{order:?}");
}

#[test]
fn weights_divide_what_large_messages_move() {
    let service = service();
    let qos = qos("default_weight = 1\n[weights]\nheavy = 3");
    let mut light = rig(&service, "light", &*qos);
    let mut heavy = rig(&service, "heavy", &*qos);
    let (mut sent, mut next) = ([0, 0], 0);
    for at in 1..400 {
        for (count, rig) in sent.iter_mut().zip([&mut light, &mut heavy]) {
            while rig.queues.tx_in.len() < 40 {
                next += 1;
                rig.send(call(&service, next, LARGE));
            }
            // A transport takes it all.
            *count += round(rig, BOOT + at).len();
        }
    }
    let ratio = f64::from(sent[1] as u32) / f64::from(sent[0] as u32);
    assert!((2.5..3.5).contains(&ratio), "{sent:?}");
}

#[test]
fn nobody_waits_longer_than_the_bound() {
    let service = service();
    let qos = qos("bulk_bytes = 16384\nstarvation_bound_us = 100\nlinger_us = 1000000");
    let mut small = rig(&service, "small", &*qos);
    let mut urgent = rig(&service, "urgent", &*qos);
    let mut patient = rig(&service, "patient", &*qos);
    small.send(call(&service, 0, 10));
    round(&mut small, BOOT);
    meet(&service, &mut [&mut urgent, &mut patient], LARGE);
    let mut began = None;
    let mut now = BOOT + 10;
    for id in 0..400 {
        now += MICROSECOND;
        // There is always something more urgent.
        urgent.send(due(&service, id, 1_000_000));
        round(&mut urgent, now);
        if id == 50 {
            patient.send(call(&service, 5000, LARGE));
            began = Some(now);
        }
        if round(&mut patient, now).contains(&5000) {
            let waited = now - began.unwrap();
            assert!(
                (50 * MICROSECOND..=101 * MICROSECOND).contains(&waited),
                "{waited}"
            );
            assert!(metric(&*qos, "provost_qos_starved_total") >= 1.0);
            return;
        }
    }
    panic!("it starved");
}

#[test]
fn a_call_that_is_given_up_while_it_waits_is_gone() {
    let service = service();
    let qos = qos("bulk_bytes = 16384\nstarvation_bound_us = 1000000");
    let mut small = rig(&service, "small", &*qos);
    let mut bulk = rig(&service, "bulk", &*qos);
    small.send(call(&service, 0, 10));
    round(&mut small, BOOT);
    for id in 0..6 {
        bulk.send(call(&service, id, LARGE));
    }
    let mut out = round(&mut bulk, BOOT + 1);
    bulk.send(Step::cancel(5, Code::Cancelled));
    // Of this one the beginning has passed.
    bulk.send(Step::new(out[0], Parts::END));
    bulk.send(Step::cancel(out[0], Code::Cancelled));
    out = round(&mut bulk, BOOT + 2);
    for at in 3..60 {
        out.extend(round(&mut bulk, BOOT + at));
    }
    assert!(
        !out.contains(&5) && out.contains(&4) && out.contains(&0),
        "{out:?}"
    );
    assert_eq!(metric(&*qos, "provost_qos_held"), 0.0);
}

#[test]
fn what_waits_goes_back_when_the_policy_goes() {
    let service = service();
    let qos = qos("bulk_bytes = 16384\nstarvation_bound_us = 1000000");
    let mut small = rig(&service, "small", &*qos);
    let mut bulk = rig(&service, "bulk", &*qos);
    small.send(call(&service, 0, 10));
    round(&mut small, BOOT);
    for id in 0..20 {
        bulk.send(call(&service, id, LARGE));
    }
    let mut out = round(&mut bulk, BOOT + 1);
    assert!(out.len() < 3 && bulk.engine().unwrap().held() > 16);
    bulk.remove();
    assert_eq!(metric(&*qos, "provost_qos_held"), 0.0);
    out.extend(round(&mut bulk, BOOT + 2));
    assert_eq!(out, (0..20).collect::<Vec<_>>());
}

#[test]
fn calls_survive_changes_at_random_moments() {
    let service = service();
    // Every message is large, and beside itself there is always something small.
    let make = |text: &'static str| {
        move |shared: Option<&SharedState>| policy(&*kind("qos").unwrap(), text, shared).unwrap()
    };
    let policies = [
        make("small_bytes = 0\nbulk_bytes = 16384\nstarvation_bound_us = 10000"),
        make("small_bytes = 65536"),
        make("small_bytes = 100\nstarvation_bound_us = 1"),
    ];
    let makers: Vec<Make<'_>> = policies.iter().map(|make| make as Make<'_>).collect();
    for seed in 0..24 {
        let outcome = run(&Churn {
            service: &service,
            side: [Side::Client, Side::Server][seed as usize % 2],
            seed,
            actions: 1500,
            gap_ns: 100_000,
            policies: &makers,
            request: &|step| {
                let large = call(&service, step.call, LARGE);
                Step {
                    body: large.body,
                    ..step
                }
            },
        });
        assert!(outcome.answered > 10 && outcome.denied == 0, "{outcome:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever comes, all of it goes on in the order of its call, and what large messages wait is bounded.
    #[test]
    fn everything_goes_on_within_the_bound(
        steps in prop::collection::vec((0usize..3, 0u64..6, prop::bool::ANY, 0u64..30), 1..200),
    ) {
        let service = service();
        let bound = 50 * MICROSECOND;
        let qos = qos("bulk_bytes = 16384\nstarvation_bound_us = 50\nlinger_us = 1000000");
        let mut rigs = ["a", "b", "c"].map(|app| rig(&service, app, &*qos));
        let (mut now, mut next) = (BOOT, 0);
        let mut offered = std::collections::HashMap::new();
        let mut done = 0;
        let mut poll_all = |rigs: &mut [Rig; 3], now: Nanos, offered: &std::collections::HashMap<u64, Nanos>| {
            for rig in rigs {
                for id in round(rig, now) {
                    done += 1;
                    assert!(now - offered[&id] <= bound + 2 * MICROSECOND, "{id} waited {}", now - offered[&id]);
                }
            }
            done
        };
        for (app, size, has_deadline, gap) in steps {
            for _ in 0..gap {
                now += MICROSECOND;
                poll_all(&mut rigs, now, &offered);
            }
            now += 1;
            next += 1;
            let mut step = call(&service, next, (size * size) as usize * 2000);
            if has_deadline {
                step.deadline = now + 10_000_000 / (1 + next);
            }
            offered.insert(next, now);
            rigs[app].send(step);
            poll_all(&mut rigs, now, &offered);
        }
        for _ in 0..60 {
            now += MICROSECOND;
            poll_all(&mut rigs, now, &offered);
        }
        prop_assert_eq!(poll_all(&mut rigs, now + 1, &offered), next);
    }
}
